//! Layout, components and rendering of web pages.
//!
//! A filter renders the content of a page with `maud` and the [`parts`]; a [`Page`] adds title and layout; the [`PageRenderer`], built once
//! from the [`Brand`], turns it into a reply with all security headers. Pages work without JavaScript. Styles are two files: a fixed sheet,
//! and a small one generated from the brand's colour.
//!
//! | In the source | Is |
//! |---|---|
//! | `page.rs`, `frame.rs` | title, landmarks, side column, card |
//! | `look.rs`, `fields.rs` | sheets and pictures by digest, security fields |
//! | `parts/` | fields, notices, tables, code, pills, bars |
//! | `format.rs` | amounts and times in words |
//! | `failure.rs` | pages for what went wrong, which need neither session nor store |
//! | `colour.rs`, `palette.rs` | the colours that follow from the accent |
//! | `assets/` | the fixed sheet in pieces, and the scripts: one that copies, one for the sandbox |

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

pub use brand::{ACCENT, Brand, Logo, LogoKind};
pub use colour::{Colour, ColourError};
pub use error_pages::{Failure, error_page, failure};
pub use frame::{NavItem, Viewer};
pub use page::{Page, Script};
pub use renderer::PageRenderer;
