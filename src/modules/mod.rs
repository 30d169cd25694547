//! Modules without filters: services that several filters share, built from the settings.

pub(crate) mod signin;
