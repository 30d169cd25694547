//! JSON without duplicate members, which has only one possible reading.

pub(crate) use tollgate_filter::Unambiguous;
