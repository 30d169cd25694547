//! Verification of a typed code: the counts of attempts and failures, and the session of a correct code.

use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, LoginId};
use tollgate_store::{
    CodePurpose, CommitError, FailureRule, LoginCodeRow, ReadError, Refusal, SigninPart, reading,
};

use super::{CodeOutcome, CodeSource, HOUR, SignedIn, Signin, TRIES, VerifyCodeError, code};
use crate::login::Login;
use crate::session::{Session, SessionValue};

const MINUTE: Duration = Duration::from_secs(60);

/// Failures of one source at an account, or at an address without an account.
const FAILURES: FailureRule = FailureRule {
    window: HOUR,
    free: 10,
    delay: MINUTE,
    delay_max: HOUR,
};

/// Failures there of all sources without an earlier sign-in.
const UNKNOWN_FAILURES: FailureRule = FailureRule {
    free: 20,
    ..FAILURES
};

/// A counter of failures: key and rule.
type FailureCounter = ([u8; 32], FailureRule);

impl Signin {
    /// Verifies a code, and begins a session if correct: the code is consumed, the failures are reset and the session is created in one
    /// commit. `current` is the session to confirm, for a code of confirmation.
    pub async fn verify_code(
        &self,
        browser: &SessionValue,
        source: CodeSource<'_>,
        current: Option<&Session>,
        typed: &str,
        now: Timestamp,
        mut draw: impl FnMut(&mut [u8]) + Send,
    ) -> Result<CodeOutcome, VerifyCodeError> {
        let Some(row) = self.code_of(browser).await? else {
            return Ok(CodeOutcome::Expired);
        };
        let code = &row.code;
        let Some(login) = Login::stored(code.kind, &code.address) else {
            return Ok(CodeOutcome::Expired);
        };
        let known = self.login(&login).await?;
        let failures = self.failures_of(&login, known, source).await?;
        let barred = self.barred_until(&failures).await?;
        if let Some(until) = barred.filter(|&until| until > now) {
            return Ok(CodeOutcome::LockedOut { until });
        }
        // Counted before the comparison, so that concurrent attempts count too.
        if let Some(unusable) = self.count_try(&row, now).await? {
            return Ok(unusable);
        }
        // A decoy code is rejected as wrong. At sign-up there may be no account yet.
        let for_someone = known.is_some() || code.purpose == CodePurpose::SignUp;
        let right = code::same(&self.keys.code_hash(code.id, typed), &code.code_hash);
        if !(right && for_someone) {
            return self.count_failure(failures, row.attempts, now).await;
        }
        let mut spent = vec![SigninPart::SpendCode { id: code.id }];
        spent.extend(
            failures
                .into_iter()
                .map(|(key, _)| SigninPart::ForgetFailures { key }),
        );
        spent.extend(self.known_from_now(&login, source, now));
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
                let new = (&login, source.network);
                self.sign_up(spent, browser, new, &value, now, &mut draw)
                    .await?
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
            // A concurrent request has consumed the code.
            Err(CommitError::Refused(Refusal::CodeUnusable)) => Ok(CodeOutcome::Expired),
            Err(CommitError::Refused(Refusal::SessionEnded)) => Err(VerifyCodeError::SignedOut),
            Err(error) => Err(VerifyCodeError::Store(error)),
        }
    }

    /// Counts an attempt at a code. Returns the outcome of an unusable code.
    async fn count_try(
        &self,
        row: &LoginCodeRow,
        now: Timestamp,
    ) -> Result<Option<CodeOutcome>, VerifyCodeError> {
        let counted = SigninPart::TryCode {
            id: row.code.id,
            tries_max: TRIES,
            at: now,
        };
        match self.commit([counted]).await {
            Ok(()) => Ok(None),
            Err(CommitError::Refused(Refusal::CodeUnusable)) => Ok(Some(
                match row.attempts >= TRIES && now < row.code.expires_at {
                    true => CodeOutcome::NoTriesLeft,
                    false => CodeOutcome::Expired,
                },
            )),
            Err(error) => Err(VerifyCodeError::Store(error)),
        }
    }

    /// Counts a wrong code after `attempts` earlier attempts.
    async fn count_failure(
        &self,
        failures: Vec<FailureCounter>,
        attempts: i64,
        now: Timestamp,
    ) -> Result<CodeOutcome, VerifyCodeError> {
        let failed = failures
            .into_iter()
            .map(|(key, rule)| SigninPart::CountFailure { key, rule, at: now });
        self.commit(failed).await.map_err(VerifyCodeError::Store)?;
        let tries_left = TRIES - attempts - 1;
        Ok(match tries_left {
            ..=0 => CodeOutcome::NoTriesLeft,
            _ => CodeOutcome::Wrong { tries_left },
        })
    }

    /// The counters of failures that an attempt at a login falls under.
    async fn failures_of(
        &self,
        login: &Login,
        known: Option<(LoginId, AccountId)>,
        source: CodeSource<'_>,
    ) -> Result<Vec<FailureCounter>, ReadError> {
        let source_of = self.counted(login, source).await?;
        let mut failures = vec![(source_of.keys.failures, FAILURES)];
        if !source_of.is_known {
            let all = self
                .keys
                .failures_of(known.map(|(_, account)| account), login);
            failures.push((all, UNKNOWN_FAILURES));
        }
        Ok(failures)
    }

    /// The end of the longest lockout of these counters.
    async fn barred_until(
        &self,
        failures: &[FailureCounter],
    ) -> Result<Option<Timestamp>, ReadError> {
        let keys: Vec<[u8; 32]> = failures.iter().map(|(key, _)| *key).collect();
        reading(&self.store, move |read| {
            let mut until = None;
            for key in &keys {
                until = until.max(read.barred_until(key)?);
            }
            Ok(until)
        })
        .await
    }
}
