//! Modules without filters: services that several filters share, built from the settings.

pub(crate) mod mpp;
pub(crate) mod paypal;
pub(crate) mod purchase;
pub(crate) mod signin;
pub(crate) mod x402;
