#![doc = include_str!("../README.md")]

mod brand;
mod colour;
mod config;
mod error_pages;
pub mod format;
mod frame;
mod module;
mod page;
mod palette;
pub mod parts;
mod renderer;
mod security_headers;

pub use brand::{ACCENT, Brand, Logo, LogoKind};
pub use colour::{Colour, ColourError};
pub use config::RawBrand;
pub use error_pages::{Failure, error_page, failure};
pub use frame::{NavItem, Viewer};
pub use module::PagesModule;
pub use page::{Page, Script};
pub use renderer::PageRenderer;
