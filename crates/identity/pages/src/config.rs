//! The section `[brand]`: as written, with its check.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Problems};
use tollgate_filter::{BrandName, ServiceIdentity};
use tollgate_module::{Section, SectionContext, Services};

use crate::brand::{ACCENT, Brand, Logo, LogoKind};

const NAME_CHARS_MAX: usize = 40;

const LOGO_BYTES_MAX: usize = 256 * 1024;

/// The brand on the pages and in messages.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawBrand {
    /// The name on every page and in messages.
    ///
    /// Default: `service.name`
    /// Range: 1 to 40 characters
    pub name: Option<At<String>>,
    /// The accent colour; all others are derived from it with sufficient contrast.
    ///
    /// Type: colour
    /// Default: `#0b6675`
    /// Range: `#` and six hex digits
    pub accent: Option<At<String>>,
    /// The logo.
    ///
    /// Type: path
    /// Default: a raised barrier
    /// Range: SVG or PNG, 256 KiB
    pub logo_file: Option<At<String>>,
    /// The support contact.
    ///
    /// Type: address
    /// Range: an e-mail address or an address of the web
    pub support: Option<At<String>>,
    /// The terms of use.
    ///
    /// Type: URL
    /// Range: `http` or `https`
    pub terms_url: Option<At<String>>,
    /// The privacy notice.
    ///
    /// Type: URL
    /// Range: `http` or `https`
    pub privacy_url: Option<At<String>>,
}

impl Section for RawBrand {
    const NAME: &'static str = "brand";
    type Settings = Brand;

    fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<Brand> {
        let service: ServiceIdentity = context.find()?;
        let name = self.name.as_ref();
        if let Some(at) = name {
            let chars = at.value.trim().chars().count();
            if !(1..=NAME_CHARS_MAX).contains(&chars) || at.value.chars().any(char::is_control) {
                let message =
                    format_args!("is not a name; use 1 to {NAME_CHARS_MAX} characters on one line");
                problems.note(context.key("name"), at, message);
            }
        }
        let accent = self.accent.as_ref();
        let accent = accent.and_then(|at| problems.parse(context.key("accent"), at));
        let logo = self.logo_file.as_ref();
        Some(Brand {
            name: name.map_or(&*service.name, |at| at.value.trim()).to_owned(),
            accent: accent.unwrap_or(ACCENT),
            logo: logo.and_then(|at| read_logo(at, context, problems)),
            support: support(self.support.as_ref(), context, problems),
            terms_url: page("terms_url", self.terms_url.as_ref(), context, problems),
            privacy_url: page("privacy_url", self.privacy_url.as_ref(), context, problems),
        })
    }

    fn provide(brand: Brand, services: &mut Services) {
        services.provide(BrandName(brand.name.as_str().into()));
        services.provide(brand);
    }
}

fn read_logo(
    at: &At<String>,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<Logo> {
    let (key, inputs) = (context.key("logo_file"), context.inputs());
    let file = inputs.path(at);
    let bytes = match inputs.file(at) {
        Ok(bytes) => bytes,
        Err(error) => {
            let message =
                format_args!("names `{}`, which cannot be read ({error})", file.display());
            problems.note(key, at, message);
            return None;
        }
    };
    let kind = LogoKind::of(&bytes);
    if kind.is_none() || bytes.len() > LOGO_BYTES_MAX {
        let message = format_args!(
            "names `{}`; use an SVG or PNG file of at most {} KiB",
            file.display(),
            LOGO_BYTES_MAX / 1024
        );
        problems.note(key, at, message);
        return None;
    }
    Some(Logo {
        kind: kind?,
        bytes: bytes.into(),
    })
}

fn support(
    at: Option<&At<String>>,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<String> {
    let at = at?;
    if at.value.contains('@') && !at.value.contains("://") {
        if tollgate_identity::Login::email(&at.value).is_ok() {
            return Some(at.value.trim().to_owned());
        }
    } else if is_page(&at.value) {
        return Some(at.value.clone());
    }
    let message = format_args!(
        "is `{}`; use an e-mail address, or the address of a page",
        at.value
    );
    problems.note(context.key("support"), at, message);
    None
}

fn page(
    name: &str,
    at: Option<&At<String>>,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<String> {
    let at = at?;
    if is_page(&at.value) {
        return Some(at.value.clone());
    }
    let message = format_args!(
        "is `{}`; use the address of a page, such as `https://example.com/terms`",
        at.value
    );
    problems.note(context.key(name), at, message);
    None
}

/// Whether a text is a valid link target.
fn is_page(text: &str) -> bool {
    let web = text.starts_with("https://") || text.starts_with("http://");
    web && text
        .parse::<http::Uri>()
        .is_ok_and(|uri| uri.host().is_some())
}
