//! Purchases of the plan by programs (402): x402 and MPP.

pub(crate) mod mpp;
mod one_plan;
mod route;
pub(crate) mod x402;
