//! tollgate.
fn main() {}
