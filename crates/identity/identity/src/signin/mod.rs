//! Sign-in by one-time code.
//!
//! A code is sent to an address and is valid in the requesting browser. The browser cannot observe whether the address has an account: a
//! decoy code without an account is stored, counted and rejected like any other (no user enumeration).

mod code;
mod keys;
mod messages;
mod rules;
mod verification;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, LoginId, Micros};
use tollgate_store::{
    AccountStatus, Admission, CodePurpose, CommitError, LoginCodeId, LoginCodeRow, LoginKind,
    MessageId, NewLogin, NewLoginCode, NewMessage, NewSession, Part, ReadError, Refusal, SendLimit,
    SigninPart, Store, UnitOfWork, commit, reading,
};

pub use code::CodeLength;
pub use keys::SigninKeys;
use keys::{Source, SourceKeys};
pub use messages::{MessageContent, QueuedMessage};
pub use rules::{CodeChannels, SigninRules};

use crate::keys::id_bytes;
use crate::login::Login;
use crate::session::{Session, SessionValue, fresh};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Minimum time between two codes for an address.
const SEND_INTERVAL: Duration = Duration::from_secs(30);

/// Lifetime of a code.
pub const CODE_LIFE: Duration = Duration::from_secs(10 * 60);

/// Attempts per code.
pub const TRIES: i64 = 5;

/// Codes for an address in an hour, for all sources without an earlier sign-in to the address.
const UNKNOWN_SENDS_MAX: i64 = 10;

/// For how long a sign-in makes its network and browser known sources of the address.
pub const KNOWN_SOURCE_LIFE: Duration = Duration::from_secs(180 * 24 * 3600);

/// Sends and verifies one-time codes. Cheap to clone.
#[derive(Clone)]
pub struct Signin {
    store: Arc<dyn Store>,
    keys: SigninKeys,
    rules: Arc<ArcSwap<SigninRules>>,
}

/// A request for a code.
#[derive(Clone, Debug)]
pub struct CodeRequest<'a> {
    /// The address of the code's recipient.
    pub login: &'a Login,
    pub purpose: CodePurpose,
    /// The requesting browser.
    pub browser: &'a SessionValue,
    /// The source of the request, for the counts.
    pub source: CodeSource<'a>,
    /// Time of the request.
    pub now: Timestamp,
}

/// The source of a request for a code, or of a typed code.
///
/// Sends and failures are counted for each address and source, and also for all sources together without an earlier sign-in to the address.
/// So strangers cannot use up the owner's limit at a known network or in a known browser.
#[derive(Clone, Copy, Debug)]
pub struct CodeSource<'a> {
    /// The client's network address, if any, for the counts.
    pub network: Option<IpAddr>,
    /// The mark of the browser: a random value kept since the first sign-in.
    pub mark: Option<&'a SessionValue>,
}

/// Counters of a request.
struct Counted {
    keys: SourceKeys,
    /// Whether the source has signed in to the address before.
    is_known: bool,
}

/// Why no code was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendCodeError {
    /// A sending limit is reached; the kind of limit is not disclosed.
    #[error("too many codes were requested; the next one is possible at {}", .until.as_micros())]
    TooMany {
        /// Time from which the next request is possible.
        until: Timestamp,
    },
    /// Reading the store failed.
    #[error("could not read the login")]
    Read(#[from] ReadError),
    /// Writing to the store failed.
    #[error("could not write the code")]
    Store(#[source] CommitError),
}

/// Outcome of verifying a code.
#[derive(Debug)]
#[non_exhaustive]
pub enum CodeOutcome {
    /// Correct; a session has begun.
    Accepted(SignedIn),
    Wrong {
        /// Remaining attempts.
        tries_left: i64,
    },
    /// No code for this browser, or an expired code.
    Expired,
    /// Wrong, and the last attempt; or a later attempt, right or wrong.
    NoTriesLeft,
    /// Locked out after too many failures.
    LockedOut {
        /// When that ends.
        until: Timestamp,
    },
    /// Correct, but the account is suspended.
    Suspended,
}

/// A new session after a correct code.
#[derive(Debug)]
pub struct SignedIn {
    /// The browser's session value from now on.
    pub value: SessionValue,
    pub account: AccountId,
    /// The purpose of the code.
    pub purpose: CodePurpose,
    /// Whether the account was created by this sign-in.
    pub is_new: bool,
}

/// Why a code could not be verified. The code stays valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyCodeError {
    /// The session to confirm was ended meanwhile.
    #[error("the session has ended")]
    SignedOut,
    /// Reading the store failed.
    #[error("could not read the code")]
    Read(#[from] ReadError),
    /// Writing to the store failed.
    #[error("could not write the outcome of the code")]
    Store(#[source] CommitError),
}

/// The code that a browser is waiting for.
#[derive(Clone, Debug)]
pub struct PendingCode {
    /// The address of the code.
    pub address: Arc<str>,
    /// The kind of address.
    pub kind: LoginKind,
    pub purpose: CodePurpose,
    /// Time of sending.
    pub sent_at: Timestamp,
}

impl Signin {
    /// The sign-in over a store.
    pub fn new(store: Arc<dyn Store>, rules: SigninRules) -> Signin {
        Signin {
            keys: SigninKeys::of(&store.root_secret()),
            store,
            rules: Arc::new(ArcSwap::from_pointee(rules)),
        }
    }

    /// The derived keys.
    pub fn keys(&self) -> &SigninKeys {
        &self.keys
    }

    /// The rules in force.
    pub fn rules(&self) -> Arc<SigninRules> {
        self.rules.load_full()
    }

    /// Puts other rules in force for later requests.
    pub fn replace_rules(&self, rules: SigninRules) {
        self.rules.store(Arc::new(rules));
    }

    /// Creates a code, stores the code and queues its message in one commit; does not wait for delivery. `draw` fills a slice with random
    /// bytes.
    pub async fn send_code(
        &self,
        request: &CodeRequest<'_>,
        mut draw: impl FnMut(&mut [u8]) + Send,
    ) -> Result<(), SendCodeError> {
        let CodeRequest {
            login,
            purpose,
            browser,
            source,
            now,
        } = *request;
        let known = self.login(login).await?;
        let counted = self.counted(login, source).await?;
        let id = LoginCodeId(id_bytes(now, &mut draw));
        let message = MessageId(id_bytes(now, &mut draw));
        let code = self.rules().length.draw(&mut draw);
        let expires_at = now + CODE_LIFE;
        // Only the message discloses whether the account exists; both cases look alike here.
        let reaches_someone = known.is_some() || purpose == CodePurpose::SignUp;
        let parts = [
            SigninPart::CountSend {
                limits: self.limits(login, &counted, source.network),
                at: now,
            },
            SigninPart::PutCode(NewLoginCode {
                id,
                session_hash: browser.digest(),
                purpose,
                kind: login.kind(),
                address: login.address().into(),
                login: known.map(|(login, _)| login),
                code_hash: self.keys.code_hash(id, &code),
                created_at: now,
                expires_at,
            }),
            SigninPart::QueueMessage(NewMessage {
                id: message,
                kind: login.kind(),
                recipient: if reaches_someone {
                    login.address().into()
                } else {
                    "".into()
                },
                purpose,
                sealed: self.keys.seal(message, code.as_bytes()),
                created_at: now,
                expires_at,
            }),
        ];
        match self.commit(parts).await {
            Ok(()) => Ok(()),
            Err(CommitError::Refused(Refusal::TooMany { until })) => {
                Err(SendCodeError::TooMany { until })
            }
            Err(error) => Err(SendCodeError::Store(error)),
        }
    }

    /// The code that a browser is waiting for.
    pub async fn pending_code(
        &self,
        browser: &SessionValue,
        now: Timestamp,
    ) -> Result<Option<PendingCode>, ReadError> {
        let row = self.code_of(browser).await?;
        let live = row.filter(|row| row.code.expires_at > now);
        Ok(live.map(|LoginCodeRow { code, .. }| PendingCode {
            address: code.address,
            kind: code.kind,
            purpose: code.purpose,
            sent_at: code.created_at,
        }))
    }

    /// Opens an account for a new address, or begins a session of the account that another browser has just opened for it.
    async fn sign_up(
        &self,
        spent: Vec<SigninPart>,
        browser: &SessionValue,
        (login, network): (&Login, Option<IpAddr>),
        value: &SessionValue,
        now: Timestamp,
        draw: &mut (impl FnMut(&mut [u8]) + Send),
    ) -> Result<Result<Option<(AccountId, bool)>, CommitError>, ReadError> {
        let parts = spent.clone();
        let welcomed = self.welcome(parts, browser, (login, network), value, now, draw);
        let welcomed = welcomed.await;
        let taken = match &welcomed {
            // Another browser has signed up with the address at the same moment.
            Err(CommitError::Refused(Refusal::LoginTaken { .. })) => self.login(login).await?,
            _ => None,
        };
        match taken {
            Some(known) => self.let_in(spent, browser, known, value, now).await,
            None => Ok(welcomed),
        }
    }

    /// Signup grants that are not booked yet.
    pub async fn grants_owed(&self) -> Result<Vec<(AccountId, Micros)>, ReadError> {
        reading(&self.store, |read| read.grants_owed()).await
    }

    /// A signup grant was booked.
    pub async fn grant_booked(&self, account: AccountId) -> Result<(), CommitError> {
        self.commit([SigninPart::GrantBooked { account }]).await
    }

    /// Deletes expired rows.
    pub fn sweep(&self, now: Timestamp) {
        let part = SigninPart::Sweep {
            now,
            idle_before: now - crate::session::IDLE,
            sent_before: now - DAY,
            signed_in_before: now - KNOWN_SOURCE_LIFE,
            limit: 1000,
        };
        let unit = crate::session::unit(part, Admission::BestEffort);
        // A refused admission is repeated by the next run.
        let swept = self.store.submit(unit, Box::new(|_| ()));
        drop(swept);
    }

    /// Counters for requests from this source about an address: a known browser, else the network.
    async fn counted(&self, login: &Login, source: CodeSource<'_>) -> Result<Counted, ReadError> {
        let network = self.keys.source(login, Source::Network(source.network));
        let browser = source
            .mark
            .map(|mark| self.keys.source(login, Source::Browser(&mark.digest())));
        let (by_network, by_browser) =
            (network.sign_ins, browser.as_ref().map(|keys| keys.sign_ins));
        let (is_known_network, is_known_browser) = reading(&self.store, move |read| {
            let browser = by_browser.map(|key| read.has_signed_in(&key)).transpose()?;
            Ok((read.has_signed_in(&by_network)?, browser.unwrap_or(false)))
        })
        .await?;
        Ok(match browser.filter(|_| is_known_browser) {
            Some(keys) => Counted {
                keys,
                is_known: true,
            },
            None => Counted {
                keys: network,
                // Clients without an address are not one source.
                is_known: is_known_network && source.network.is_some(),
            },
        })
    }

    /// Makes a source known, in the commit of the sign-in.
    fn known_from_now(
        &self,
        login: &Login,
        source: CodeSource<'_>,
        now: Timestamp,
    ) -> Vec<SigninPart> {
        let network = source.network.map(|network| {
            let keys = self.keys.source(login, Source::Network(Some(network)));
            keys.sign_ins
        });
        let browser = source.mark.map(|mark| {
            let keys = self.keys.source(login, Source::Browser(&mark.digest()));
            keys.sign_ins
        });
        let keys = network.into_iter().chain(browser);
        keys.map(|key| SigninPart::RecordSignIn { key, at: now })
            .collect()
    }

    fn limits(&self, login: &Login, counted: &Counted, network: Option<IpAddr>) -> Vec<SendLimit> {
        let sign_in = self.rules();
        let mut limits = vec![SendLimit {
            key: counted.keys.sends,
            rules: vec![(1, SEND_INTERVAL), (5, HOUR)],
        }];
        if !counted.is_known {
            limits.push(SendLimit {
                key: self.keys.sends_to(login),
                rules: vec![(UNKNOWN_SENDS_MAX, HOUR)],
            });
            limits.extend(network.map(|network| SendLimit {
                key: self.keys.sends_from(network),
                rules: vec![(sign_in.network_hourly_max, HOUR)],
            }));
        }
        limits.extend(self.keys.sends_to_country(login).map(|key| SendLimit {
            key,
            rules: vec![(sign_in.country_daily_max, DAY)],
        }));
        limits
    }

    /// Limits of signup credits besides the one for the mailbox.
    fn grant_limits(&self, login: &Login, network: Option<IpAddr>) -> Vec<SendLimit> {
        let rules = self.rules();
        let limit = |key, most| SendLimit {
            key,
            rules: vec![(most, DAY)],
        };
        let of_network = network.map(|network| self.keys.grants_from(network));
        let of_network = of_network.map(|key| limit(key, rules.grants_network_daily_max));
        let of_domain = self.keys.grants_at(login);
        let of_domain = of_domain.map(|key| limit(key, rules.grants_domain_daily_max));
        of_network.into_iter().chain(of_domain).collect()
    }

    async fn login(&self, login: &Login) -> Result<Option<(LoginId, AccountId)>, ReadError> {
        let login = login.clone();
        reading(&self.store, move |read| {
            login.find(|address| read.login(login.kind(), address))
        })
        .await
    }

    async fn code_of(&self, browser: &SessionValue) -> Result<Option<LoginCodeRow>, ReadError> {
        let digest = browser.digest();
        reading(&self.store, move |read| read.login_code(&digest)).await
    }

    async fn confirmed(
        &self,
        mut parts: Vec<SigninPart>,
        current: &Session,
        value: &SessionValue,
        now: Timestamp,
    ) -> Result<Option<(AccountId, bool)>, CommitError> {
        // A session that was ended elsewhere is not revived by a code requested before.
        parts.push(SigninPart::RequireSession {
            hash: current.digest,
            at: now,
        });
        parts.push(SigninPart::StartSession {
            session: NewSession {
                hash: value.digest(),
                account: current.account,
                login: current.login,
                started_at: current.started_at,
                confirmed_at: now,
                seen_at: now,
                expires_at: current.expires_at,
                draft: current.draft.clone(),
            },
            replaces: Some(current.digest),
        });
        self.commit(parts).await?;
        Ok(Some((current.account, false)))
    }

    async fn let_in(
        &self,
        mut parts: Vec<SigninPart>,
        browser: &SessionValue,
        (login, account): (LoginId, AccountId),
        value: &SessionValue,
        now: Timestamp,
    ) -> Result<Result<Option<(AccountId, bool)>, CommitError>, ReadError> {
        let row = reading(&self.store, move |read| read.account(account)).await?;
        if row.is_none_or(|row| row.status != AccountStatus::Active) {
            return Ok(self.commit(parts).await.map(|()| None));
        }
        parts.push(SigninPart::StartSession {
            session: fresh(value, account, login, now),
            replaces: Some(browser.digest()),
        });
        Ok(self.commit(parts).await.map(|()| Some((account, false))))
    }

    /// Creates an account and its first session.
    async fn welcome(
        &self,
        spent: Vec<SigninPart>,
        browser: &SessionValue,
        (login, network): (&Login, Option<IpAddr>),
        value: &SessionValue,
        now: Timestamp,
        draw: &mut (impl FnMut(&mut [u8]) + Send),
    ) -> Result<Option<(AccountId, bool)>, CommitError> {
        let account = AccountId::from_bytes(id_bytes(now, &mut *draw));
        let login_id = LoginId::from_bytes(id_bytes(now, &mut *draw));
        let rules = self.rules();
        let mut parts = vec![
            Part::CreateAccount(Box::new(tollgate_store::NewAccount {
                id: account,
                class: rules.class.clone(),
                cache_scope: tollgate_store::CacheScope::Shared,
                credit_limit: Micros::ZERO,
                created_at: now,
            })),
            Part::InsertLogin(Box::new(NewLogin {
                id: login_id,
                account,
                kind: login.kind(),
                address: login.address().into(),
                verified_at: Some(now),
                created_at: now,
            })),
        ];
        let mut own = spent;
        own.push(SigninPart::StartSession {
            session: fresh(value, account, login_id, now),
            replaces: Some(browser.digest()),
        });
        if rules.grant > Micros::ZERO {
            own.push(SigninPart::OweGrant {
                account,
                amount: rules.grant,
                address: self.keys.grant_to(login),
                mailboxes: login.mailboxes(),
                limits: self.grant_limits(login, network),
                at: now,
            });
        }
        parts.extend(own.into_iter().map(|part| Part::Signin(Box::new(part))));
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Normal)).await?;
        Ok(Some((account, true)))
    }

    async fn commit(&self, parts: impl IntoIterator<Item = SigninPart>) -> Result<(), CommitError> {
        self.write(parts, Admission::Normal).await
    }

    /// Records a completed step; always admitted, or a message that was not accepted would not be retried when the store is busy.
    async fn finish(&self, parts: impl IntoIterator<Item = SigninPart>) -> Result<(), CommitError> {
        self.write(parts, Admission::Always).await
    }

    async fn write(
        &self,
        parts: impl IntoIterator<Item = SigninPart>,
        admission: Admission,
    ) -> Result<(), CommitError> {
        let parts = parts.into_iter().map(|part| Part::Signin(Box::new(part)));
        let unit = UnitOfWork::of_all(parts, admission);
        commit(&*self.store, unit).await.map(|_| ())
    }
}
