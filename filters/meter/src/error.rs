//! Errors for clients: a request that cannot be paid for, and a store that cannot be written.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Month, Timestamp};
use tollgate_filter::{ApiError, Credits, ErrorCode, FilterError, Outcome};
use tollgate_ledger::{CapReached, ChargeError, HoldError, LoadError, SettleError};
use tollgate_money::Micros;

/// When a client that was refused during an outage of the database should try again.
const CUT_OFF_RETRY: Duration = Duration::from_secs(5);

/// Why the meter cannot decide: the filters are in the wrong order, or the account does not exist.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MeterError {
    #[error("no {what} on the exchange; put `auth` and `completions` before `meter`")]
    Missing { what: &'static str },
    #[error("the ledger has no account for the principal")]
    NoAccount,
    /// The values loaded for the head of the request have left memory. Loaded values stay in memory for ten minutes.
    #[error("the request has waited for too long before its hold; send it again")]
    NotLoaded,
}

impl From<MeterError> for FilterError {
    fn from(error: MeterError) -> FilterError {
        match error {
            MeterError::NotLoaded => load_failed(error),
            _ => FilterError::new(unmetered(), error),
        }
    }
}

/// The account's credit or its key's spending could not be read.
pub(crate) fn load_failed(error: impl std::error::Error + Send + Sync + 'static) -> FilterError {
    let answer = ApiError::new(
        ErrorCode::StoreUnavailable,
        "The gateway cannot read its database at the moment. Try again in a second.",
    );
    FilterError::new(answer.retry_after(Duration::from_secs(1)), error)
}

/// A refusal for insufficient credit, which a retry does not resolve. `required` is unknown before the body is read. `topup_url` is the
/// page for adding credit.
pub(crate) fn insufficient(
    required: Option<Micros>,
    available: Micros,
    topup_url: &Arc<str>,
) -> ApiError {
    let message = match required.filter(|_| available.is_positive()) {
        Some(required) => format!(
            "The account has {available} credits to spend and this request may need {required}. Lower `max_tokens`, or add credits at {topup_url}."
        ),
        None => format!("The account has no credits to spend. Add some at {topup_url}."),
    };
    ApiError::new(ErrorCode::InsufficientCredits, message).credits(Credits {
        required,
        available,
        topup_url: Arc::clone(topup_url),
    })
}

/// A 403: neither more credit nor an early retry resolves the refusal. `required` is unknown before the body is read.
pub(crate) fn cap_reached(required: Option<Micros>, reached: CapReached) -> ApiError {
    let CapReached { cap, left, until } = reached;
    let (period, wait) = match until {
        Some(until) => ("a month", format!("wait for {}, ", day(until))),
        None => ("in all", String::new()),
    };
    let max = cap.max;
    let message = match required {
        Some(required) => format!(
            "This key may spend {max} credits {period}; {left} are left, and this request may need {required}. Lower `max_tokens`, {wait}or \
             use another key."
        ),
        None => format!(
            "This key may spend {max} credits {period}, and {left} are left. Raise its cap, {wait}or use another key."
        ),
    };
    ApiError::new(ErrorCode::KeySpendingCap, message)
}

/// The date of the instant at which a month starts, as `2026-12-01`.
fn day(start: Timestamp) -> String {
    let month = Month::of(start).number();
    format!(
        "{:04}-{:02}-01",
        month.div_euclid(12),
        month.rem_euclid(12) + 1
    )
}

/// The account's clients have disconnected too often before any output. Such disconnections are not charged.
pub(crate) fn too_much_abandoned(wait: Duration) -> ApiError {
    let seconds = wait.as_millis().div_ceil(1_000);
    let message = format!(
        "Too many requests of this account were abandoned before their first output, whose work is not charged. Try again in {seconds} seconds, and \
         wait longer for answers, or request streams."
    );
    ApiError::new(ErrorCode::RateLimitExceeded, message).retry_after(wait)
}

/// A hold that failed for a reason other than credit.
pub(crate) fn hold_failed(error: HoldError) -> Result<Outcome, FilterError> {
    match error {
        HoldError::Overloaded { .. } => Ok(Outcome::refuse(overloaded())),
        HoldError::CutOff => Ok(Outcome::refuse(cut_off())),
        HoldError::CreditUnavailable { .. } => Ok(Outcome::refuse(credit_unavailable())),
        HoldError::NotLoaded => Err(MeterError::NotLoaded.into()),
        HoldError::Store { .. } => Err(FilterError::new(store_unavailable(), error)),
        _ => Err(FilterError::new(unmetered(), error)),
    }
}

/// An account that is not in memory and was not loaded: refused like a hold on the account.
pub(crate) fn account_load_failed(error: LoadError) -> Result<Outcome, FilterError> {
    match error {
        LoadError::Overloaded { .. } => Ok(Outcome::refuse(overloaded())),
        LoadError::CutOff => Ok(Outcome::refuse(cut_off())),
        _ => Err(FilterError::new(store_unavailable(), error)),
    }
}

/// A charge that failed.
pub(crate) fn charge_failed(error: ChargeError) -> Result<Outcome, FilterError> {
    match error {
        ChargeError::Overloaded { .. } => Ok(Outcome::refuse(overloaded())),
        ChargeError::CutOff => Ok(Outcome::refuse(cut_off())),
        ChargeError::Store { .. } => Err(FilterError::new(store_unavailable(), error)),
        _ => Err(FilterError::new(unmetered(), error)),
    }
}

/// An answer that is ready and could not be settled.
pub(crate) fn settle_failed(error: SettleError) -> FilterError {
    FilterError::new(store_unavailable(), error)
}

/// An internal error.
pub(crate) fn unmetered() -> ApiError {
    ApiError::new(
        ErrorCode::InternalError,
        "The request could not be metered. Nothing was charged; try again later.",
    )
}

fn credit_unavailable() -> ApiError {
    ApiError::new(
        ErrorCode::CreditUnavailable,
        "The account's credit is being collected from other nodes of the gateway. Nothing was charged; try again in a second.",
    )
    .retry_after(Duration::from_secs(1))
}

fn overloaded() -> ApiError {
    ApiError::new(
        ErrorCode::Overloaded,
        "The gateway accepts no new requests at the moment: its commit queue is full, or its disk is nearly full. Try again in a second.",
    )
    .retry_after(Duration::from_secs(1))
}

fn cut_off() -> ApiError {
    ApiError::new(
        ErrorCode::StoreUnavailable,
        "The gateway accepts no new requests at the moment: its database does not answer. Nothing was charged; try again in a few seconds.",
    )
    .retry_after(CUT_OFF_RETRY)
}

fn store_unavailable() -> ApiError {
    ApiError::new(
        ErrorCode::StoreUnavailable,
        "The gateway cannot write to its ledger at the moment. Try again later.",
    )
}
