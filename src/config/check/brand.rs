//! `[brand]`.

use tollgate_filter::settings::{At, Problems};
use tollgate_pages::{ACCENT, Brand, Logo, LogoKind};

use super::CheckContext;
use crate::config::raw::RawBrand;

const NAME_CHARS_MAX: usize = 40;

const LOGO_BYTES_MAX: usize = 256 * 1024;

pub(super) fn brand(
    raw: &RawBrand,
    service: &str,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Brand {
    let name = raw.name.as_ref();
    if let Some(at) = name {
        let chars = at.value.trim().chars().count();
        if !(1..=NAME_CHARS_MAX).contains(&chars) || at.value.chars().any(char::is_control) {
            let message =
                format_args!("is not a name; use 1 to {NAME_CHARS_MAX} characters on one line");
            problems.note("brand.name", at, message);
        }
    }
    let accent = raw
        .accent
        .as_ref()
        .and_then(|at| problems.parse("brand.accent", at));
    Brand {
        name: name.map_or(service, |at| at.value.trim()).to_owned(),
        accent: accent.unwrap_or(ACCENT),
        logo: raw
            .logo_file
            .as_ref()
            .and_then(|at| logo(at, context, problems)),
        support: support(raw.support.as_ref(), problems),
        terms_url: page("brand.terms_url", raw.terms_url.as_ref(), problems),
        privacy_url: page("brand.privacy_url", raw.privacy_url.as_ref(), problems),
    }
}

fn logo(at: &At<String>, context: &CheckContext<'_>, problems: &mut Problems) -> Option<Logo> {
    const KEY: &str = "brand.logo_file";
    let file = context.path(at);
    let bytes = match std::fs::read(&file) {
        Ok(bytes) => bytes,
        Err(error) => {
            let message =
                format_args!("names `{}`, which cannot be read ({error})", file.display());
            problems.note(KEY, at, message);
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
        problems.note(KEY, at, message);
        return None;
    }
    Some(Logo {
        kind: kind?,
        bytes: bytes.into(),
    })
}

fn support(at: Option<&At<String>>, problems: &mut Problems) -> Option<String> {
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
    problems.note("brand.support", at, message);
    None
}

fn page(key: &str, at: Option<&At<String>>, problems: &mut Problems) -> Option<String> {
    let at = at?;
    if is_page(&at.value) {
        return Some(at.value.clone());
    }
    let message = format_args!(
        "is `{}`; use the address of a page, such as `https://example.com/terms`",
        at.value
    );
    problems.note(key, at, message);
    None
}

/// Whether a text is a valid link target.
fn is_page(text: &str) -> bool {
    let web = text.starts_with("https://") || text.starts_with("http://");
    web && text
        .parse::<http::Uri>()
        .is_ok_and(|uri| uri.host().is_some())
}
