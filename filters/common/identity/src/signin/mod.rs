//! Signing in by one-time code.
//!
//! A code goes to an address and is good in the browser that asked for it. Whether the address has an account shows in nothing that the
//! browser can see: a code for nobody is stored, counted and refused like every other.

mod code;
mod keys;

use std::net::IpAddr;
use std::sync::Arc;

use tollgate_money::{AccountId, Micros};
use tollgate_store::{
    AccountStatus, Admission, CodePurpose, CommitError, FailureRule, LoginCodeId, LoginCodeRow,
    LoginId, LoginKind, MessageId, MessageRow, NewLogin, NewLoginCode, NewMessage, NewSession,
    Part, ReadError, Refusal, SendLimit, SigninPart, Store, UnitOfWork, commit, reading,
};

pub use code::CodeLength;
pub use keys::SigninKeys;

use crate::keys::id_bytes;
use crate::login::Login;
use crate::session::{Session, SessionValue, fresh};

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// A code is good for so long (microseconds).
pub const CODE_LIFE: i64 = 10 * MINUTE;

/// A code may be typed so often.
pub const TRIES: i64 = 5;

/// Failures of an account, or of an address without one.
const FAILURES: FailureRule = FailureRule {
    window: HOUR,
    free: 10,
    delay: MINUTE,
    delay_max: HOUR,
};

/// What the operator decides.
#[derive(Clone, Debug)]
pub struct SigninRules {
    /// How long codes are.
    pub length: CodeLength,
    /// Messages to one country in a day.
    pub country_daily_max: i64,
    /// Codes asked for from one network in an hour.
    pub network_hourly_max: i64,
    /// The class of accounts that people make themselves.
    pub class: Arc<str>,
    /// What they are given at sign-up.
    pub grant: Micros,
}

impl Default for SigninRules {
    fn default() -> Self {
        SigninRules {
            length: CodeLength::Eight,
            country_daily_max: 500,
            network_hourly_max: 20,
            class: Arc::from("free"),
            grant: Micros::ZERO,
        }
    }
}

/// Codes of one store: asked for, sent, typed.
#[derive(Clone)]
pub struct Signin {
    store: Arc<dyn Store>,
    keys: SigninKeys,
    rules: SigninRules,
}

/// What a code is asked for.
#[derive(Clone, Debug)]
pub struct CodeRequest<'a> {
    /// Where it goes.
    pub login: &'a Login,
    /// What it is for.
    pub purpose: CodePurpose,
    /// The browser that asks.
    pub browser: &'a SessionValue,
    /// The address that the request came from, for the limit by network; `None` where there is none to count by.
    pub network: Option<IpAddr>,
    /// Unix microseconds.
    pub now: i64,
}

/// Why no code was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendCodeError {
    /// One of the limits on sending is reached; which one is nobody's business.
    #[error("too many codes were asked for; the next may be at {until}")]
    TooMany {
        /// Unix microseconds.
        until: i64,
    },
    /// The store did not answer.
    #[error("could not look for the login")]
    Read(#[from] ReadError),
    /// The store did not write it.
    #[error("could not write the code")]
    Store(#[source] CommitError),
}

/// What came of a code that was typed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CodeOutcome {
    /// It was right, and this is the session that began with it.
    Accepted(SignedIn),
    /// It was wrong.
    Wrong {
        /// Tries that are left.
        tries_left: i64,
    },
    /// There is no code for this browser, or it has ended.
    Expired,
    /// Too many failures; typing does not help before this time.
    LockedOut {
        /// Unix microseconds.
        until: i64,
    },
    /// The code was right, and the account may not be used.
    Suspended,
}

/// Somebody who has just typed the right code.
#[derive(Debug)]
pub struct SignedIn {
    /// What their browser holds from now on.
    pub value: SessionValue,
    /// Who they are.
    pub account: AccountId,
    /// What the code was for.
    pub purpose: CodePurpose,
    /// They are new here.
    pub is_new: bool,
}

/// Why a code could not be judged. The code is as good as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyCodeError {
    /// The session that was to be confirmed was ended meanwhile.
    #[error("the session is over")]
    SignedOut,
    /// The store did not answer.
    #[error("could not look for the code")]
    Read(#[from] ReadError),
    /// The store did not write it.
    #[error("could not write what came of the code")]
    Store(#[source] CommitError),
}

/// What is known of the code that a browser waits for.
#[derive(Clone, Debug)]
pub struct PendingCode {
    /// Where it went.
    pub address: Arc<str>,
    /// The kind of address.
    pub kind: LoginKind,
    /// What it is for.
    pub purpose: CodePurpose,
    /// When it was sent (Unix microseconds).
    pub sent_at: i64,
}

/// A message that has to leave, with the code in it.
pub struct CodeMessage {
    /// What receivers tell copies by.
    pub id: MessageId,
    /// How it leaves.
    pub kind: LoginKind,
    /// Where to; empty for nobody.
    pub recipient: Arc<str>,
    /// What the code is for.
    pub purpose: CodePurpose,
    /// The code.
    pub code: zeroize::Zeroizing<String>,
    /// Tries so far.
    pub tries: i64,
    /// When it was queued (Unix microseconds).
    pub created_at: i64,
    /// When it is worth nothing any more (Unix microseconds).
    pub expires_at: i64,
}

impl Signin {
    /// Codes of this store.
    pub fn new(store: Arc<dyn Store>, rules: SigninRules) -> Signin {
        Signin {
            keys: SigninKeys::of(&store.root_secret()),
            store,
            rules,
        }
    }

    /// The keys behind it.
    pub fn keys(&self) -> &SigninKeys {
        &self.keys
    }

    /// The rules it follows.
    pub fn rules(&self) -> &SigninRules {
        &self.rules
    }

    /// Makes a code, stores it and queues its message; nothing about delivery is waited for. `draw` fills a slice with random bytes.
    pub async fn send_code(
        &self,
        request: &CodeRequest<'_>,
        mut draw: impl FnMut(&mut [u8]) + Send,
    ) -> Result<(), SendCodeError> {
        let CodeRequest {
            login,
            purpose,
            browser,
            network,
            now,
        } = *request;
        let known = self.login(login).await?;
        let id = LoginCodeId(id_bytes(now, &mut draw));
        let message = MessageId(id_bytes(now, &mut draw));
        let code = self.rules.length.draw(&mut draw);
        let expires_at = now + CODE_LIFE;
        // Whoever signs up is told in the message whether they are new; here both are the same.
        let reaches_someone = known.is_some() || purpose == CodePurpose::SignUp;
        let parts = [
            SigninPart::CountSend {
                limits: self.limits(login, network),
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

    /// What is known of the code that a browser waits for.
    pub async fn pending_code(
        &self,
        browser: &SessionValue,
        now: i64,
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

    /// Judges a code that was typed, and lets the person in when it is right: the code is spent, the failures are forgotten, and the
    /// new session begins in one commit. `current` is the session that is to be confirmed, where the code is for that.
    pub async fn verify_code(
        &self,
        browser: &SessionValue,
        current: Option<&Session>,
        typed: &str,
        now: i64,
        mut draw: impl FnMut(&mut [u8]) + Send,
    ) -> Result<CodeOutcome, VerifyCodeError> {
        let Some(row) = self.code_of(browser).await? else {
            return Ok(CodeOutcome::Expired);
        };
        let code = row.code;
        let Some(login) = Login::stored(code.kind, &code.address) else {
            return Ok(CodeOutcome::Expired);
        };
        let known = self.login(&login).await?;
        let failures = self
            .keys
            .failures_of(known.map(|(_, account)| account), &login);
        let barred = reading(&self.store, move |read| read.barred_until(&failures)).await?;
        if barred > now {
            return Ok(CodeOutcome::LockedOut { until: barred });
        }
        // Counted before it is looked at: many tries at once are many tries.
        let counted = SigninPart::TryCode {
            id: code.id,
            tries_max: TRIES,
            at: now,
        };
        match self.commit([counted]).await {
            Ok(()) => {}
            Err(CommitError::Refused(Refusal::CodeOver)) => return Ok(CodeOutcome::Expired),
            Err(error) => return Err(VerifyCodeError::Store(error)),
        }
        // A code for nobody is refused as if it were wrong. At sign-up there may be nobody yet.
        let for_someone = known.is_some() || code.purpose == CodePurpose::SignUp;
        let right = code::same(&self.keys.code_hash(code.id, typed), &code.code_hash);
        if !(right && for_someone) {
            let failed = SigninPart::CountFailure {
                key: failures,
                rule: FAILURES,
                at: now,
            };
            self.commit([failed])
                .await
                .map_err(VerifyCodeError::Store)?;
            let tries_left = TRIES - row.attempts - 1;
            return Ok(match tries_left {
                ..=0 => CodeOutcome::Expired,
                _ => CodeOutcome::Wrong { tries_left },
            });
        }
        let spent = vec![
            SigninPart::SpendCode { id: code.id },
            SigninPart::ForgetFailures { key: failures },
        ];
        let value = SessionValue::draw(&mut draw);
        let entered = match (code.purpose, current, known) {
            (CodePurpose::Confirm, Some(current), Some((login, _))) if login == current.login => {
                self.confirmed(spent, current, &value, now).await
            }
            (CodePurpose::Confirm, _, _) => return Ok(CodeOutcome::Expired),
            (_, _, Some((login, account))) => {
                self.let_in(spent, browser, (login, account), &value, now)
                    .await?
            }
            (_, _, None) => {
                self.welcome(spent, browser, &login, &value, now, &mut draw)
                    .await
            }
        };
        match entered {
            Ok(None) => Ok(CodeOutcome::Suspended),
            Ok(Some((account, is_new))) => Ok(CodeOutcome::Accepted(SignedIn {
                value,
                account,
                purpose: code.purpose,
                is_new,
            })),
            // Somebody was faster with the same code.
            Err(CommitError::Refused(Refusal::CodeOver)) => Ok(CodeOutcome::Expired),
            Err(CommitError::Refused(Refusal::SessionOver)) => Err(VerifyCodeError::SignedOut),
            Err(error) => Err(VerifyCodeError::Store(error)),
        }
    }

    /// Messages that may leave now.
    pub async fn messages_due(
        &self,
        now: i64,
        limit: usize,
    ) -> Result<Vec<CodeMessage>, ReadError> {
        let rows = reading(&self.store, move |read| read.messages_due(now, limit)).await?;
        Ok(rows.into_iter().map(|row| self.open(row)).collect())
    }

    /// When the next message may leave.
    pub async fn next_message_at(&self) -> Result<Option<i64>, ReadError> {
        reading(&self.store, |read| read.next_message_at()).await
    }

    /// A message has left, or never will.
    pub async fn message_done(&self, id: MessageId) -> Result<(), CommitError> {
        self.finish([SigninPart::DropMessage { id }]).await
    }

    /// A message could not leave and is tried again.
    pub async fn message_delayed(&self, id: MessageId, next_at: i64) -> Result<(), CommitError> {
        self.finish([SigninPart::DelayMessage { id, next_at }])
            .await
    }

    /// Credits promised at sign-up and not yet booked.
    pub async fn grants_owed(&self) -> Result<Vec<(AccountId, Micros)>, ReadError> {
        reading(&self.store, |read| read.grants_owed()).await
    }

    /// The promise was kept.
    pub async fn grant_booked(&self, account: AccountId) -> Result<(), CommitError> {
        self.commit([SigninPart::GrantBooked { account }]).await
    }

    /// Forgets what has ended.
    pub fn sweep(&self, now: i64) {
        let part = SigninPart::Sweep {
            now,
            idle_before: now - crate::session::IDLE,
            sent_before: now - DAY,
            limit: 1000,
        };
        let unit = crate::session::unit(part, Admission::Notes);
        // Another sweep follows; one that the store has no room for is left out.
        let swept = self.store.submit(unit, Box::new(|_| ()));
        drop(swept);
    }

    fn open(&self, row: MessageRow) -> CodeMessage {
        let MessageRow { message, tries } = row;
        let code = self.keys.seal(message.id, &message.sealed);
        CodeMessage {
            id: message.id,
            kind: message.kind,
            recipient: message.recipient,
            purpose: message.purpose,
            code: String::from_utf8(code).unwrap_or_default().into(),
            tries,
            created_at: message.created_at,
            expires_at: message.expires_at,
        }
    }

    fn limits(&self, login: &Login, network: Option<IpAddr>) -> Vec<SendLimit> {
        let mut limits = vec![SendLimit {
            key: self.keys.sends_to(login),
            rules: vec![(1, 30 * SECOND), (5, HOUR)],
        }];
        limits.extend(network.map(|network| SendLimit {
            key: self.keys.sends_from(network),
            rules: vec![(self.rules.network_hourly_max, HOUR)],
        }));
        limits.extend(self.keys.sends_to_country(login).map(|key| SendLimit {
            key,
            rules: vec![(self.rules.country_daily_max, DAY)],
        }));
        limits
    }

    async fn login(&self, login: &Login) -> Result<Option<(LoginId, AccountId)>, ReadError> {
        let (kind, address) = (login.kind(), login.address().to_owned());
        reading(&self.store, move |read| read.login(kind, &address)).await
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
        now: i64,
    ) -> Result<Option<(AccountId, bool)>, CommitError> {
        // A session that was ended elsewhere does not come back by a code that was asked for before.
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
        now: i64,
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

    /// Makes an account and lets its owner in.
    async fn welcome(
        &self,
        spent: Vec<SigninPart>,
        browser: &SessionValue,
        login: &Login,
        value: &SessionValue,
        now: i64,
        draw: &mut (impl FnMut(&mut [u8]) + Send),
    ) -> Result<Option<(AccountId, bool)>, CommitError> {
        let account = AccountId::from_bytes(id_bytes(now, &mut *draw));
        let login_id = LoginId::from_bytes(id_bytes(now, &mut *draw));
        let mut parts = vec![
            Part::CreateAccount(Box::new(tollgate_store::NewAccount {
                id: account,
                class: self.rules.class.clone(),
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
        if self.rules.grant > Micros::ZERO {
            own.push(SigninPart::OweGrant {
                account,
                amount: self.rules.grant,
                at: now,
            });
        }
        parts.extend(own.into_iter().map(|part| Part::Signin(Box::new(part))));
        commit(&*self.store, UnitOfWork::of_all(parts, Admission::Begins)).await?;
        Ok(Some((account, true)))
    }

    async fn commit(&self, parts: impl IntoIterator<Item = SigninPart>) -> Result<(), CommitError> {
        self.write(parts, Admission::Begins).await
    }

    /// Notes what has happened already: a message that has left would leave again if a busy store refused to hear of it.
    async fn finish(&self, parts: impl IntoIterator<Item = SigninPart>) -> Result<(), CommitError> {
        self.write(parts, Admission::Ends).await
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
