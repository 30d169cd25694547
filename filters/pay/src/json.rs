//! JSON that can be read in one way only.

pub(crate) use tollgate_filter::Unambiguous;
