//! Units of work of the ledger, and the meaning of their results.

use tollgate_clock::Timestamp;
use tollgate_money::{CredentialId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{Admission, CommitError, KeyUse, Part, Refusal, UnitOfWork};

use crate::account::{Balance, ChargeOutcome};
use crate::settlement::{AttachedPart, Settled};

pub(crate) fn settled(taken: ChargeOutcome, balance: &Balance) -> Settled {
    taken.assert_within();
    balance.assert_held();
    Settled {
        charged: taken.charged,
        written_off: taken.written_off,
        available: balance.available,
    }
}

pub(crate) fn unit(part: LedgerPart, admission: Admission) -> UnitOfWork {
    UnitOfWork::of(Part::Ledger(part), admission)
}

/// A unit of the ledger's part and the attached part of another caller, if present.
pub(crate) fn unit_with(
    part: LedgerPart,
    attached: Option<AttachedPart>,
    settled: Settled,
    admission: Admission,
) -> UnitOfWork {
    match attached {
        None => unit(part, admission),
        Some(attached) => {
            UnitOfWork::of_all([Part::Ledger(part), attached.part(settled)], admission)
        }
    }
}

/// Logs a refusal that no balance explains. A lost claim of an idempotency key is a normal outcome: another request has the key and its
/// answer.
pub(crate) fn log_refusal(result: Result<tollgate_store::Receipt, CommitError>) {
    if let Err(CommitError::Refused(refusal)) = result
        && !is_claim_lost(&refusal)
    {
        tracing::error!(%refusal, "store refused a decided ledger entry; run `tollgate audit`");
    }
}

pub(crate) fn is_claim_lost(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::KeyInUse(KeyUse::Lost))
}

/// The time of a charge. Never before the start of its request, even if the clock was set back meanwhile. The spending cap of a month
/// counts requests begun in the month, and looks for charges in this month and later.
pub(crate) fn charged_at(operation: OperationId, at: Timestamp) -> Timestamp {
    at.max(operation.began_at())
}

/// A charge of a key, by operation and time.
type ChargeOfKey = (CredentialId, Micros, (OperationId, Timestamp));

/// The charge of a part with a key.
pub(crate) fn charge_of_key(part: &LedgerPart) -> Option<ChargeOfKey> {
    let used = part.usage()?;
    let credential = used.usage.credential?;
    Some((credential, used.cost, (used.operation, used.at)))
}
