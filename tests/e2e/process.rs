//! The real program: signals, kills, and what keeps it from starting.

mod chaos;
mod codes;
mod credits;
mod demo;
mod exchanges;
mod fencing;
mod installation;
mod kills;
mod logs;
mod mandates;
mod mpp;
mod prices;
mod signed;
mod starts;
mod stops;
mod ucp;
