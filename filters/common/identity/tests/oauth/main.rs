//! What the authorization server decides, through a real store.

mod families;
mod limits;
mod never_more;
mod support;
