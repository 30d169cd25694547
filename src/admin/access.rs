//! Access to the admin address: TLS, tokens of the admin API, and the limit of invalid tokens.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls::sign::SingleCertAndKey;
use tokio_rustls::TlsAcceptor;
use tollgate_clock::Clock;
use tollgate_filter::{AddressPrefix, ApiError, ErrorCode};
use tollgate_identity::Digest;

use crate::config::{Admin, AdminTls, AdminToken};

/// Maximum number of invalid tokens of an address answered with 401 in a window. Further invalid tokens get 429. A valid token of the
/// address is never refused.
const INVALID_MAX: u32 = 10;

/// Length of a window for the count of invalid tokens.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of addresses with a counter.
const ADDRESSES_MAX: usize = 1024;

/// Who may use the admin address. A reload replaces tokens and certificate.
pub struct Access {
    tokens: ArcSwap<Vec<AdminToken>>,
    tls: Option<ArcSwap<Tls>>,
    is_local: bool,
    clock: Clock,
    invalid: Mutex<HashMap<AddressPrefix, Invalid>>,
}

struct Tls {
    config: Arc<ServerConfig>,
    /// Whether every client has a certificate of an authority in the settings.
    has_authorities: bool,
}

/// Invalid tokens of an address.
struct Invalid {
    count: u32,
    /// By the monotonic clock.
    window_end: Duration,
}

impl Access {
    /// Access according to `settings`.
    pub fn new(settings: &Admin, clock: Clock) -> Access {
        Access {
            tokens: ArcSwap::from_pointee(settings.tokens.clone()),
            tls: settings
                .tls
                .as_ref()
                .map(|tls| ArcSwap::from_pointee(Tls::of(tls))),
            is_local: settings.address.ip().is_loopback(),
            clock,
            invalid: Mutex::default(),
        }
    }

    /// Replaces the tokens from the next request on, and the certificate from the next handshake on. TLS itself is turned neither on nor
    /// off.
    pub(crate) fn replace(&self, settings: &Admin) {
        self.tokens.store(Arc::new(settings.tokens.clone()));
        if let (Some(tls), Some(new)) = (&self.tls, &settings.tls) {
            tls.store(Arc::new(Tls::of(new)));
        }
    }

    /// TLS for the next connection, and whether the client is known by a certificate; `None` without TLS.
    pub(super) fn acceptor(&self) -> Option<(TlsAcceptor, bool)> {
        let tls = self.tls.as_ref()?.load();
        Some((TlsAcceptor::from(tls.config.clone()), tls.has_authorities))
    }

    /// The clock for the windows of invalid tokens.
    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether the admin address is a loopback address. On loopback, health, metrics and cache need no token.
    pub(super) fn is_local(&self) -> bool {
        self.is_local
    }

    /// The token of a request.
    ///
    /// # Errors
    ///
    /// 401 without a valid token; 429 for an address with too many invalid tokens.
    pub(super) fn token(
        &self,
        headers: &HeaderMap,
        peer: SocketAddr,
    ) -> Result<AdminToken, ApiError> {
        let tokens = self.tokens.load();
        let mut fields = headers.get_all(header::AUTHORIZATION).iter();
        let (Some(field), None) = (fields.next(), fields.next()) else {
            let message = match tokens.is_empty() {
                true => {
                    "The admin API needs a token, and the settings have none: add an `[[admin.token]]`."
                }
                false => "Send a token of the admin API: `Authorization: Bearer TOKEN`.",
            };
            return Err(challenge(ErrorCode::MissingCredential, message));
        };
        let bearer = field.as_bytes().split_at_checked(7);
        let sent = bearer.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        let digest = Digest::of(sent.map_or(b"", |(_, token)| token.trim_ascii()));
        // Every token is compared, in constant time per token.
        let found = tokens.iter().fold(None, |found, token| {
            if token.digest == digest {
                Some(token)
            } else {
                found
            }
        });
        match found {
            Some(token) if sent.is_some() => Ok(token.clone()),
            _ => Err(self.refuse_invalid(peer.ip())),
        }
    }

    /// Counts an invalid token of an address.
    fn refuse_invalid(&self, address: IpAddr) -> ApiError {
        let now = self.clock.elapsed();
        let mut invalid = self.invalid.lock();
        let prefix = AddressPrefix::of(address);
        if invalid.len() >= ADDRESSES_MAX && !invalid.contains_key(&prefix) {
            invalid.retain(|_, of_one| of_one.window_end > now);
            if invalid.len() >= ADDRESSES_MAX {
                let oldest = invalid.iter().min_by_key(|(_, of_one)| of_one.window_end);
                let oldest = oldest.map(|(prefix, _)| *prefix);
                oldest.and_then(|oldest| invalid.remove(&oldest));
            }
        }
        let of_one = invalid.entry(prefix).or_insert(Invalid {
            count: 0,
            window_end: now + WINDOW,
        });
        if of_one.window_end <= now {
            *of_one = Invalid {
                count: 0,
                window_end: now + WINDOW,
            };
        }
        of_one.count = of_one.count.saturating_add(1);
        if of_one.count > INVALID_MAX {
            let wait = of_one.window_end.saturating_sub(now);
            let message = "Too many invalid tokens from this address: wait, and correct the token.";
            return ApiError::new(ErrorCode::RateLimitExceeded, message).retry_after(wait);
        }
        tracing::warn!(%address, "refused invalid admin token");
        let message = "The token is not one of the settings: correct it, or add it to `[[admin.token]]` and reload.";
        challenge(ErrorCode::InvalidCredential, message)
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// RFC 6750 section 3.
fn challenge(code: ErrorCode, message: &'static str) -> ApiError {
    let value = match code {
        ErrorCode::InvalidCredential => "Bearer realm=\"admin\", error=\"invalid_token\"",
        _ => "Bearer realm=\"admin\"",
    };
    ApiError::new(code, message).header(header::WWW_AUTHENTICATE, HeaderValue::from_static(value))
}

impl Tls {
    fn of(settings: &AdminTls) -> Tls {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .expect("ring speaks both versions");
        let builder = match &settings.client_roots {
            None => builder.with_no_client_auth(),
            Some(roots) => builder.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(roots.clone(), provider)
                    .build()
                    .expect("the settings have an authority, and no revocation lists"),
            ),
        };
        let key = SingleCertAndKey::from(settings.certificate.key.clone());
        let mut config = builder.with_cert_resolver(Arc::new(key));
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Tls {
            config: Arc::new(config),
            has_authorities: settings.client_roots.is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_clock::Timestamp;

    use super::*;
    use crate::config::AdminRole;

    const TOKEN: &str = "0123456789abcdef0123456789abcdef";

    fn settings(tokens: &[(&str, AdminRole, &str)]) -> Admin {
        let tokens = tokens.iter().map(|(name, role, token)| AdminToken {
            name: Arc::from(*name),
            role: *role,
            digest: Digest::of(token.as_bytes()),
        });
        Admin {
            address: "127.0.0.1:0".parse().expect("an address"),
            tls: None,
            tokens: tokens.collect(),
        }
    }

    fn sent(access: &Access, from: &str, field: Option<&str>) -> Result<String, u16> {
        let mut headers = HeaderMap::new();
        if let Some(field) = field {
            let value = HeaderValue::from_str(field).expect("a field");
            headers.insert(header::AUTHORIZATION, value);
        }
        let peer = SocketAddr::new(from.parse().expect("an address"), 1);
        let token = access.token(&headers, peer);
        token
            .map(|token| token.name.to_string())
            .map_err(|error| error.status().as_u16())
    }

    #[test]
    fn a_token_is_found_among_all_and_replaced_by_a_reload() {
        let (clock, _) = Clock::manual(Timestamp::from_secs(1));
        let other = "f".repeat(32);
        let all = [
            ("a", AdminRole::Read, TOKEN),
            ("b", AdminRole::Operate, &other),
        ];
        let access = Access::new(&settings(&all), clock);
        let local = "127.0.0.1";
        for (field, found) in [
            (Some(format!("Bearer {TOKEN}")), Ok("a")),
            (Some(format!("bearer {other}")), Ok("b")),
            (Some(format!("Basic {TOKEN}")), Err(401)),
            (Some(TOKEN.to_owned()), Err(401)),
            (Some("Bearer ".to_owned()), Err(401)),
            (Some(format!("Bearer {TOKEN}0")), Err(401)),
            (None, Err(401)),
        ] {
            let answer = sent(&access, local, field.as_deref());
            assert_eq!(answer, found.map(str::to_owned), "{field:?}");
        }
        access.replace(&settings(&all[1..]));
        let old = format!("Bearer {TOKEN}");
        assert_eq!(sent(&access, local, Some(&old)), Err(401));
    }

    #[test]
    fn invalid_tokens_are_limited_by_address_and_valid_ones_never() {
        let (clock, manual) = Clock::manual(Timestamp::from_secs(1));
        let access = Access::new(&settings(&[("a", AdminRole::Read, TOKEN)]), clock);
        let valid = format!("Bearer {TOKEN}");
        let guess = |from: &str| sent(&access, from, Some("Bearer guess"));
        for _ in 0..INVALID_MAX {
            assert_eq!(guess("10.0.0.1"), Err(401));
        }
        assert_eq!(guess("10.0.0.1"), Err(429));
        assert_eq!(guess("10.0.0.2"), Err(401), "another address");
        assert_eq!(sent(&access, "10.0.0.1", Some(&valid)), Ok("a".to_owned()));
        assert_eq!(sent(&access, "10.0.0.1", None), Err(401), "no token");
        manual.advance(WINDOW);
        assert_eq!(guess("10.0.0.1"), Err(401));
        for number in 0..3000u32 {
            let address = std::net::Ipv4Addr::from_bits(0x0b00_0000 + number).to_string();
            assert_eq!(guess(&address), Err(401));
        }
        let counted = access.invalid.lock().len();
        assert_eq!(counted, ADDRESSES_MAX);
    }
}
