//! Whose pages these are.

use bytes::Bytes;

use crate::colour::Colour;

/// The accent of a brand that sets none.
pub const ACCENT: Colour = Colour::of(0x0b6675);

/// Who the pages say they belong to.
#[derive(Clone, Debug)]
pub struct Brand {
    /// The name, in the frame and in titles.
    pub name: String,
    /// The colour for acting and for "you are here"; all others follow from it.
    pub accent: Colour,
    /// A picture instead of the raised barrier.
    pub logo: Option<Logo>,
    /// Where people ask for help: an e-mail address or an `https` address.
    pub support: Option<String>,
    /// The address of the terms of use.
    pub terms_url: Option<String>,
    /// The address of the privacy notice.
    pub privacy_url: Option<String>,
}

/// A brand's picture, served from the gateway's own address and never written into a page.
#[derive(Clone, Debug)]
pub struct Logo {
    /// Its kind.
    pub kind: LogoKind,
    /// The file.
    pub bytes: Bytes,
}

/// The kinds of picture that a logo can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogoKind {
    /// Scalable Vector Graphics.
    Svg,
    /// Portable Network Graphics.
    Png,
}

impl LogoKind {
    /// What a file looks to be; `None` for neither.
    pub fn of(bytes: &[u8]) -> Option<LogoKind> {
        if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            return Some(LogoKind::Png);
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let text = text.trim_start_matches('\u{feff}').trim_start();
        (text.starts_with('<') && text.contains("<svg")).then_some(LogoKind::Svg)
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            LogoKind::Svg => "image/svg+xml",
            LogoKind::Png => "image/png",
        }
    }

    pub(crate) fn extension(self) -> &'static str {
        match self {
            LogoKind::Svg => "svg",
            LogoKind::Png => "png",
        }
    }
}

impl Brand {
    /// A brand that has a name and nothing else.
    pub fn named(name: impl Into<String>) -> Brand {
        Brand {
            name: name.into(),
            accent: ACCENT,
            logo: None,
            support: None,
            terms_url: None,
            privacy_url: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logo_is_known_by_what_is_in_it() {
        assert_eq!(LogoKind::of(b"\x89PNG\r\n\x1a\nrest"), Some(LogoKind::Png));
        let svg = b"\xef\xbb\xbf <?xml version=\"1.0\"?>\n<svg xmlns=\"\"/>";
        assert_eq!(LogoKind::of(svg), Some(LogoKind::Svg));
        assert_eq!(LogoKind::of(b"<html></html>"), None);
        assert_eq!(LogoKind::of(b"GIF89a"), None);
        assert_eq!(LogoKind::of(b"\xff\xfe"), None);
    }
}
