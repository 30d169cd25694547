//! The settlement of holds: decided in memory, durable later.

use tokio::sync::oneshot;
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{Admission, Budget, CommitError, Done, Failure, Receipt, SubmitError};

use crate::accounts::{Acknowledgement, HOLDER_IN_MEMORY, Ledger, Open, Shard};
use crate::hold::Hold;
use crate::hold_request::{HoldRequest, Settle};
use crate::settlement::{AttachedPart, SettleError, Settled, Settlement, Undo};
use crate::units::{charged_at, log_refusal, settled, unit_with};

/// A settlement with an attached part, which the store may refuse. After a refusal the hold is still open in the store, and is released.
///
/// The rest of the hold stays reserved until the commit is known. Otherwise an operation on the rest could be queued between the settlement
/// and the release, where the store has no credit for the operation. A settlement in the spool counts as charged.
pub(crate) struct PendingSettlement {
    request: HoldRequest,
    at: Timestamp,
    rest: Micros,
}

impl Ledger {
    pub(crate) fn settle(
        &self,
        request: &HoldRequest,
        settle: Settle,
        attached: Option<AttachedPart>,
        extra: Option<Hold>,
    ) -> Settlement {
        let HoldRequest {
            operation,
            account,
            amount,
            ..
        } = *request;
        assert!(
            settle.actual >= Micros::ZERO,
            "usage of {} would give credit away",
            settle.actual
        );
        self.note(settle.at);
        let mut shard = self.shard(account);
        if let Some(extra) = extra {
            extra.free_in(&mut shard);
        }
        let elsewhere = shard.elsewhere(account);
        let Shard {
            accounts,
            open,
            held,
            is_handed_over,
            ..
        } = &mut *shard;
        let Some(Open { written, .. }) = open.remove(&operation) else {
            // Without a hold the account may have left memory.
            let available = accounts.get(&account).map(|balance| balance.available);
            self.give_back(&mut shard, Budget::Account(account), settle.at);
            return Settlement {
                operation,
                settled: Settled {
                    charged: Micros::ZERO,
                    written_off: Micros::ZERO,
                    available: available.unwrap_or_default(),
                },
                wait: Err(SettleError::Expired { operation }),
                undo: None,
                reserved: None,
            };
        };
        let balance = accounts.get_mut(&account).expect(HOLDER_IN_MEMORY);
        *held = held.wrapping_sub(amount.get());
        let taken = match *is_handed_over {
            false => balance.settle(amount, settle.actual),
            true => balance.settle_within(amount, settle.actual),
        };
        let mut settled = settled(taken, balance);
        settled.available += elsewhere;
        let unsettled = (written && attached.is_some()).then(|| {
            let rest = (amount - taken.charged).max(Micros::ZERO);
            balance.available -= rest;
            balance.held += rest;
            Box::new(PendingSettlement {
                request: *request,
                at: settle.at,
                rest,
            })
        });
        let at = charged_at(operation, settle.at);
        let part = if written {
            LedgerPart::Settle {
                operation,
                account,
                held: amount,
                charged: taken.charged,
                written_off: taken.written_off,
                price_version: request.price_version,
                usage: settle.usage,
                at,
            }
        } else {
            // The hold was not queued for the disk, so the store has no hold to resolve.
            LedgerPart::Charge {
                operation,
                account,
                charged: taken.charged,
                written_off: taken.written_off,
                price_version: request.price_version,
                usage: settle.usage,
                at,
            }
        };
        let undo = self.undo_of(&attached);
        let (done, wait) = self.charge_callback(account, taken.charged, unsettled, undo.clone());
        let unit = unit_with(part, attached, settled, Admission::Always);
        let submitted = self.store.submit(unit, done);
        self.give_back(&mut shard, Budget::Account(account), request.at);
        let wait = match submitted {
            Ok(()) => Ok(wait),
            Err(SubmitError::Stopped(source)) => Err(SettleError::Store { operation, source }),
            Err(_) => Err(SettleError::Store {
                operation,
                source: Failure::closed(),
            }),
        };
        Settlement {
            operation,
            settled,
            wait,
            undo,
            reserved: None,
        }
    }

    /// Further undo of a refused settlement. Only a settlement with an attached part can be refused.
    pub(crate) fn undo_of(&self, attached: &Option<AttachedPart>) -> Option<Undo> {
        attached.is_some().then(Undo::default)
    }

    /// A callback, which returns the charge if the store refuses the charge, and the wait for the result. `unsettled` is boxed: the value
    /// is rare, and every callback has one size.
    pub(crate) fn charge_callback(
        &self,
        account: AccountId,
        charged: Micros,
        unsettled: Option<Box<PendingSettlement>>,
        undo: Option<Undo>,
    ) -> (Done, Acknowledgement) {
        let (sender, wait) = oneshot::channel();
        let this = self.clone();
        let done: Done = Box::new(move |result| {
            if result.is_err() {
                log_refusal(result.clone());
            }
            match (unsettled, &result) {
                (None, Ok(_)) => {}
                (None, Err(_)) => this.credit_back(account, charged),
                (Some(unsettled), result) => this.settlement_ended(&unsettled, charged, result),
            }
            if let Some(undo) = undo.filter(|_| result.is_err()) {
                undo.refused();
            }
            let _ = sender.send(result);
        });
        (done, wait)
    }

    /// Frees the rest of a settled hold, or the whole hold if the store has refused the settlement.
    fn settlement_ended(
        &self,
        unsettled: &PendingSettlement,
        charged: Micros,
        result: &Result<Receipt, CommitError>,
    ) {
        let account = unsettled.request.account;
        let mut shard = self.shard(account);
        if let Err(CommitError::Refused(_)) = result {
            // Queued before any decision on the freed credit.
            self.write_release(&unsettled.request, unsettled.at);
        }
        let returned = match result {
            Ok(_) => Micros::ZERO,
            Err(_) => charged,
        };
        self.free_rest(&mut shard, account, unsettled.rest, returned, unsettled.at);
    }

    /// Frees the rest of an ended hold, and returns its charge if the store has not accepted the charge.
    pub(crate) fn free_rest(
        &self,
        shard: &mut Shard,
        account: AccountId,
        rest: Micros,
        returned: Micros,
        at: Timestamp,
    ) {
        if let Some(balance) = shard.accounts.get_mut(&account) {
            balance.release(rest);
            balance.available += returned;
        }
        self.give_back(shard, Budget::Account(account), at);
    }
}
