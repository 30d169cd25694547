//! One section of a chapter of the documentation.

use maud::Markup;

/// A section with a heading and an anchor.
pub(super) struct Section {
    pub(super) anchor: &'static str,
    pub(super) heading: &'static str,
    pub(super) content: Markup,
}
