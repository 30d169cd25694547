//! Settings: `[ucp]` as written, and as checked.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Problems};

const SESSION_SECS: u64 = 6 * 3600;

/// `[ucp]` exactly as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawUcp {
    /// Seconds for which a checkout waits for its owner. 900 to 604800, default 21600.
    pub session_secs: Option<At<u64>>,
    /// Whether requests at the protocol's address must say in `UCP-Agent` which platform they come from. Default true.
    pub agent_required: Option<At<bool>>,
    /// Whether requests at the protocol's address must come over TLS 1.3, unless they come from this machine. Default true.
    pub tls13_required: Option<At<bool>>,
    /// Hosts of the platforms that are served at the protocol's address, by where their profiles lie. Default: every platform is.
    pub profile_hosts: Option<At<Vec<At<String>>>>,
    /// Whether a platform may name a profile on this machine, by `http` too: for tests. It is never fetched. Default false.
    pub profile_loopback: Option<At<bool>>,
    /// The address of the refund policy, which checkouts name.
    pub refund_url: Option<At<String>>,
}

/// Checked settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UcpSettings {
    /// For how long a checkout waits for its owner.
    pub session: Duration,
    /// Whether a platform must say which one it is.
    pub agent_required: bool,
    /// Whether TLS 1.3 is asked for.
    pub tls13_required: bool,
    /// Hosts of the platforms that are served; `None` for every platform.
    pub profile_hosts: Option<Arc<[String]>>,
    /// Whether a profile may lie on this machine.
    pub profile_loopback: bool,
    /// The refund policy.
    pub refund_url: Option<String>,
}

impl Default for UcpSettings {
    fn default() -> UcpSettings {
        UcpSettings {
            session: Duration::from_secs(SESSION_SECS),
            agent_required: true,
            tls13_required: true,
            profile_hosts: None,
            profile_loopback: false,
            refund_url: None,
        }
    }
}

impl RawUcp {
    /// The checked settings of `section`, or `None` after noting everything that is wrong with them.
    pub fn check(&self, section: &str, problems: &mut Problems) -> Option<UcpSettings> {
        let key = |name: &str| format!("{section}.{name}");
        let session = match &self.session_secs {
            None => Some(SESSION_SECS),
            Some(at) => problems.within(key("session_secs"), at, 900..=604_800),
        };
        let hosts = self.hosts(section, problems);
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
        let flag = |at: &Option<At<bool>>, default| at.as_ref().map_or(default, |at| at.value);
        Some(UcpSettings {
            session: Duration::from_secs(session?),
            agent_required: flag(&self.agent_required, true),
            tls13_required: flag(&self.tls13_required, true),
            profile_hosts: hosts?,
            profile_loopback: flag(&self.profile_loopback, false),
            refund_url: refund?,
        })
    }

    fn hosts(&self, section: &str, problems: &mut Problems) -> Option<Option<Arc<[String]>>> {
        let Some(list) = &self.profile_hosts else {
            return Some(None);
        };
        let key = format!("{section}.profile_hosts");
        let mut sound = true;
        if list.value.is_empty() {
            let message = "is empty, so nobody would be served; name a host, or leave it out";
            problems.note(&key, list, message);
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
    fn what_is_written_is_what_holds_and_the_rest_has_defaults() {
        assert_eq!(check(""), Ok(UcpSettings::default()));
        let written = "session_secs = 900\nagent_required = false\ntls13_required = false\n\
                       profile_hosts = [\"platform.example\"]\nprofile_loopback = true\nrefund_url = \"https://e.example/refunds\"";
        assert_eq!(
            check(written),
            Ok(UcpSettings {
                session: Duration::from_secs(900),
                agent_required: false,
                tls13_required: false,
                profile_hosts: Some(Arc::from([String::from("platform.example")])),
                profile_loopback: true,
                refund_url: Some(String::from("https://e.example/refunds")),
            })
        );
        for (text, keys) in [
            ("session_secs = 899", vec!["ucp.session_secs"]),
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
        let raw: RawUcp = toml::from_str(text).expect("TOML of the section");
        let mut problems = Problems::default();
        raw.check("ucp", &mut problems).ok_or_else(|| {
            let found = problems.into_vec().into_iter();
            found.map(|problem| problem.key).collect()
        })
    }
}
