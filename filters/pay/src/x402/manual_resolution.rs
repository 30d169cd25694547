//! Manual resolution: an operator closes a payment whose outcome neither the facilitator nor the chain can report, because the settings
//! that it was sold by are gone, name another chain, or never named a node.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_evm::TxHash;
use tollgate_purchase::plan::{PayOutcome, PlanError, Plans};
use tollgate_store::{
    Admission, AuthorizationRow, AuthorizationState, CommitError, Part, ReadError, Refusal, Store,
    UnitOfWork, commit, reading,
};

use super::rows::{self, GRACE};
use super::transfer::{Evidence, Transfer};

/// The note of a payment that an operator has closed.
const CLOSED: &str = "closed by an operator";

/// [`CLOSED`] by a transaction paid for another payment too.
const CLOSED_SHARED: &str = "closed by an operator: the transaction has a separate transfer for it";

/// The operator's finding, from a block explorer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// The price has come in by this transaction.
    Paid {
        transaction: TxHash,
        /// Whether the transaction has a separate transfer for this payment, in addition to the other payment's transfer.
        is_shared: bool,
    },
    /// No money has moved, and none can any more.
    NotMoved,
}

/// Why a payment was not closed. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CloseError {
    /// No payment of this reference is open.
    #[error("no open payment has the reference `{0}`; `tollgate payment list` shows them")]
    Unknown(String),
    /// Any holder of the authorization could still submit it to the chain.
    #[error(
        "the chain accepts it for {0} seconds more, so it is not proved yet that it never moves money; retry then"
    )]
    Early(u64),
    /// One transaction pays for one payment.
    #[error(
        "transaction {0} has paid for another payment; look up the transfer of this one. Where that transaction has a separate transfer for \
         this payment (its wallet and its nonce), state it with `--shared-transaction`"
    )]
    TransactionUsed(TxHash),
    /// The gateway has updated the payment meanwhile.
    #[error("the gateway has updated it meanwhile; check it with `tollgate payment list`")]
    Moved,
    /// The store could not be read.
    #[error("could not read the payments")]
    Read(#[from] ReadError),
    /// The store could not be written.
    #[error("could not write the payment")]
    Write(#[source] CommitError),
    /// The plan could not be activated.
    #[error("could not activate the plan for it")]
    Plan(#[source] PlanError),
}

/// The reference of a payment, for operators and in the books: chain, token, wallet and nonce.
pub fn reference(row: &AuthorizationRow) -> String {
    rows::reference(&row.key)
}

/// The operator's action for an open payment at `now`. `wait` while the gateway reconciles the payment. `resolve` after the expected
/// expiry, or when the facilitator's refusal is the only evidence.
pub fn action(row: &AuthorizationRow, now: Timestamp) -> &'static str {
    let is_reconciled = row.state != AuthorizationState::RefusedAfterSubmit;
    match is_reconciled && now <= row.valid_before + GRACE {
        true => "wait",
        false => "resolve",
    }
}

/// Closes an open payment at `now` by an operator's finding, recorded as such. `Paid` activates the plan in the unit of work. Returns
/// whether `attached` was written: not after an earlier grant of the plan for the payment.
pub async fn close(
    (store, plans): (&Arc<dyn Store>, &Plans),
    now: Timestamp,
    payment: &str,
    resolution: Resolution,
    attached: Vec<Part>,
) -> Result<bool, CloseError> {
    let unknown = || CloseError::Unknown(payment.to_owned());
    let key = rows::read_reference(payment).ok_or_else(unknown)?;
    let row = reading(store, move |store| store.authorization(&key)).await?;
    let row = row.filter(|row| is_unproved(row.state));
    let row = row.ok_or_else(unknown)?;
    let row = Transfer::stored(row);
    tracing::warn!(account = %row.account, payment, ?resolution, "closing payment: resolved by an operator");
    match resolution {
        Resolution::NotMoved => {
            let left = (row.valid_before + GRACE).duration_since(now);
            if !left.is_zero() {
                return Err(CloseError::Early(left.as_secs() + 1));
            }
            let dead = row.dead(CLOSED, now).map_err(|_| unknown())?;
            let (part, _) = dead.into_parts();
            let parts = std::iter::once(part).chain(attached);
            match commit(&**store, UnitOfWork::of_all(parts, Admission::Always)).await {
                Ok(_) => Ok(true),
                Err(CommitError::Refused(Refusal::AuthorizationConflict)) => Err(CloseError::Moved),
                Err(error) => Err(CloseError::Write(error)),
            }
        }
        Resolution::Paid {
            transaction,
            is_shared,
        } => {
            let evidence = Evidence {
                transaction,
                is_proven: is_shared,
                note: Some(if is_shared { CLOSED_SHARED } else { CLOSED }),
                final_at: None,
            };
            let settlement = row.settled(evidence, now).map_err(|_| unknown())?;
            let granted = settlement.grant((&**store, plans), |_| attached.clone());
            match granted.await {
                Ok(outcome) => Ok(matches!(outcome, PayOutcome::New(_))),
                Err(PlanError::AttachedPart(Refusal::TransactionUsed)) => {
                    Err(CloseError::TransactionUsed(transaction))
                }
                Err(PlanError::AttachedPart(_)) => Err(CloseError::Moved),
                Err(error) => Err(CloseError::Plan(error)),
            }
        }
    }
}

/// Whether an operator may close a payment in this state.
fn is_unproved(state: AuthorizationState) -> bool {
    use AuthorizationState::{RefusedAfterSubmit, Settling, Unknown};
    matches!(state, Settling | Unknown | RefusedAfterSubmit)
}
