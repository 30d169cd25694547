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

/// A settlement with an attached part, which the store may refuse: then the hold is still open there, and is released.
///
/// What the charge leaves of the hold stays reserved until its commit is known. An operation that was decided on it could be queued behind the
/// settlement and before the release, where the store has no credit for it. A settlement in the spool is known to be charged in its place.
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
            // Without a hold its account may be in memory no more.
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
            // The hold was not queued for the disk, so there is none to resolve.
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

    /// What a settlement with this part undoes besides. One without a part is not refused, and a node that is alone counts no caps here.
    pub(crate) fn undo_of(&self, attached: &Option<AttachedPart>) -> Option<Undo> {
        (self.has_allotments && attached.is_some()).then(Undo::default)
    }

    /// A callback that returns what was charged if the store refuses the charge, and the wait for its result. `unsettled` is boxed, because it is
    /// rarely there and all callbacks have the same size.
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

    /// Frees what a settlement has left of its hold, and all of it where the store has refused the settlement.
    fn settlement_ended(
        &self,
        unsettled: &PendingSettlement,
        charged: Micros,
        result: &Result<Receipt, CommitError>,
    ) {
        let account = unsettled.request.account;
        let mut shard = self.shard(account);
        if let Err(CommitError::Refused(_)) = result {
            // Before anything is decided on what it frees.
            self.write_release(&unsettled.request, unsettled.at);
        }
        let returned = match result {
            Ok(_) => Micros::ZERO,
            Err(_) => charged,
        };
        self.free_rest(&mut shard, account, unsettled.rest, returned, unsettled.at);
    }

    /// Frees what the end of a hold has left of it, and returns what it has charged where the store has not accepted that.
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
