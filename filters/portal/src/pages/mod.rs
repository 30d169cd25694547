//! The pages: one file each.

pub(crate) mod home;
pub(crate) mod sign_in;
pub(crate) mod sign_out;
