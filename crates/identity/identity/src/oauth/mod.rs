//! Authorization server (RFC 6749), independent of HTTP: clients, authorization requests, decisions, codes, tokens and token families.
//!
//! A valid request is stored as *pending* until the decision of one session. Permission creates a *grant*, the head of a token family:
//! code, tokens and their successors end with the grant. Every single-use step is one unit of work of the store, so at most one of two
//! concurrent attempts succeeds.

mod apps;
mod authorization_response;
mod client;
mod exchange;
mod pending;
mod pkce;
mod redirect;
mod refresh;
mod revoke;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tollgate_clock::{Clock, Timestamp};
use tollgate_store::{
    Admission, ClientRow, CommitError, GrantRow, OAuthPart, OAuthRefusal, Part, ReadError, Refusal,
    Store, UnitOfWork, commit, reading,
};
use zeroize::Zeroizing;

use crate::form::Form;
use crate::network::network_of;

pub use apps::App;
pub use authorization_response::{AuthorizationError, response_url};
pub use client::{CheckedClient, ClientError, ClientMetadata};
pub use exchange::{CodeRequest, TokenError, TokenResponse};
pub use pending::{AuthorizationRequest, DecideError, Decider, Pending, PendingId};
pub use pkce::Challenge;
pub use redirect::{
    Destination, RedirectUri, RedirectUriError, form_action_source, redirect_matches,
};
pub use refresh::RefreshRequest;
pub use revoke::RevokeError;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Lifetime of an authorization code.
const CODE_LIFETIME: Duration = Duration::from_secs(60);

/// Failed requests after which a code is invalid.
const CODE_REFUSALS_MAX: u32 = 5;

/// Lifetime of a pending request.
const PENDING_LIFETIME: Duration = Duration::from_secs(600);

/// Maximum number of pending requests; the oldest are dropped.
const PENDING_MAX: u32 = 20_000;

/// Retention of other clients after their last use.
const USED_CLIENT_RETENTION: Duration = DAY.saturating_mul(90);

/// Retention of grants and tokens after their end.
const ENDED_RETENTION: Duration = DAY.saturating_mul(7);

/// Interval of clean-ups.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// Rows of a kind deleted at once.
const CLEANUP_ROWS_MAX: u32 = 1000;

/// Characters of a registered client id after `c_`.
const CLIENT_ID_CHARS: usize = 22;

/// Lifetimes and limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OAuthSettings {
    /// Lifetime of an access token.
    pub access_token: Duration,
    /// Refresh tokens, if issued.
    pub refresh: Option<RefreshSettings>,
    /// Maximum number of never authorized clients. Above the maximum, the network with most clients loses its oldest client.
    pub unused_clients_max: u32,
    /// Retention of never authorized clients.
    pub unused_clients: Duration,
}

impl Default for OAuthSettings {
    fn default() -> OAuthSettings {
        OAuthSettings {
            access_token: Duration::from_secs(3600),
            refresh: Some(RefreshSettings::default()),
            unused_clients_max: 10_000,
            unused_clients: 30 * DAY,
        }
    }
}

/// Lifetimes of refresh tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefreshSettings {
    /// Without use.
    pub idle: Duration,
    /// From the authorization on, regardless of use.
    pub absolute: Duration,
    /// Grace period for a second acceptance of a spent token, for clients that lost the answer. Zero: no grace.
    pub grace: Duration,
}

impl Default for RefreshSettings {
    fn default() -> RefreshSettings {
        RefreshSettings {
            idle: 30 * DAY,
            absolute: 90 * DAY,
            grace: Duration::from_secs(10),
        }
    }
}

/// Value of an optional request parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    Omitted,
    /// Unknown to the service.
    Unknown,
    /// These bits.
    Bits(u32),
}

/// Fills a slice with random bytes.
pub type Draw = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// Dependencies of an [`AuthorizationServer`].
pub struct AuthorizationServerDeps<'a> {
    /// Store of clients, grants and tokens.
    pub store: Arc<dyn Store>,
    /// The service's short name, part of the form of codes and tokens.
    pub service: &'a str,
    /// The issuer identifier, byte for byte as in the metadata (RFC 8414 section 2).
    pub issuer: Arc<str>,
    /// Lifetimes and limits.
    pub settings: OAuthSettings,
    pub clock: Clock,
    /// Random source.
    pub draw: Draw,
}

pub struct AuthorizationServer {
    store: Arc<dyn Store>,
    issuer: Arc<str>,
    settings: OAuthSettings,
    access_form: Form,
    refresh_form: Form,
    code_form: Form,
    /// Derives the successor of a refresh token.
    successor_key: Zeroizing<[u8; 32]>,
    /// Of the digests of networks.
    network_key: Zeroizing<[u8; 32]>,
    clock: Clock,
    draw: Draw,
    /// The last clean-up, in microseconds since 1970.
    forgotten_at: AtomicI64,
}

impl AuthorizationServer {
    /// A server over a store.
    pub fn new(deps: AuthorizationServerDeps<'_>) -> AuthorizationServer {
        let AuthorizationServerDeps {
            store,
            service,
            issuer,
            settings,
            clock,
            draw,
        } = deps;
        let root = store.root_secret();
        let key = |purpose: &str| Zeroizing::new(blake3::derive_key(purpose, &root.0));
        AuthorizationServer {
            successor_key: key("tollgate 2026 successors of refresh tokens"),
            network_key: key("tollgate 2026 networks of clients"),
            access_form: Form::access_token(service),
            refresh_form: Form::refresh_token(service),
            code_form: Form::authorization_code(service),
            store,
            issuer,
            settings,
            clock,
            draw,
            forgotten_at: AtomicI64::new(Timestamp::MIN.as_micros()),
        }
    }

    /// The issuer identifier.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// Lifetimes and limits.
    pub fn settings(&self) -> &OAuthSettings {
        &self.settings
    }

    /// Registers a client and returns the client with an id: `c_` and 22 characters of base62. `requester`: the address for the count of
    /// registrations.
    pub async fn register(
        &self,
        client: &CheckedClient,
        requester: Option<IpAddr>,
    ) -> Result<ClientRow, CommitError> {
        let mut random = Zeroizing::new([0; 32]);
        (self.draw)(&mut *random);
        let id = crate::form::base62::<CLIENT_ID_CHARS>(&random);
        let id: String = "c_"
            .chars()
            .chain(id.iter().copied().map(char::from))
            .collect();
        let row = ClientRow {
            id: Arc::from(id),
            name: client.name.clone(),
            redirect_uris: client
                .redirect_uris
                .iter()
                .map(|uri| Arc::from(uri.as_str()))
                .collect(),
            refresh: client.refresh,
            document: false,
            created_at: self.clock.now(),
            used_at: None,
        };
        self.commit([OAuthPart::InsertClient {
            client: row.clone(),
            network: requester.map(|address| self.network_digest(address)),
            unused_max: self.settings.unused_clients_max,
        }
        .into_part()])
            .await?;
        Ok(row)
    }

    fn network_digest(&self, address: IpAddr) -> [u8; 16] {
        let (kind, bytes) = network_of(address);
        let whole = blake3::keyed_hash(&self.network_key, &[kind, &bytes].concat());
        let mut digest = [0; 16];
        digest.copy_from_slice(&whole.as_bytes()[..16]);
        digest
    }

    /// A registered or authorized client.
    pub async fn client(&self, id: &str) -> Result<Option<ClientRow>, ReadError> {
        let id = id.to_owned();
        reading(&self.store, move |read| read.oauth_client(&id)).await
    }

    /// Deletes obsolete rows at most once per interval; may be called on any occasion. Does not wait for the write.
    pub fn forget(&self) {
        let now = self.clock.now();
        let forgotten_at = Timestamp::from_micros(self.forgotten_at.load(Ordering::Relaxed));
        if now.duration_since(forgotten_at) < CLEANUP_INTERVAL {
            return;
        }
        self.forgotten_at.store(now.as_micros(), Ordering::Relaxed);
        let part = OAuthPart::Forget {
            now,
            unused_before: now - self.settings.unused_clients,
            used_before: now - USED_CLIENT_RETENTION,
            ended_before: now - ENDED_RETENTION,
            limit: CLEANUP_ROWS_MAX,
        };
        // A write without admission is repeated at the next interval.
        let _ = self.store.submit(
            UnitOfWork::of(part.into_part(), Admission::BestEffort),
            Box::new(|_| {}),
        );
    }

    async fn commit(&self, parts: impl IntoIterator<Item = Part>) -> Result<(), CommitError> {
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Normal))
            .await
            .map(|_| ())
    }

    /// Writes a revocation. Admitted under load too: a stolen token must not stay valid because the store is busy.
    async fn end(&self, parts: impl IntoIterator<Item = Part>) -> Result<(), CommitError> {
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Always))
            .await
            .map(|_| ())
    }

    /// Revokes a token family.
    async fn revoke_family(&self, grant: &GrantRow) -> Result<(), CommitError> {
        self.end([OAuthPart::RevokeGrant {
            id: grant.id,
            account: grant.account,
            at: self.clock.now(),
        }
        .into_part()])
            .await
    }
}

impl fmt::Debug for AuthorizationServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorizationServer")
            .field("issuer", &self.issuer)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// Conversion to a part of a unit of work.
trait IntoPart {
    fn into_part(self) -> Part;
}

impl IntoPart for OAuthPart {
    fn into_part(self) -> Part {
        Part::OAuth(Box::new(self))
    }
}

/// The refusal of a unit of work, if it concerns OAuth.
fn refusal(error: &CommitError) -> Option<OAuthRefusal> {
    match error {
        CommitError::Refused(Refusal::OAuth(refusal)) => Some(*refusal),
        _ => None,
    }
}
