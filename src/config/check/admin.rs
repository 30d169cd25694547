//! `[admin]`.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use rustls::crypto::ring;
use secrecy::ExposeSecret as _;
use tollgate_filter::settings::{At, Problems};
use tollgate_identity::Digest;
use tollgate_module::{Inputs as _, Named, world_readable};

use super::server::address;
use super::{CheckContext, required};
use crate::config::certificate;
use crate::config::raw::{RawAdmin, RawAdminTls, RawAdminToken};
use crate::config::settings::{Admin, AdminTls, AdminToken};

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// Minimum length of a token in characters: 32 hex digits have 128 bits.
const TOKEN_CHARS_MIN: usize = 32;

/// Maximum length of a token in characters.
const TOKEN_CHARS_MAX: usize = 512;

/// Maximum length of a token's name in characters.
const NAME_CHARS_MAX: usize = 40;

pub(super) fn admin(raw: &RawAdmin, context: &CheckContext<'_>, problems: &mut Problems) -> Admin {
    let tls = raw.tls.as_ref().and_then(|raw| tls(raw, context, problems));
    let has_authorities = raw.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    let address = raw.address.as_ref().and_then(|at| {
        let address = address("admin.address", at, problems)?;
        if address.ip().is_loopback() {
            return Some(address);
        }
        let remedy = match &raw.tls {
            None => {
                "which is reachable from other machines in plain text; use `127.0.0.1` or `[::1]`, or set `admin.tls`"
            }
            Some(_) if raw.token.is_empty() && !has_authorities => {
                "which is reachable from other machines by anyone; add an `[[admin.token]]`, or set `admin.tls.client_ca`"
            }
            Some(_) => return Some(address),
        };
        problems.note("admin.address", at, format_args!("is `{address}`, {remedy}"));
        None
    });
    Admin {
        address: address.unwrap_or(ADDRESS),
        tls,
        tokens: tokens(&raw.token, context, problems),
    }
}

fn tls(raw: &RawAdminTls, context: &CheckContext<'_>, problems: &mut Problems) -> Option<AdminTls> {
    let chain = required(
        problems,
        "admin.tls.certificate",
        raw.certificate.as_ref(),
        "the PEM file of the chain",
    );
    let private = required(
        problems,
        "admin.tls.key",
        raw.key.as_ref(),
        "the PEM file of the key",
    );
    let client_roots = match &raw.client_ca {
        None => None,
        Some(at) => {
            let read = certificate::read_roots(&context.path(at));
            let read = read.map_err(|error| problems.note("admin.tls.client_ca", at, error));
            Some(Arc::new(read.ok()?))
        }
    };
    let (chain, private) = (chain?, private?);
    let key_file = context.path(private);
    if context.is_world_readable(private) {
        problems.warn("admin.tls.key", world_readable(&key_file));
    }
    let pair = certificate::read_pair(&context.path(chain), &key_file, &ring::default_provider());
    match pair {
        Ok(certificate) => Some(AdminTls {
            certificate,
            client_roots,
        }),
        Err(error) if error.is_about_key(&key_file) => {
            problems.note("admin.tls.key", private, error);
            None
        }
        Err(error) => {
            problems.note("admin.tls.certificate", chain, error);
            None
        }
    }
}

fn tokens(
    raw: &[RawAdminToken],
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Vec<AdminToken> {
    let mut names = BTreeSet::new();
    let mut tokens = Vec::new();
    for (index, one) in raw.iter().enumerate() {
        let section = format!("admin.token.{index}");
        let role = one.role.check(format!("{section}.role"), problems);
        let digest = digest(&section, one, context, problems);
        let key = format!("{section}.name");
        let Some(at) = required(problems, &key, one.name.as_ref(), "`name = \"monitoring\"`")
        else {
            continue;
        };
        let name = at.value.as_str();
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.bytes().all(is_good) {
            let message = format_args!(
                "is not a name of a token; use 1 to {NAME_CHARS_MAX} letters, digits, `-`, `_` and `.`"
            );
            problems.note(key, at, message);
        } else if !names.insert(name) {
            problems.note(key, at, "is the name of another token too; use another one");
        }
        if let (Some(role), Some(digest)) = (role, digest) {
            tokens.push(AdminToken {
                name: name.into(),
                role,
                digest,
            });
        }
    }
    tokens
}

/// The digest of a token, or of the token that a variable or a file contains.
fn digest(
    section: &str,
    raw: &RawAdminToken,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<Digest> {
    let named = Named {
        section,
        variable: ("token_env", raw.token_env.as_ref()),
        file: ("token_file", raw.token_file.as_ref()),
    };
    let source = raw.token_env.as_ref().or(raw.token_file.as_ref());
    match (&raw.digest, source) {
        (None, None) => {
            let key = format!("{section}.token_env");
            problems.note_missing(key, "is missing; write it, `token_file` or `digest`");
            None
        }
        (Some(at), Some(_)) => {
            let message = "is set beside `token_env` or `token_file`; keep one of them";
            problems.note(format!("{section}.digest"), at, message);
            None
        }
        (Some(at), None) => {
            let read = read_digest(at);
            if read.is_none() {
                // The text may be the token itself, so the message does not repeat the text.
                let message = "is not `sha256:` and 64 hex digits; `printf %s \"$TOKEN\" | sha256sum` prints the digits";
                problems.note(format!("{section}.digest"), at, message);
            }
            read
        }
        (None, Some(at)) => {
            let token = named.read("token", context, problems)?;
            let token = token.expose_secret();
            let is_good = (TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX).contains(&token.len())
                && token.bytes().all(|byte| byte.is_ascii_graphic());
            if !is_good {
                let key = match raw.token_env {
                    Some(_) => "token_env",
                    None => "token_file",
                };
                let message = format_args!(
                    "names a token that is not {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} visible ASCII characters; create one with `openssl rand -hex 32`"
                );
                problems.note(format!("{section}.{key}"), at, message);
                return None;
            }
            Some(Digest::of(token.as_bytes()))
        }
    }
}

fn read_digest(at: &At<String>) -> Option<Digest> {
    let digits = at.value.strip_prefix("sha256:")?;
    let mut bytes = [0; 32];
    let read = base16ct::mixed::decode(digits, &mut bytes).ok()?;
    (read.len() == 32).then(|| Digest::from_bytes(bytes))
}
