//! What the authorization server decides, through a real store.

mod families;
mod limits;
mod privilege_bounds;
mod support;
