//! Brand of the pages: name, accent colour, logo, links.

use bytes::Bytes;

use crate::colour::Colour;

/// The default accent.
pub const ACCENT: Colour = Colour::of(0x0b6675);

/// The brand shown on pages.
#[derive(Clone, Debug)]
pub struct Brand {
    /// The name, in the frame and in titles.
    pub name: String,
    /// The colour of actions and of the current location; the other colours derive from it.
    pub accent: Colour,
    /// A logo instead of the default icon.
    pub logo: Option<Logo>,
    /// Support contact: an e-mail address or an `https` URL.
    pub support: Option<String>,
    /// URL of the terms of use.
    pub terms_url: Option<String>,
    /// URL of the privacy notice.
    pub privacy_url: Option<String>,
}

/// The logo of a brand, served from the gateway's own origin and never inlined into a page.
#[derive(Clone, Debug)]
pub struct Logo {
    /// The file format.
    pub kind: LogoKind,
    /// The file content.
    pub bytes: Bytes,
}

/// Supported logo formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogoKind {
    /// Scalable Vector Graphics.
    Svg,
    /// Portable Network Graphics.
    Png,
}

impl LogoKind {
    /// Detects the format from the content; `None` if unsupported.
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
    /// A brand with a name and defaults.
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
    fn a_logo_format_is_detected_from_its_content() {
        assert_eq!(LogoKind::of(b"\x89PNG\r\n\x1a\nrest"), Some(LogoKind::Png));
        let svg = b"\xef\xbb\xbf <?xml version=\"1.0\"?>\n<svg xmlns=\"\"/>";
        assert_eq!(LogoKind::of(svg), Some(LogoKind::Svg));
        assert_eq!(LogoKind::of(b"<html></html>"), None);
        assert_eq!(LogoKind::of(b"GIF89a"), None);
        assert_eq!(LogoKind::of(b"\xff\xfe"), None);
    }
}
