//! Settings: `[ucp]` as written, and validated.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::RefundUrl;
use tollgate_filter::settings::{At, Problems, Switch, Whole, Word, Words};
use tollgate_module::{Section, SectionContext, Services, check_text};

/// `[ucp]` exactly as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawUcp {
    /// Lifetime of a checkout.
    pub session_secs: Whole<21_600, 900, 604_800>,
    /// Whether a platform must name its profile in `UCP-Agent`.
    pub agent_required: Switch<true>,
    /// Whether requests must come over TLS 1.3. Requests from this machine are exempt; with `proxy_protocol` that means that the header
    /// names it as the source. Behind a proxy on another machine that terminates TLS, set it to `false`.
    pub tls13_required: Switch<true>,
    /// Whose profiles are fetched for capability negotiation at the protocol's address, over `https` and from public addresses only.
    /// `never`: every platform is assumed to support this version. `listed`: those at `ucp.profile_hosts`, which is then required. `always`:
    /// those of every platform that is served.
    pub profile_fetch: Word<ProfileFetch>,
    /// The platforms that are served at the protocol's address, by the host of their profile; others get 403.
    ///
    /// Type: list of hosts
    /// Default: none: every platform is served
    /// Range: lower case, with a dot
    pub profile_hosts: Option<At<Vec<At<String>>>>,
    /// Whether a platform may name a profile on this machine, also by `http`. For tests; it is never fetched.
    pub profile_loopback: Switch<false>,
    /// The refund policy that checkouts name beside `brand.terms_url` and `brand.privacy_url`.
    ///
    /// Type: URL
    /// Range: `https`
    pub refund_url: Option<At<String>>,
}

/// Which platform profiles are fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProfileFetch {
    /// Never: every platform is assumed to support this protocol.
    #[default]
    Never,
    /// Profiles at the listed hosts.
    Listed,
    /// Profiles of all served platforms.
    Always,
}

impl Words for ProfileFetch {
    const WORDS: &'static [(&'static str, ProfileFetch)] = &[
        ("never", ProfileFetch::Never),
        ("listed", ProfileFetch::Listed),
        ("always", ProfileFetch::Always),
    ];
}

/// Validated settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UcpSettings {
    /// Lifetime of a checkout that awaits approval.
    pub session: Duration,
    /// Whether `UCP-Agent` is required.
    pub agent_required: bool,
    /// Whether TLS 1.3 is required.
    pub tls13_required: bool,
    /// Which platform profiles are fetched.
    pub profile_fetch: ProfileFetch,
    /// Hosts of the platforms served; `None` for every platform.
    pub profile_hosts: Option<Arc<[String]>>,
    /// Whether a profile may be on loopback.
    pub profile_loopback: bool,
    /// URL of the refund policy.
    pub refund_url: Option<String>,
}

impl Default for UcpSettings {
    fn default() -> UcpSettings {
        check_text::<RawUcp>("", &Services::default()).expect("the defaults pass their own check")
    }
}

impl Section for RawUcp {
    const NAME: &'static str = "ucp";
    type Settings = UcpSettings;

    fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<UcpSettings> {
        let key = |name: &str| context.key(name);
        let session = self.session_secs.check(key("session_secs"), problems);
        let hosts = self.hosts(&key("profile_hosts"), problems);
        let fetch = self.profile_fetch.check(key("profile_fetch"), problems);
        if let (Some(at), Some(ProfileFetch::Listed), None) =
            (self.profile_fetch.written(), fetch, &self.profile_hosts)
        {
            let message = "is `listed`, but no host is listed; name them in `profile_hosts`";
            problems.note(key("profile_fetch"), at, message);
        }
        let refund = match &self.refund_url {
            None => Some(None),
            Some(at) if at.starts_with("https://") && at.bytes().all(|b| b.is_ascii_graphic()) => {
                Some(Some(at.value.clone()))
            }
            Some(at) => {
                let message = format_args!("is `{}`; use an https address", at.value);
                problems.note(key("refund_url"), at, message);
                None
            }
        };
        Some(UcpSettings {
            session: Duration::from_secs(session?),
            agent_required: self.agent_required.is_on(),
            tls13_required: self.tls13_required.is_on(),
            profile_fetch: fetch?,
            profile_hosts: hosts?,
            profile_loopback: self.profile_loopback.is_on(),
            refund_url: refund?,
        })
    }

    fn provide(settings: UcpSettings, services: &mut Services) {
        let refund = settings.refund_url.as_deref();
        services.provide(RefundUrl(refund.map(Arc::from)));
        services.provide(settings);
    }
}

impl RawUcp {
    fn hosts(&self, key: &str, problems: &mut Problems) -> Option<Option<Arc<[String]>>> {
        let Some(list) = &self.profile_hosts else {
            return Some(None);
        };
        let mut sound = true;
        if list.value.is_empty() {
            let message =
                "is empty, so no platform would be served; name a host, or remove the setting";
            problems.note(key, list, message);
            sound = false;
        }
        for (number, at) in list.value.iter().enumerate() {
            let plain = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte)
            };
            if !at.contains('.') || !at.bytes().all(plain) {
                let message = format_args!(
                    "is `{}`; use a host name in lower case, like `platform.example`",
                    at.value
                );
                problems.note(format!("{key}.{number}"), at, message);
                sound = false;
            }
        }
        let hosts = list.value.iter().map(|at| at.value.clone()).collect();
        sound.then_some(Some(hosts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_settings_apply_and_the_rest_has_defaults() {
        assert_eq!(
            check(""),
            Ok(UcpSettings {
                session: Duration::from_secs(21_600),
                agent_required: true,
                tls13_required: true,
                profile_fetch: ProfileFetch::Never,
                profile_hosts: None,
                profile_loopback: false,
                refund_url: None,
            })
        );
        let written = "session_secs = 900\nagent_required = false\ntls13_required = false\n\
                       profile_fetch = \"listed\"\nprofile_hosts = [\"platform.example\"]\nprofile_loopback = true\nrefund_url = \"https://e.example/refunds\"";
        assert_eq!(
            check(written),
            Ok(UcpSettings {
                session: Duration::from_secs(900),
                agent_required: false,
                tls13_required: false,
                profile_fetch: ProfileFetch::Listed,
                profile_hosts: Some(Arc::from([String::from("platform.example")])),
                profile_loopback: true,
                refund_url: Some(String::from("https://e.example/refunds")),
            })
        );
        for (text, keys) in [
            ("session_secs = 899", vec!["ucp.session_secs"]),
            ("profile_fetch = \"sometimes\"", vec!["ucp.profile_fetch"]),
            ("profile_fetch = \"listed\"", vec!["ucp.profile_fetch"]),
            ("profile_hosts = []", vec!["ucp.profile_hosts"]),
            (
                "profile_hosts = [\"https://platform.example\", \"localhost\"]",
                vec!["ucp.profile_hosts.0", "ucp.profile_hosts.1"],
            ),
            ("refund_url = \"http://e.example\"", vec!["ucp.refund_url"]),
        ] {
            assert_eq!(
                check(text),
                Err(keys.into_iter().map(String::from).collect()),
                "{text}"
            );
        }
    }

    fn check(text: &str) -> Result<UcpSettings, Vec<String>> {
        check_text::<RawUcp>(text, &Services::default())
            .map_err(|found| found.into_iter().map(|problem| problem.key).collect())
    }
}
