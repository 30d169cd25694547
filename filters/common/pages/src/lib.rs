//! Layout, components and rendering of web pages.
//!
//! A filter renders the content of a page with `maud` and the [`parts`]; a [`Page`] adds title and layout; the [`PageRenderer`], built once
//! from the [`Brand`], turns it into a reply with all security headers. Pages work without JavaScript. Styles are two files: a fixed sheet,
//! and a small one generated from the brand's colour.
//!
//! | File | Content |
//! |---|---|
//! | `page.rs`, `frame.rs` | title, layouts, navigation |
//! | `renderer.rs`, `security_headers.rs` | content-hashed assets, security headers |
//! | `parts/` | UI components: fields, notices, tables, code, pills, charts |
//! | `format.rs` | formatting of amounts and times |
//! | `error_pages.rs` | error pages, which need neither session nor store |
//! | `colour.rs`, `palette.rs` | the colours derived from the accent |
//! | `assets/` | the fixed style sheet in pieces, and the scripts: copy buttons, sandbox |

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
