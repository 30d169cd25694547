//! Charges without a hold, at most the available balance.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{Admission, Budget, Failure, SubmitError};

use crate::accounts::Ledger;
use crate::charge::{Charge, ChargeError};
use crate::decision::Decision;
use crate::hold::Hold;
use crate::hold_request::{HoldError, HoldRequest, rest};
use crate::settlement::{AttachedPart, Settlement};
use crate::units::{charged_at, settled, unit_with};

impl Ledger {
    /// Charges a cost that had no hold, at most the available balance. Decided in memory and queued for the disk; returns at once.
    pub fn charge(&self, charge: Charge) -> Result<Settlement, ChargeError> {
        self.charge_with(charge, None)
    }

    /// Charges together with a part: one commit has both, or neither.
    pub fn charge_with(
        &self,
        charge: Charge,
        attached: Option<AttachedPart>,
    ) -> Result<Settlement, ChargeError> {
        self.decide_charge(charge, attached, None)
    }

    /// Charges the credit of a hold in memory ([`Ledger::cover`]).
    pub fn charge_held(
        &self,
        charge: Charge,
        attached: Option<AttachedPart>,
        held: Option<Hold>,
    ) -> Result<Settlement, ChargeError> {
        let account = charge.account;
        let charged = |held| self.decide_charge(charge, attached, held);
        self.with_held(account, held, charged)
    }

    /// Takes credit for a charge without a hold, on one of several nodes: at most the credit of the account. `None` on a node that is
    /// alone, where the charge finds the credit.
    ///
    /// # Errors
    ///
    /// The account has no credit, or another node did not answer for its part of the account. In the second case the charge could write off
    /// credit of the other node.
    pub fn cover(
        &self,
        account: AccountId,
        amount: Micros,
        at: Timestamp,
    ) -> Decision<'_, Result<Option<Hold>, HoldError>> {
        if !self.has_allotments {
            return Decision::Now(Ok(None));
        }
        let amount = amount.max(self.least_hold());
        let request = HoldRequest::brief(self.next_move(at), account, amount, at);
        self.hold(request, rest).map(|held| held.map(Some))
    }

    /// Uses a hold. During a recall of the account the remainder is returned.
    pub(crate) fn with_held<T>(
        &self,
        account: AccountId,
        held: Option<Hold>,
        act: impl FnOnce(Option<Hold>) -> T,
    ) -> T {
        let has_held = held.is_some();
        let done = act(held);
        if has_held {
            self.answer_recall(account);
        }
        done
    }

    pub(crate) fn decide_charge(
        &self,
        charge: Charge,
        attached: Option<AttachedPart>,
        held: Option<Hold>,
    ) -> Result<Settlement, ChargeError> {
        let Charge {
            operation,
            account,
            amount,
            ..
        } = charge;
        assert!(
            amount >= Micros::ZERO,
            "a charge of {amount} would give credit away"
        );
        self.note(charge.at);
        let mut shard = self.shard(account);
        if let Some(held) = held {
            held.free_in(&mut shard);
        }
        let elsewhere = shard.elsewhere(account);
        if shard.is_handed_over && amount.is_positive() {
            return Err(ChargeError::Overloaded { waiting: 0 });
        }
        let Some(balance) = shard.accounts.get_mut(&account) else {
            return Err(ChargeError::NoAccount { account });
        };
        let taken = balance.charge(amount);
        let part = LedgerPart::Charge {
            operation,
            account,
            charged: taken.charged,
            written_off: taken.written_off,
            price_version: charge.price_version,
            usage: charge.usage,
            at: charged_at(operation, charge.at),
        };
        let mut settled = settled(taken, balance);
        settled.available += elsewhere;
        let undo = self.undo_of(&attached);
        let (done, wait) = self.charge_callback(account, taken.charged, None, undo.clone());
        // No caller waits for a record without cost.
        let admission = match taken.charged.is_positive() || attached.is_some() {
            true => Admission::Normal,
            false => Admission::BestEffort,
        };
        let unit = unit_with(part, attached, settled, admission);
        match self.store.submit(unit, done) {
            Ok(()) => Ok(Settlement {
                operation,
                settled,
                wait: Ok(wait),
                undo,
                reserved: None,
            }),
            Err(error) => {
                balance.available += taken.charged;
                Err(match error {
                    SubmitError::Overloaded { waiting } => ChargeError::Overloaded { waiting },
                    SubmitError::CutOff => ChargeError::CutOff,
                    SubmitError::Stopped(source) => ChargeError::Store { operation, source },
                    _ => ChargeError::Store {
                        operation,
                        source: Failure::closed(),
                    },
                })
            }
        }
    }

    /// Returns the available credit of a recalled account.
    fn answer_recall(&self, account: AccountId) {
        let mut shard = self.shard(account);
        self.give_back(&mut shard, Budget::Account(account), self.latest());
    }
}
