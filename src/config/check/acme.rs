//! Validation of `listener[].tls[].acme`.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use rustls::pki_types::{DnsName, ServerName};
use secrecy::{ExposeSecret, SecretSlice};
use tollgate_filter::settings::{At, BaseUrl, Problems};
use tollgate_module::Named;

use super::{CheckContext, required, whole};
use crate::config::acme::{AcmeChallenge, AcmeOrder, ExternalAccount, LETS_ENCRYPT};
use crate::config::certificate;
use crate::config::raw::{RawAcme, RawListener};

/// The most names of a certificate, as at Let's Encrypt.
const NAMES_MAX: usize = 100;

pub(super) fn order(
    (listener, number): (usize, usize),
    raw: &RawAcme,
    of: &RawListener,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<AcmeOrder> {
    let section = format!("listener.{listener}.tls.{number}.acme");
    let key = |name: &str| format!("{section}.{name}");
    let example = "the names of the certificate, such as `names = [\"api.example.net\"]`";
    let names = required(problems, key("names"), raw.names.as_ref(), example);
    let names = names.and_then(|at| names_of(&key("names"), at, problems));
    let contact = raw.contact.as_ref().map_or_else(Vec::new, |at| {
        let each = at.value.iter().enumerate();
        each.filter_map(|(number, at)| contact(&key(&format!("contact.{number}")), at, problems))
            .collect()
    });
    if !raw.terms_agreed.is_on() {
        let message = "is not `true`; read the authority's terms of service (`https://letsencrypt.org/repository/` by default) and write \
                       `terms_agreed = true`, without which it has no account for the gateway";
        match raw.terms_agreed.written() {
            Some(at) => problems.note(key("terms_agreed"), at, message),
            None => problems.note_missing(key("terms_agreed"), message),
        }
    }
    let directory = match &raw.directory {
        None => LETS_ENCRYPT,
        Some(at) => directory(&key("directory"), at, problems)?,
    };
    let roots = raw.ca_file.as_ref().and_then(|at| {
        certificate::read_certificates(&context.path(at))
            .map_err(|error| problems.note(key("ca_file"), at, error))
            .ok()
    });
    let challenge = raw
        .challenge
        .check(key("challenge"), problems)
        .unwrap_or_default();
    if challenge == AcmeChallenge::TlsAlpn01
        && let (Some(at), Some(_)) = (raw.challenge.written(), &of.client_ca)
    {
        let message = "is `tls-alpn-01` beside `client_ca`: the authority has no certificate of a client, and its handshake would be \
                       refused; use `http-01`";
        problems.note(key("challenge"), at, message);
    }
    let external_account = external_account(&section, raw, context, problems);
    let retry = Duration::from_secs(whole(&raw.retry_secs, key("retry_secs"), problems));
    Some(AcmeOrder {
        names: names?,
        contact,
        directory: directory.into(),
        roots,
        challenge,
        external_account,
        retry,
    })
}

fn names_of(key: &str, at: &At<Vec<At<String>>>, problems: &mut Problems) -> Option<Vec<Arc<str>>> {
    if at.value.is_empty() || at.value.len() > NAMES_MAX {
        let message = format_args!("has {} names; write 1 to {NAMES_MAX}", at.value.len());
        problems.note(key, at, message);
        return None;
    }
    let mut names: BTreeSet<Arc<str>> = BTreeSet::new();
    for (number, at) in at.value.iter().enumerate() {
        let key = format!("{key}.{number}");
        let name = at.value.to_ascii_lowercase();
        let problem = if name.starts_with("*.") {
            Some("is a wildcard, which needs a challenge by DNS that the gateway does not have; write each name".to_owned())
        } else if matches!(
            ServerName::try_from(name.as_str()),
            Ok(ServerName::IpAddress(_))
        ) {
            Some("is an address; write a DNS name".to_owned())
        } else if DnsName::try_from(name.as_str()).is_err() || name.ends_with('.') {
            Some(format!(
                "is `{}`; write a DNS name in ASCII without a final dot, such as `api.example.net`",
                at.value
            ))
        } else if !names.insert(name.into()) {
            Some("is there twice; remove one".to_owned())
        } else {
            None
        };
        if let Some(problem) = problem {
            problems.note(key, at, problem);
        }
    }
    (!names.is_empty()).then(|| names.into_iter().collect())
}

fn contact(key: &str, at: &At<String>, problems: &mut Problems) -> Option<String> {
    let address = at.value.strip_prefix("mailto:").unwrap_or(&at.value);
    let good = address
        .split_once('@')
        .is_some_and(|(name, host)| !name.is_empty() && !host.is_empty())
        && address.is_ascii()
        && !address.contains([' ', ',', '?', '<', '>']);
    if !good {
        let message = format_args!(
            "is `{}`; write a mail address, such as `ops@example.net`",
            at.value
        );
        problems.note(key, at, message);
    }
    good.then(|| format!("mailto:{address}"))
}

fn directory<'a>(key: &str, at: &'a At<String>, problems: &mut Problems) -> Option<&'a str> {
    let url: BaseUrl = problems.parse(key, at)?;
    if !url.tls {
        problems.note(key, at, "is not `https`, which RFC 8555 requires");
    }
    Some(&at.value)
}

fn external_account(
    section: &str,
    raw: &RawAcme,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<ExternalAccount> {
    let named = Named {
        section,
        variable: ("mac_key_env", raw.mac_key_env.as_ref()),
        file: ("mac_key_file", raw.mac_key_file.as_ref()),
    };
    let variable = raw.mac_key_env.as_ref().map(|at| ("mac_key_env", at));
    let file = raw.mac_key_file.as_ref().map(|at| ("mac_key_file", at));
    let secret = named.read("MAC key", context, problems);
    match (&raw.key_id, variable.or(file)) {
        (None, None) => None,
        (Some(at), None) => {
            let message = "is set without `mac_key_env` or `mac_key_file`; name the MAC key that the authority gave with it";
            problems.note(format!("{section}.key_id"), at, message);
            None
        }
        (None, Some((name, at))) => {
            let message =
                "is set without `key_id`; write the id that the authority gave with the key";
            problems.note(format!("{section}.{name}"), at, message);
            None
        }
        (Some(key_id), Some((name, at))) => {
            let secret = secret?;
            // Authorities give it in base64url (RFC 8555 section 7.3.4), with or without padding.
            let text = secret.expose_secret().trim().trim_end_matches('=');
            let mac_key = BASE64_URL_SAFE_NO_PAD.decode(text).ok();
            let mac_key = mac_key.filter(|bytes| !bytes.is_empty());
            if mac_key.is_none() {
                let message =
                    "names a MAC key that is no base64url text; use it as the authority gave it";
                problems.note(format!("{section}.{name}"), at, message);
            }
            Some(ExternalAccount {
                key_id: key_id.value.as_str().into(),
                mac_key: SecretSlice::from(mac_key?),
            })
        }
    }
}
