//! JSON with one possible reading.

pub(crate) use tollgate_filter::Unambiguous;
