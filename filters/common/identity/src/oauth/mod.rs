//! What an authorization server decides (RFC 6749), without knowing how it was asked: clients, requests for authorization, decisions,
//! codes, tokens and the families that they belong to.
//!
//! A request that was found sound waits as *pending* for one session's decision. Allowing it makes a *grant*, the head of a family: its
//! code, the tokens that come from it, and their successors end with it. Everything that may happen once happens inside one unit of work
//! of the store, so that of two who do it at the same instant one at most succeeds.

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
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tollgate_store::{
    Admission, ClientRow, CommitError, GrantRow, OAuthPart, OAuthRefusal, Part, ReadError, Refusal,
    Store, UnitOfWork, commit, reading,
};
use zeroize::Zeroizing;

use crate::form::Form;

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

/// How long a code works.
const CODE_LIFETIME: Duration = Duration::from_secs(60);

/// Requests that may name a code and be refused before it works no more.
const CODE_REFUSALS_MAX: u32 = 5;

/// How long a person may take to decide.
const PENDING_LIFETIME: Duration = Duration::from_secs(600);

/// Requests that may wait for a decision at once; the oldest above it go.
const PENDING_MAX: u32 = 20_000;

/// A client that was never allowed anything is forgotten after this.
const UNUSED_CLIENT_RETENTION: Duration = Duration::from_secs(24 * 3600);

/// A client that was, this long after the last time.
const USED_CLIENT_RETENTION: Duration = Duration::from_secs(90 * 24 * 3600);

/// How long grants and tokens are kept after their end.
const ENDED_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// From one look for what can be forgotten to the next.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// The most rows of a kind that go at once.
const CLEANUP_ROWS_MAX: u32 = 1000;

/// Bytes of the id that registration makes, after `c_`.
const CLIENT_ID_CHARS: usize = 22;

/// How long things last, and how many there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OAuthSettings {
    /// The life of an access token.
    pub access_token: Duration,
    /// Refresh tokens, where there are any.
    pub refresh: Option<RefreshSettings>,
    /// Clients that were never allowed anything, at most; the oldest above it go.
    pub unused_clients_max: u32,
}

impl Default for OAuthSettings {
    fn default() -> OAuthSettings {
        OAuthSettings {
            access_token: Duration::from_secs(3600),
            refresh: None,
            unused_clients_max: 10_000,
        }
    }
}

/// How long refresh tokens last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefreshSettings {
    /// Unused.
    pub idle: Duration,
    /// From the decision on, however often they are used.
    pub absolute: Duration,
    /// A token just spent may be spent again for so long, by a client that lost the answer. Zero: never.
    pub grace: Duration,
}

/// What a request says about something it may leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requested {
    /// Nothing.
    Omitted,
    /// Something that is none of the service's.
    Unknown,
    /// These bits.
    Bits(u32),
}

/// The wall clock in Unix microseconds.
pub type Now = Box<dyn Fn() -> i64 + Send + Sync>;

/// Fills a slice with random bytes.
pub type Draw = Box<dyn Fn(&mut [u8]) + Send + Sync>;

/// What an [`AuthorizationServer`] is made of.
pub struct AuthorizationServerDeps<'a> {
    /// Where everything is kept.
    pub store: Arc<dyn Store>,
    /// The service's own word, for the form of codes and tokens.
    pub service: &'a str,
    /// The issuer identifier, byte for byte as metadata has it (RFC 8414 section 2).
    pub issuer: Arc<str>,
    /// How long things last.
    pub settings: OAuthSettings,
    /// The wall clock.
    pub now: Now,
    /// Randomness.
    pub draw: Draw,
}

/// The authorization server.
pub struct AuthorizationServer {
    store: Arc<dyn Store>,
    issuer: Arc<str>,
    settings: OAuthSettings,
    access_form: Form,
    refresh_form: Form,
    code_form: Form,
    /// Makes the successor of a refresh token.
    successor_key: Zeroizing<[u8; 32]>,
    now: Now,
    draw: Draw,
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
            now,
            draw,
        } = deps;
        let root = store.root_secret();
        AuthorizationServer {
            successor_key: Zeroizing::new(blake3::derive_key(
                "tollgate 2026 successors of refresh tokens",
                &root.0,
            )),
            access_form: Form::access_token(service),
            refresh_form: Form::refresh_token(service),
            code_form: Form::authorization_code(service),
            store,
            issuer,
            settings,
            now,
            draw,
            forgotten_at: AtomicI64::new(i64::MIN),
        }
    }

    /// The issuer identifier.
    pub fn issuer(&self) -> &str {
        &self.issuer
    }

    /// How long things last.
    pub fn settings(&self) -> &OAuthSettings {
        &self.settings
    }

    /// Registers a client and returns it with its id: `c_` and 22 characters of base62.
    pub async fn register(&self, client: &CheckedClient) -> Result<ClientRow, CommitError> {
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
            created_at: (self.now)(),
            used_at: None,
        };
        self.commit([OAuthPart::InsertClient {
            client: row.clone(),
            unused_max: self.settings.unused_clients_max,
        }
        .into_part()])
            .await?;
        Ok(row)
    }

    /// A client that has registered, or that somebody has allowed something.
    pub async fn client(&self, id: &str) -> Result<Option<ClientRow>, ReadError> {
        let id = id.to_owned();
        reading(&self.store, move |read| read.oauth_client(&id)).await
    }

    /// Forgets what can no longer matter, now and then: call it as often as is convenient. Nobody waits for it.
    pub fn forget(&self) {
        let now = (self.now)();
        if now.saturating_sub(self.forgotten_at.load(Ordering::Relaxed)) < micros(CLEANUP_INTERVAL)
        {
            return;
        }
        self.forgotten_at.store(now, Ordering::Relaxed);
        let part = OAuthPart::Forget {
            now,
            unused_before: now - micros(UNUSED_CLIENT_RETENTION),
            used_before: now - micros(USED_CLIENT_RETENTION),
            ended_before: now - micros(ENDED_RETENTION),
            limit: CLEANUP_ROWS_MAX,
        };
        // One that is not taken is tried again the next time.
        let _ = self.store.submit(
            UnitOfWork::of(part.into_part(), Admission::Notes),
            Box::new(|_| {}),
        );
    }

    async fn commit(&self, parts: impl IntoIterator<Item = Part>) -> Result<(), CommitError> {
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Begins))
            .await
            .map(|_| ())
    }

    /// Writes what takes something away. A store that is busy takes it all the same: whoever holds a stolen token must not be let in for
    /// longer because others ask for much.
    async fn end(&self, parts: impl IntoIterator<Item = Part>) -> Result<(), CommitError> {
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Ends))
            .await
            .map(|_| ())
    }

    /// Ends a family.
    async fn revoke_family(&self, grant: &GrantRow) -> Result<(), CommitError> {
        self.end([OAuthPart::RevokeGrant {
            id: grant.id,
            account: grant.account,
            at: (self.now)(),
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

/// A part as a unit of work takes it.
trait IntoPart {
    fn into_part(self) -> Part;
}

impl IntoPart for OAuthPart {
    fn into_part(self) -> Part {
        Part::OAuth(Box::new(self))
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// What the data said against a unit of work, where that is a matter of this part.
fn refusal(error: &CommitError) -> Option<OAuthRefusal> {
    match error {
        CommitError::Refused(Refusal::OAuth(refusal)) => Some(*refusal),
        _ => None,
    }
}
