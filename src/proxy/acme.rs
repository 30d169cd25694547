//! Responses to the challenges of certificate authorities (ACME): while an order is under way, its paths are answered before the routes
//! (http-01, RFC 8555 section 8.3), and handshakes for `acme-tls/1` with a certificate of their own (tls-alpn-01, RFC 8737).

use std::collections::HashMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use rustls::server::ClientHello;
use rustls::sign::CertifiedKey;
use tollgate_filter::{Reply, Request};

/// The protocol of validation handshakes (RFC 8737 section 6.2).
pub(super) const ACME_TLS: &[u8] = b"acme-tls/1";

/// The folder of the paths that an authority requests; the token follows.
const FOLDER: &str = "/.well-known/acme-challenge/";

/// The challenges to answer now, on every listener.
#[derive(Debug, Default)]
pub(crate) struct AcmeChallenges {
    pending: ArcSwap<Pending>,
}

#[derive(Clone, Debug, Default)]
struct Pending {
    /// Key authorizations by token.
    http: HashMap<Arc<str>, Bytes>,
    /// Certificates by name.
    tls: HashMap<Arc<str>, Arc<CertifiedKey>>,
}

/// A response to a challenge.
#[derive(Clone, Debug)]
pub(crate) enum ChallengeResponse {
    /// The key authorization, at the path of this token.
    Http { token: Arc<str>, body: Bytes },
    /// The certificate with the digest of the key authorization, for this name.
    Tls {
        name: Arc<str>,
        key: Arc<CertifiedKey>,
    },
}

/// Answers some challenges until dropped.
#[must_use]
pub(crate) struct AnsweredChallenges {
    challenges: Arc<AcmeChallenges>,
    responses: Vec<ChallengeResponse>,
}

impl AcmeChallenges {
    /// Answers these challenges from now on.
    pub(crate) fn answer(
        self: &Arc<AcmeChallenges>,
        responses: Vec<ChallengeResponse>,
    ) -> AnsweredChallenges {
        self.pending.rcu(|pending| {
            let mut pending = Pending::clone(pending);
            for response in responses.iter().cloned() {
                match response {
                    ChallengeResponse::Http { token, body } => {
                        pending.http.insert(token, body);
                    }
                    ChallengeResponse::Tls { name, key } => {
                        pending.tls.insert(name, key);
                    }
                }
            }
            pending
        });
        AnsweredChallenges {
            challenges: self.clone(),
            responses,
        }
    }

    /// The answer to a request for a challenge under way.
    pub(super) fn reply(&self, request: &Request) -> Option<Reply> {
        let token = request.path.strip_prefix(FOLDER)?;
        if request.method != Method::GET && request.method != Method::HEAD {
            return None;
        }
        let body = self.pending.load().http.get(token)?.clone();
        let mut reply = Reply::of(StatusCode::OK, "application/octet-stream", body);
        let no_store = HeaderValue::from_static("no-store");
        reply.headers.insert(header::CACHE_CONTROL, no_store);
        Some(reply)
    }

    /// Whether a handshake belongs to a validation, and the certificate for a challenge under way.
    pub(super) fn resolve(&self, hello: &ClientHello<'_>) -> Option<Option<Arc<CertifiedKey>>> {
        let mut offered = hello.alpn()?;
        if !offered.any(|protocol| protocol == ACME_TLS) {
            return None;
        }
        // A validation offers no other protocol (RFC 8737 section 3).
        let is_alone = hello.alpn().is_some_and(|offered| offered.count() == 1);
        let name = hello.server_name().filter(|_| is_alone);
        Some(name.and_then(|name| {
            let pending = self.pending.load();
            pending.tls.get(&*name.to_ascii_lowercase()).cloned()
        }))
    }
}

impl Drop for AnsweredChallenges {
    fn drop(&mut self) {
        self.challenges.pending.rcu(|pending| {
            let mut pending = Pending::clone(pending);
            for response in &self.responses {
                match response {
                    ChallengeResponse::Http { token, .. } => {
                        pending.http.remove(token);
                    }
                    ChallengeResponse::Tls { name, key } => {
                        // Another order may have replaced the challenge.
                        if pending
                            .tls
                            .get(name)
                            .is_some_and(|one| Arc::ptr_eq(one, key))
                        {
                            pending.tls.remove(name);
                        }
                    }
                }
            }
            pending
        });
    }
}
