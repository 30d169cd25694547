//! Page rendering, and the assets with content-hashed names.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tollgate_filter::{Document, Reply};
use tollgate_module::Snapshot;

use crate::brand::Brand;
use crate::page::{Page, Script};
use crate::palette;
use crate::security_headers::SecurityHeaders;

/// Path of the assets.
const FOLDER: &str = "/assets/";

/// File names contain a content digest, so a cached file never needs revalidation.
const CACHE: &str = "public, max-age=31536000, immutable";

/// The fixed style sheet, in cascade order.
const SHEET: &str = concat!(
    include_str!("assets/base.css"),
    include_str!("assets/frame.css"),
    include_str!("assets/parts.css"),
    include_str!("assets/table.css"),
    include_str!("assets/chart.css"),
    include_str!("assets/dashboard.css"),
    include_str!("assets/sandbox.css"),
    include_str!("assets/consent.css"),
    include_str!("assets/credits.css"),
    include_str!("assets/print.css"),
);

/// The default icon of a brand without a logo, also used as favicon.
const ICON: &str = include_str!("assets/icon.svg");

/// Renders the pages of a gateway, with the brand in force.
pub struct PageRenderer(Snapshot<Look>);

/// A brand with its files.
struct Look {
    brand: Arc<Brand>,
    /// Files of this brand, then files of the brand before.
    files: Vec<File>,
    /// Number of this brand's files.
    own: usize,
    sheets: [String; 2],
    icon: String,
    logo: Option<String>,
    scripts: [String; Script::ALL.len()],
}

#[derive(Clone)]
struct File {
    name: String,
    document: Document,
}

/// URLs of assets and legal pages.
pub(crate) struct Links<'a> {
    pub(crate) brand: &'a Brand,
    pub(crate) sheets: &'a [String; 2],
    pub(crate) icon: &'a str,
    pub(crate) logo: Option<&'a str>,
    scripts: &'a [String; Script::ALL.len()],
}

impl Links<'_> {
    pub(crate) fn script(&self, script: Script) -> &str {
        let at = Script::ALL.iter().position(|&known| known == script);
        &self.scripts[at.expect("the list contains all scripts")]
    }
}

impl Look {
    fn new(brand: Brand) -> Look {
        let mut files = Vec::new();
        let mut add = |name: &str, extension: &str, media_type, bytes: Bytes| {
            let name = format!("{name}-{}.{extension}", digest(&bytes));
            let link = format!("{FOLDER}{name}");
            files.push(File {
                name,
                document: asset(media_type, bytes),
            });
            link
        };
        const CSS: &str = "text/css; charset=utf-8";
        let sheets = [
            add("pages", "css", CSS, Bytes::from_static(SHEET.as_bytes())),
            add("brand", "css", CSS, palette::sheet(brand.accent).into()),
        ];
        let icon = ICON.replace("#0b6675", &brand.accent.to_string());
        let icon = add("icon", "svg", "image/svg+xml", icon.into());
        let logo = brand.logo.as_ref().map(|logo| {
            let kind = logo.kind;
            add(
                "logo",
                kind.extension(),
                kind.media_type(),
                logo.bytes.clone(),
            )
        });
        let scripts = Script::ALL.map(|script| {
            let text = Bytes::from_static(script.text().as_bytes());
            add(script.name(), "js", "text/javascript; charset=utf-8", text)
        });
        Look {
            brand: Arc::new(brand),
            own: files.len(),
            files,
            sheets,
            icon,
            logo,
            scripts,
        }
    }

    fn file(&self, name: &str) -> Option<&File> {
        self.files.iter().find(|file| file.name == name)
    }
}

impl PageRenderer {
    /// The renderer of a brand.
    pub fn new(brand: Brand) -> PageRenderer {
        PageRenderer(Look::new(brand).into())
    }

    /// Brand of the pages: name, accent colour, logo, links.
    pub fn brand(&self) -> Arc<Brand> {
        self.0.load().brand.clone()
    }

    /// Puts another brand in force for the next page, with new names of files. The files of the earlier brand stay until the next change,
    /// for pages that a browser is loading.
    pub(crate) fn replace(&self, brand: Brand) {
        let mut look = Look::new(brand);
        let earlier = self.0.load();
        for file in &earlier.files[..earlier.own] {
            if look.file(&file.name).is_none() {
                look.files.push(file.clone());
            }
        }
        self.0.replace(look);
    }

    /// Renders a page with its security headers.
    pub fn reply(&self, status: StatusCode, page: &Page) -> Reply {
        let look = self.0.load();
        let links = Links {
            brand: &look.brand,
            sheets: &look.sheets,
            icon: &look.icon,
            logo: look.logo.as_deref(),
            scripts: &look.scripts,
        };
        let text = page.write(&links).into_string();
        let mut reply = Reply::of(status, "text/html; charset=utf-8", text.into());
        let policy = SecurityHeaders {
            script: page.has_script(),
            form_action: page.form_action(),
        };
        policy.write(&mut reply.headers);
        if let Some(secs) = page.reload_secs() {
            let refresh = HeaderValue::from(secs);
            reply.headers.insert(header::REFRESH, refresh);
        }
        reply
    }

    /// Redirects with 303, which every client follows with `GET`. The characters of `location` must have been checked.
    ///
    /// An invalid header value becomes a redirect to `/`.
    pub fn see_other(&self, location: &str) -> Reply {
        let mut reply = Reply::of(
            StatusCode::SEE_OTHER,
            "text/plain; charset=utf-8",
            Bytes::new(),
        );
        let location = HeaderValue::from_str(location);
        let location = location.unwrap_or_else(|_| HeaderValue::from_static("/"));
        reply.headers.remove(header::CONTENT_TYPE);
        reply.headers.insert(header::LOCATION, location);
        let policy = SecurityHeaders {
            script: false,
            form_action: None,
        };
        policy.write(&mut reply.headers);
        // A redirect has no content to protect, and `form-action` would block the form behind the redirect.
        reply.headers.remove(header::CONTENT_SECURITY_POLICY);
        reply
    }

    /// A file of `/assets/`, by name.
    pub fn asset(&self, name: &str) -> Option<Document> {
        let look = self.0.load();
        look.file(name).map(|file| file.document.clone())
    }
}

/// A served file. The name contains a digest of the content.
fn asset(media_type: &'static str, bytes: Bytes) -> Document {
    let mut headers = HeaderMap::with_capacity(8);
    for (name, value) in [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, CACHE),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // An operator's SVG, opened directly, must not run scripts.
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; sandbox; frame-ancestors 'none'",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Document::with_headers(headers, bytes)
}

/// A truncated digest that distinguishes versions of a file.
fn digest(bytes: &[u8]) -> String {
    let digest = blake3::hash(bytes).to_hex();
    digest[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use maud::html;
    use tollgate_filter::ReplyBody;

    use super::*;
    use crate::brand::{Logo, LogoKind};

    fn text(reply: &Reply) -> &str {
        let ReplyBody::Whole(body) = &reply.body else {
            panic!("a page is whole");
        };
        std::str::from_utf8(body).expect("text")
    }

    #[test]
    fn every_asset_of_a_page_is_served() {
        let mut brand = Brand::named("Toll & Sons");
        brand.logo = Some(Logo {
            kind: LogoKind::Png,
            bytes: Bytes::from_static(b"\x89PNG"),
        });
        let renderer = PageRenderer::new(brand);
        let page = Page::card("Sign in", html! { h1 { "Sign in" } }).with_script(Script::Copy);
        let reply = renderer.reply(StatusCode::OK, &page);
        let text = text(&reply);
        let mut named = 0;
        for piece in text.split('"').filter(|piece| piece.starts_with(FOLDER)) {
            renderer.asset(&piece[FOLDER.len()..]).expect("a file");
            named += 1;
        }
        assert_eq!(named, 5, "two sheets, icon, logo and script in {text}");
        assert!(text.contains("<title>Sign in – Toll &amp; Sons</title>"));
        assert!(text.contains("alt=\"Toll &amp; Sons\""));
    }

    #[test]
    fn a_page_has_no_inline_style_or_script() {
        let renderer = PageRenderer::new(Brand::named("Tolls"));
        let reply = renderer.reply(StatusCode::OK, &Page::card("A", html! { h1 { "A" } }));
        let text = text(&reply);
        for forbidden in ["<style", " style=", "<script", "javascript:", "data:"] {
            assert!(!text.contains(forbidden), "{forbidden} in {text}");
        }
        assert_eq!(reply.headers[header::CACHE_CONTROL], "no-store");
    }

    #[test]
    fn another_accent_is_another_asset() {
        let mut brand = Brand::named("Tolls");
        let one = PageRenderer::new(brand.clone());
        brand.accent = crate::Colour::of(0xe11d2e);
        let other = PageRenderer::new(brand);
        let (earlier, later) = (one.0.load().sheets.clone(), other.0.load().sheets.clone());
        assert_eq!(earlier[0], later[0]);
        assert_ne!(earlier[1], later[1]);
        let is_served = |sheet: &str| one.asset(&sheet[FOLDER.len()..]).is_some();
        assert!(!is_served(&later[1]));
        one.replace((*other.brand()).clone());
        assert_eq!(one.0.load().sheets, later);
        let count = one.0.load().files.len();
        for sheet in earlier.iter().chain(&later) {
            assert!(is_served(sheet), "{sheet}: a page may be loading it");
        }
        let mut third = (*other.brand()).clone();
        third.accent = crate::Colour::of(0x111111);
        one.replace(third);
        assert_eq!(one.0.load().files.len(), count, "one earlier brand is kept");
        assert!(!is_served(&earlier[1]) && is_served(&later[1]));
    }

    #[test]
    fn a_redirect_rejects_line_breaks() {
        let renderer = PageRenderer::new(Brand::named("Tolls"));
        let reply = renderer.see_other("/keys\r\nset-cookie: a=b");
        assert_eq!(reply.headers[header::LOCATION], "/");
        let reply = renderer.see_other("/keys?at=2");
        assert_eq!(reply.headers[header::LOCATION], "/keys?at=2");
    }
}
