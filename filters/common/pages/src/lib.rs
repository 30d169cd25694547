#![doc = include_str!("../README.md")]

mod brand;
mod colour;
mod error_pages;
pub mod format;
mod frame;
mod page;
mod palette;
pub mod parts;
mod renderer;
mod security_headers;

use tollgate_service::{GATEWAY, provided};

pub use brand::{ACCENT, Brand, Logo, LogoKind};
pub use colour::{Colour, ColourError};
pub use error_pages::{Failure, error_page, failure};
pub use frame::{NavItem, Viewer};
pub use page::{Page, Script};
pub use renderer::PageRenderer;

provided! {
    GATEWAY => [PageRenderer];
    "portal" => [Brand];
}
