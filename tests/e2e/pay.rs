//! The plan bought by programs that answer a 402.

pub(crate) mod mpp;
mod one_plan;
mod route;
pub(crate) mod x402;
