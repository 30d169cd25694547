//! JSON without duplicate members, for an unambiguous reading.

pub(crate) use tollgate_filter::Unambiguous;
