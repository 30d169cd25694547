//! The section `[shared]`: as written, with its check.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use rustls_pki_types::{CertificateDer, ServerName};
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use tollgate_filter::settings::{At, BaseUrl, Problems};
use tollgate_module::{Named, Section, SectionContext};

/// The longest wait for an answer of the server on the path of a request.
const CALL_LIMIT: Duration = Duration::from_millis(20);

const PORT: u16 = 6379;

/// The highest database number in a URL; a server has 16 by default.
const DATABASE_MAX: i64 = 65_535;

/// State that several gateways share.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawShared {
    /// The Redis or Valkey server through which gateways share rate limits, token quotas, concurrency limits, and the answers of the cache.
    ///
    /// Type: URL
    /// Default: none: each gateway counts by itself
    /// Range: `redis://` or `rediss://` (TLS), a host, `:PORT` (6379), `/DATABASE` (0)
    pub url: Option<At<String>>,
    /// The user name at the server.
    pub user: Option<At<String>>,
    /// Contains the password.
    ///
    /// Type: name of a variable
    /// Range: not beside `password_file`
    pub password_env: Option<At<String>>,
    /// Contains the password.
    ///
    /// Type: path
    pub password_file: Option<At<String>>,
    /// A root to trust besides the system's.
    ///
    /// Type: path
    /// Range: PEM
    pub ca_file: Option<At<String>>,
}

/// `[shared]` with a URL, validated.
#[derive(Clone, Debug)]
pub struct SharedSettings {
    /// Whether to use TLS.
    pub tls: bool,
    /// A name or an address, an IPv6 address without brackets.
    pub host: String,
    pub port: u16,
    /// The number of the database.
    pub database: i64,
    /// The user name.
    pub user: Option<String>,
    pub password: Option<SecretString>,
    /// Roots to trust besides the system's.
    pub roots: Arc<[CertificateDer<'static>]>,
    /// The longest wait for an answer on the path of a request. Not a setting: tests of counts make the wait longer.
    pub call_limit: Duration,
}

impl Section for RawShared {
    const NAME: &'static str = "shared";
    type Settings = Option<SharedSettings>;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<Option<SharedSettings>> {
        let Some(at) = &self.url else {
            for (name, at) in [
                ("user", &self.user),
                ("password_env", &self.password_env),
                ("password_file", &self.password_file),
                ("ca_file", &self.ca_file),
            ] {
                if let Some(at) = at {
                    let message = "is set without `url`; name the server, or leave both out";
                    problems.note(context.key(name), at, message);
                }
            }
            return Some(None);
        };
        let named = Named {
            section: "shared",
            variable: ("password_env", self.password_env.as_ref()),
            file: ("password_file", self.password_file.as_ref()),
        };
        let password = named.read("password", context.inputs(), problems);
        if let Some(at) = &self.user
            && self.password_env.is_none()
            && self.password_file.is_none()
        {
            let message = "is set without a password; add `password_env` or `password_file`";
            problems.note(context.key("user"), at, message);
        }
        let roots = context.certificates("ca_file", self.ca_file.as_ref(), problems);
        let server = server(context.key("url"), at, problems)?;
        if let Some(at) = &self.ca_file
            && !server.tls
        {
            let message = "is set beside a URL without TLS; write the URL with `rediss://`";
            problems.note(context.key("ca_file"), at, message);
        }
        Some(Some(SharedSettings {
            user: self.user.as_ref().map(|at| at.value.clone()),
            password,
            roots: roots.unwrap_or_default().into(),
            ..server
        }))
    }
}

/// The server of a URL, without credentials.
fn server(key: String, at: &At<String>, problems: &mut Problems) -> Option<SharedSettings> {
    let (tls, rest) = match at.value.split_once("://") {
        Some(("rediss", rest)) => (true, rest),
        Some(("redis", rest)) => (false, rest),
        _ => {
            let message = "does not start with `redis://` or `rediss://`; write it like `redis://10.0.0.5:6379`";
            problems.note(key, at, message);
            return None;
        }
    };
    let url = format!("http://{rest}").parse().ok();
    let Some((url, database)) = url.and_then(|url: BaseUrl| {
        let database = match url.path.strip_prefix('/') {
            None => 0,
            Some(number) => number.parse().ok()?,
        };
        (0..=DATABASE_MAX)
            .contains(&database)
            .then_some((url, database))
    }) else {
        // Not repeated: the text before an `@` may be a password.
        let message = "is not the URL of a server; write it like `rediss://redis.example.net:6379/0`, user and password have their own settings";
        problems.note(key, at, message);
        return None;
    };
    if tls && ServerName::try_from(url.host.as_str()).is_err() {
        let message = "names a host that cannot have a certificate; use a DNS name or an address";
        problems.note(key, at, message);
        return None;
    }
    if !tls && !is_loopback(&url.host) {
        problems.warn(
            key,
            "has no TLS, and the server is not this machine; use `rediss://` unless the network between them is private",
        );
    }
    let authority = rest.split('/').next().unwrap_or(rest);
    let has_port = authority
        .rsplit_once(':')
        .is_some_and(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    Some(SharedSettings {
        tls,
        port: if has_port { url.port } else { PORT },
        host: url.host,
        database,
        user: None,
        password: None,
        roots: Arc::default(),
        call_limit: CALL_LIMIT,
    })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || host
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use tollgate_module::{Services, check_text};

    use super::*;

    fn check(text: &str) -> Result<Option<SharedSettings>, Vec<String>> {
        check_text::<RawShared>(text, &Services::default())
            .map_err(|found| found.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn urls_are_split_into_their_parts() {
        for (url, wanted) in [
            ("redis://localhost", (false, "localhost", 6379, 0)),
            ("redis://[::1]/3", (false, "::1", 6379, 3)),
            ("redis://10.0.0.5:7000", (false, "10.0.0.5", 7000, 0)),
            (
                "rediss://Redis.example.net:80/",
                (true, "redis.example.net", 80, 0),
            ),
        ] {
            let settings = check(&format!("url = '{url}'")).expect("a good URL");
            let read = settings.expect("a server");
            let parts = (read.tls, read.host.as_str(), read.port, read.database);
            assert_eq!(parts, wanted, "{url}");
        }
        assert!(check("").expect("nothing is required").is_none());
    }

    #[test]
    fn problems_name_the_key_and_the_remedy_and_repeat_no_password() {
        let url = "shared.url: is not the URL of a server; write it like `rediss://redis.example.net:6379/0`, user and password have their own settings";
        for (text, wanted) in [
            (
                "url = 'http://localhost'",
                "shared.url: does not start with `redis://` or `rediss://`; write it like `redis://10.0.0.5:6379`",
            ),
            ("url = 'redis://me:hunter2@localhost'", url),
            ("url = 'redis://localhost/first'", url),
            ("url = 'redis://localhost/70000'", url),
            ("url = 'redis://'", url),
            (
                "user = 'me'",
                "shared.user: is set without `url`; name the server, or leave both out",
            ),
            (
                "url = 'redis://localhost'\nuser = 'me'",
                "shared.user: is set without a password; add `password_env` or `password_file`",
            ),
        ] {
            assert_eq!(check(text).expect_err(text), [wanted], "{text}");
        }
    }
}
