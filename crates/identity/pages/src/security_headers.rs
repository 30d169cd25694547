//! Security headers of every page (Content Security Policy and others).

use http::{HeaderMap, HeaderName, HeaderValue, header};

/// Exceptions from the default policy of a page.
pub(crate) struct SecurityHeaders<'a> {
    /// The page has a script.
    pub(crate) script: bool,
    /// An additional origin for `form-action`.
    pub(crate) form_action: Option<&'a str>,
}

impl SecurityHeaders<'_> {
    /// Writes the headers of a page.
    ///
    /// `form-action` applies along redirects (Content Security Policy 3, section 6.4.1), so a form with a redirect to another origin names
    /// that origin. `Referrer-Policy` is not `no-referrer`: browsers would then send `Origin: null` with forms, and the origin check would
    /// reject legitimate requests.
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        let mut policy = String::from("default-src 'none'; style-src 'self'; img-src 'self'");
        if self.script {
            policy.push_str("; script-src 'self'; connect-src 'self'");
        }
        policy.push_str("; frame-ancestors 'none'; base-uri 'none'; form-action 'self'");
        // Invalid sources are omitted: the form is then blocked, without any further permission.
        if let Some(origin) = self.form_action.filter(|origin| is_source(origin)) {
            policy.push(' ');
            policy.push_str(origin);
        }
        let policy = HeaderValue::try_from(policy).expect("the policy is visible ASCII");
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
        for (name, value) in [
            (header::X_FRAME_OPTIONS, "DENY"),
            (header::REFERRER_POLICY, "same-origin"),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CACHE_CONTROL, "no-store"),
            (
                HeaderName::from_static("cross-origin-opener-policy"),
                "same-origin",
            ),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
}

/// Whether a string is a single scheme or origin, unable to end the directive.
fn is_source(text: &str) -> bool {
    text.contains(':')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b":/.-_[]".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(script: bool, form_action: Option<&str>) -> String {
        let mut headers = HeaderMap::new();
        SecurityHeaders {
            script,
            form_action,
        }
        .write(&mut headers);
        let policy = &headers[header::CONTENT_SECURITY_POLICY];
        policy.to_str().expect("text").to_owned()
    }

    #[test]
    fn a_page_permits_only_its_own_styles_and_images() {
        assert_eq!(
            policy(false, None),
            "default-src 'none'; style-src 'self'; img-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
        );
        assert!(policy(true, None).contains("; script-src 'self'; connect-src 'self'; "));
    }

    #[test]
    fn a_form_may_target_one_more_origin_and_no_input_ends_the_directive() {
        let ends = |origin| policy(false, Some(origin));
        assert!(
            ends("http://127.0.0.1:47211").ends_with("form-action 'self' http://127.0.0.1:47211")
        );
        assert!(ends("http://[::1]:80").ends_with(" http://[::1]:80"));
        for evil in [
            "https://a.example; script-src *",
            "https://a.example https://b.example",
            "*",
            "https://*",
            "'unsafe-inline'",
            "https://a.example\r\nset-cookie: a=b",
        ] {
            assert!(ends(evil).ends_with("form-action 'self'"), "{evil}");
        }
    }
}
