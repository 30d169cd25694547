//! Test bed: a server over a store, with a manual clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use tollgate_clock::{Clock, ManualClock, Timestamp};
use tollgate_identity::oauth::{
    AuthorizationRequest, AuthorizationServer, AuthorizationServerDeps, Challenge, ClientMetadata,
    CodeRequest, DecideError, Decider, OAuthSettings, PendingId, RefreshRequest, Requested,
    TokenError, TokenResponse,
};
use tollgate_identity::{Credential, Credentials, Form, NewAccount, create_account};
use tollgate_money::{AccountId, LoginId, Micros};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, CacheScope, LoginKind, NewLogin, NewSession, Part, RootSecret, SigninPart, Store,
    UnitOfWork, commit,
};

pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// The unit of stored times.
pub(crate) const MICROSECOND: Duration = Duration::from_micros(1);
pub(crate) const API: u32 = 1;
pub(crate) const MCP: u32 = 2;
pub(crate) const ISSUER: &str = "https://api.svc.example";
pub(crate) const REDIRECT: &str = "https://app.example/cb";
pub(crate) const SESSION: [u8; 32] = [1; 32];

/// The pair of RFC 7636, appendix B.
pub(crate) const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
pub(crate) const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";

pub(crate) struct Bench {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) credentials: Arc<Credentials>,
    pub(crate) server: Arc<AuthorizationServer>,
    pub(crate) account: AccountId,
    time: (Clock, ManualClock),
    drawn: Arc<AtomicU64>,
    settings: OAuthSettings,
    folder: TempDir,
}

/// The default: access tokens of one hour, refresh tokens of 30 and 90 days, and ten seconds of grace.
pub(crate) fn with_refresh() -> OAuthSettings {
    OAuthSettings::default()
}

/// Without refresh tokens.
pub(crate) fn without_refresh() -> OAuthSettings {
    OAuthSettings {
        refresh: None,
        ..OAuthSettings::default()
    }
}

impl Bench {
    pub(crate) async fn new() -> Bench {
        Bench::with(without_refresh()).await
    }

    pub(crate) async fn with(settings: OAuthSettings) -> Bench {
        let folder = TempDir::new().expect("a folder");
        let (time, drawn) = (Clock::manual(NOW), Arc::default());
        let none = AccountId::from_bytes([0; 16]);
        let mut bench = Bench::open(folder, time, drawn, settings, none);
        bench.account = bench.new_account().await;
        bench.sign_in().await;
        bench
    }

    fn open(
        folder: TempDir,
        time: (Clock, ManualClock),
        drawn: Arc<AtomicU64>,
        settings: OAuthSettings,
        account: AccountId,
    ) -> Bench {
        let clock = time.0.clone();
        let now = clock.now();
        let mut options = Options::new(now, RootSecret([7; 32]));
        // Reads see every write either way, and a sync for each step would take most of the time.
        options.durability = Durability::Process;
        let store = sqlite::open(&folder.path().join("books.db"), options).expect("a store");
        let draws = drawn.clone();
        let server = AuthorizationServer::new(AuthorizationServerDeps {
            store: store.clone(),
            service: "svc",
            issuer: Arc::from(ISSUER),
            settings,
            clock,
            draw: Box::new(move |out| draw(&draws, out)),
        });
        Bench {
            credentials: Credentials::open(&store),
            server: Arc::new(server),
            store,
            account,
            time,
            drawn,
            settings,
            folder,
        }
    }

    /// A crash, at any point.
    pub(crate) fn restart(self) -> Bench {
        self.store.close();
        drop(self.server);
        Bench::open(
            self.folder,
            self.time,
            self.drawn,
            self.settings,
            self.account,
        )
    }

    /// Begins the session that decides, which outlasts the test.
    async fn sign_in(&self) {
        let login = LoginId::from_bytes([1; 16]);
        let parts = [
            Part::InsertLogin(Box::new(NewLogin {
                id: login,
                account: self.account,
                kind: LoginKind::Email,
                address: Arc::from("ada@example.com"),
                verified_at: None,
                created_at: NOW,
            })),
            Part::Signin(Box::new(SigninPart::StartSession {
                session: NewSession {
                    hash: SESSION,
                    account: self.account,
                    login,
                    started_at: NOW,
                    confirmed_at: NOW,
                    seen_at: NOW,
                    expires_at: Timestamp::MAX,
                    draft: None,
                },
                replaces: None,
            })),
        ];
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        commit(&*self.store, unit).await.expect("a session");
    }

    /// The account owner, whose session has this lineage.
    pub(crate) fn decider(&self, lineage: [u8; 32]) -> Decider {
        Decider {
            session: SESSION,
            lineage,
            account: self.account,
        }
    }

    pub(crate) async fn new_account(&self) -> AccountId {
        let account = NewAccount {
            logins: Vec::new(),
            class: Arc::from("free"),
            credit_limit: Micros::ZERO,
            cache_scope: CacheScope::Shared,
            created_at: NOW,
        };
        create_account(&*self.store, account, |out| draw(&self.drawn, out))
            .await
            .expect("an account")
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.time.0.now()
    }

    pub(crate) fn pass(&self, time: Duration) {
        self.time.1.advance(time);
    }

    pub(crate) async fn register(&self) -> Arc<str> {
        self.register_from(None).await
    }

    /// A client that has registered from a network.
    pub(crate) async fn register_from(&self, requester: Option<&str>) -> Arc<str> {
        let requester = requester.map(|address| address.parse().expect("an address"));
        let metadata = ClientMetadata {
            redirect_uris: vec![String::from(REDIRECT)],
            grant_types: Some(vec![
                String::from("authorization_code"),
                String::from("refresh_token"),
            ]),
            ..ClientMetadata::default()
        };
        let refresh = self.settings.refresh.is_some();
        let checked = metadata.check(refresh).expect("sound");
        let client = self.server.register(&checked, requester).await;
        let client = client.expect("registered");
        client.id
    }

    pub(crate) fn authorization_request(
        &self,
        client: &Arc<str>,
        resource: u32,
        scopes: u32,
    ) -> AuthorizationRequest {
        AuthorizationRequest {
            client: client.clone(),
            client_name: Some(Arc::from("Notebook Copilot")),
            refresh: self.settings.refresh.is_some(),
            document: false,
            redirect_uri: Arc::from(REDIRECT),
            state: Some(Arc::from("a b&c")),
            challenge: Challenge::parse(CHALLENGE).expect("a challenge"),
            resource,
            asked: None,
            scopes,
        }
    }

    pub(crate) async fn ask(&self, client: &Arc<str>, resource: u32, scopes: u32) -> PendingId {
        let asking = self.authorization_request(client, resource, scopes);
        self.server.store_request(asking).await.expect("kept")
    }

    /// A code for an allowed request.
    pub(crate) async fn code(&self, id: PendingId, scopes: u32) -> Result<String, DecideError> {
        let address = self
            .server
            .allow(id, &self.decider(SESSION), scopes)
            .await?;
        Ok(parameter(&address, "code").expect("a code"))
    }

    /// An authorized client and its code.
    pub(crate) async fn allowed(&self, resource: u32, scopes: u32) -> (Arc<str>, String) {
        let client = self.register().await;
        let id = self.ask(&client, resource, scopes).await;
        let code = self.code(id, scopes).await.expect("allowed");
        (client, code)
    }

    pub(crate) async fn exchange(
        &self,
        client: &str,
        code: &str,
    ) -> Result<TokenResponse, TokenError> {
        self.server.exchange(request(client, code)).await
    }

    pub(crate) async fn refresh(
        &self,
        client: &str,
        token: &str,
    ) -> Result<TokenResponse, TokenError> {
        self.server
            .refresh(RefreshRequest {
                client,
                token,
                resource: Requested::Omitted,
                scopes: Requested::Omitted,
            })
            .await
    }

    /// The credential of a text, if it is live.
    pub(crate) fn works(&self, token: &str) -> Option<Arc<Credential>> {
        let digest = Form::access_token("svc").digest(token.as_bytes())?;
        let found = self.credentials.look_up_now(digest, self.now());
        let found = found.expect("it can be read")?;
        found.is_live(self.now()).then_some(found)
    }
}

/// The valid request for a code.
pub(crate) fn request<'a>(client: &'a str, code: &'a str) -> CodeRequest<'a> {
    CodeRequest {
        client,
        code,
        redirect_uri: REDIRECT,
        verifier: VERIFIER,
        resource: Requested::Omitted,
    }
}

/// A query parameter of a URL.
pub(crate) fn parameter(address: &str, name: &str) -> Option<String> {
    let (_, query) = address.split_once('?')?;
    url::form_urlencoded::parse(query.as_bytes())
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.into_owned())
}

fn draw(drawn: &AtomicU64, out: &mut [u8]) {
    for chunk in out.chunks_mut(8) {
        let mut word = drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        chunk.copy_from_slice(&(word ^ (word >> 27)).to_le_bytes()[..chunk.len()]);
    }
}
