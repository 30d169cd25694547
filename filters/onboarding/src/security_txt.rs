//! `security.txt`: the security contact (RFC 9116).

use std::fmt::Write as _;

use jiff::SignedDuration;
use tollgate_clock::Timestamp;

use crate::config::Security;

/// Minimum remaining validity at start: the gateway may run long without a restart.
const VALIDITY_MIN: SignedDuration = SignedDuration::from_hours(30 * 24);

/// Maximum validity (RFC 9116 section 2.5.5).
const VALIDITY_MAX: SignedDuration = SignedDuration::from_hours(366 * 24);

/// The contact expires too soon or too late.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`onboarding.security.expires` is {expires}; use a time at least 30 days and at most a year from now"
)]
pub struct ExpiresError {
    expires: jiff::Timestamp,
}

/// The document at `now`; `canonical` is its own URL.
pub(crate) fn text(
    security: &Security,
    canonical: &str,
    now: Timestamp,
) -> Result<String, ExpiresError> {
    let lasts = security.expires.duration_since(now.into());
    if !(VALIDITY_MIN..=VALIDITY_MAX).contains(&lasts) {
        return Err(ExpiresError {
            expires: security.expires,
        });
    }
    let mut text = format!(
        "Contact: {}\nExpires: {}\n",
        security.contact, security.expires
    );
    let mut line = |name: &str, value: &str| {
        // Writing to a `String` cannot fail.
        let _ = writeln!(text, "{name}: {value}");
    };
    if let Some(policy) = &security.policy {
        line("Policy", policy);
    }
    if let Some(languages) = &security.languages {
        line("Preferred-Languages", languages);
    }
    line("Canonical", canonical);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contact_that_expires_too_soon_or_too_late_is_rejected() {
        let security = Security {
            contact: "mailto:security@example.com".to_owned(),
            expires: "2027-06-01T00:00:00Z".parse().expect("a time"),
            policy: None,
            languages: Some("en, de".to_owned()),
        };
        let at = |now: &str| {
            let now = Timestamp::from_rfc3339(now).expect("a time");
            text(&security, "https://e.example/x", now)
        };
        assert_eq!(
            at("2027-01-01T00:00:00Z").as_deref(),
            Ok(
                "Contact: mailto:security@example.com\nExpires: 2027-06-01T00:00:00Z\n\
                 Preferred-Languages: en, de\nCanonical: https://e.example/x\n"
            )
        );
        assert!(at("2027-05-02T00:00:00Z").is_ok());
        assert!(at("2027-05-02T00:00:01Z").is_err(), "less than 30 days");
        assert!(at("2026-05-30T00:00:00Z").is_err(), "more than a year");
        assert!(at("2027-06-02T00:00:00Z").is_err(), "over");
    }
}
