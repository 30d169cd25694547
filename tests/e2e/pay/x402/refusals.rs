//! Payments that are none.
