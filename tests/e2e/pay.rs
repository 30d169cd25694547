//! The plan bought by programs that answer a 402.

mod route;
mod x402;
