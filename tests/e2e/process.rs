//! The real program: signals, kills, and failed starts.

mod acme;
mod chaos;
mod codes;
mod credits;
mod demo;
mod exchanges;
mod failing_sync;
mod fencing;
mod health;
mod installation;
mod kills;
mod logs;
mod mandates;
mod memory;
mod mpp;
mod postgres;
mod prices;
mod reload;
mod service_manager;
mod shared;
mod signed;
mod starts;
mod stops;
mod ucp;
mod unix_socket;
mod upgrade;
