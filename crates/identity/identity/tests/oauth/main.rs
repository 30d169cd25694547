//! The authorization server over a real store.

mod families;
mod limits;
mod privilege_bounds;
mod support;
