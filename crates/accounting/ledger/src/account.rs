//! One account's balance for credit decisions: integers, no I/O.

use tollgate_money::Micros;

/// The balance of one account at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Available to spend; may be negative down to the credit limit.
    pub available: Micros,
    /// Reserved by open holds.
    pub held: Micros,
    /// The credit limit: how far below zero `available` may go.
    pub credit_limit: Micros,
    /// Credits owed by returned payments; not spendable. Zero on one of several nodes: the shared balance has the debts.
    pub owed: Micros,
    /// Whether the account has ever paid.
    pub has_paid: bool,
}

/// The result of a settlement or charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChargeOutcome {
    /// The amount charged.
    pub(crate) charged: Micros,
    /// The cost of the usage beyond `charged`.
    pub(crate) written_off: Micros,
}

impl ChargeOutcome {
    /// A charge of `charged` for a usage of `actual`. The reader checks both amounts again ([`ChargeOutcome::assert_within`]).
    fn of(charged: Micros, actual: Micros) -> ChargeOutcome {
        let outcome = ChargeOutcome {
            charged,
            written_off: actual - charged,
        };
        outcome.assert_within();
        outcome
    }

    /// A charge never gives credit away, and never exceeds the cost of its usage.
    pub(crate) fn assert_within(&self) {
        assert!(
            self.charged >= Micros::ZERO && self.written_off >= Micros::ZERO,
            "a charge of {} with {} written off is outside its cost",
            self.charged,
            self.written_off
        );
    }
}

impl Balance {
    /// The account's total: available and held together.
    pub fn total(&self) -> Micros {
        self.available + self.held
    }

    /// The most that can be held now; zero when the account is at its limit or, after the limit was lowered, below it.
    pub fn spendable(&self) -> Micros {
        (self.available.saturating_add(self.credit_limit) - self.owed).max(Micros::ZERO)
    }

    /// The maximum amount that can be taken back for returned payments.
    pub(crate) fn collectable(&self) -> Micros {
        (self.available.saturating_add(self.credit_limit)).max(Micros::ZERO)
    }

    /// Reserves `amount`, or refuses and changes nothing.
    #[must_use]
    pub(crate) fn hold(&mut self, amount: Micros) -> bool {
        assert!(
            amount >= Micros::ZERO,
            "a hold of {amount} would give credit away"
        );
        if amount > self.spendable() {
            return false;
        }
        self.available -= amount;
        self.held += amount;
        true
    }

    /// Settles a hold of `held`: charges `actual` to it and to the available balance, and frees the rest.
    pub(crate) fn settle(&mut self, held: Micros, actual: Micros) -> ChargeOutcome {
        self.release(held);
        // Credit reserved by the hold pays the charge before a debt.
        let within = held.min(self.collectable());
        self.charge_up_to(actual, within.max(self.spendable()))
    }

    /// [`Balance::settle`] for a process that no longer knows the available credit: charges only the hold.
    pub(crate) fn settle_within(&mut self, held: Micros, actual: Micros) -> ChargeOutcome {
        self.release(held);
        let charged = actual.min(held);
        self.available -= charged;
        ChargeOutcome::of(charged, actual)
    }

    /// Releases a hold of `held` without a charge.
    pub(crate) fn release(&mut self, held: Micros) {
        assert!(
            held <= self.held,
            "a hold of {held} ends on an account that has only {} held",
            self.held
        );
        self.held -= held;
        self.available += held;
        self.assert_held();
    }

    /// A hold never ends twice. Checked at the end of a hold, and when a balance is read.
    pub(crate) fn assert_held(&self) {
        assert!(
            self.held >= Micros::ZERO,
            "an account has {} held: a hold ended twice",
            self.held
        );
    }

    /// Charges `actual`, or the spendable part of `actual`.
    pub(crate) fn charge(&mut self, actual: Micros) -> ChargeOutcome {
        self.charge_up_to(actual, self.spendable())
    }

    fn charge_up_to(&mut self, actual: Micros, most: Micros) -> ChargeOutcome {
        let charged = actual.min(most);
        self.available -= charged;
        ChargeOutcome::of(charged, actual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "a hold ended twice"]
    fn a_balance_with_less_than_nothing_held_is_not_read() {
        let mut balance = Balance::default();
        balance.held -= Micros::new(1);
        balance.assert_held();
    }

    #[test]
    #[should_panic = "outside its cost"]
    fn a_charge_above_the_cost_of_its_usage_is_not_made() {
        ChargeOutcome::of(Micros::new(8), Micros::new(7));
    }

    #[test]
    fn settle_charges_the_hold_then_the_available_balance_and_never_more() {
        //  available limit hold actual | charged written_off available
        check(100, 0, 40, 40, [40, 0, 60]); // the whole hold
        check(100, 0, 40, 25, [25, 0, 75]); // part: the rest is free again
        check(100, 0, 40, 0, [0, 0, 100]); // no usage
        check(40, 0, 40, 40, [40, 0, 0]); // to the last micro
        check(100, 0, 40, 70, [70, 0, 30]); // beyond the hold, from free credit
        check(100, 0, 40, 130, [100, 30, 0]); // beyond both: lost to the operator
        check(100, 10, 40, 130, [110, 20, -10]); // down to the credit limit
        check(0, 50, 40, 40, [40, 0, -40]); // on credit alone
    }

    fn check(available: i64, limit: i64, hold: i64, actual: i64, expected: [i64; 3]) {
        let mut balance = Balance {
            available: Micros::new(available),
            credit_limit: Micros::new(limit),
            ..Balance::default()
        };
        assert!(balance.hold(Micros::new(hold)), "the hold fits");
        let taken = balance.settle(Micros::new(hold), Micros::new(actual));
        let seen = [
            taken.charged.get(),
            taken.written_off.get(),
            balance.available.get(),
        ];
        assert_eq!(
            seen, expected,
            "{available} + {limit}, {hold} then {actual}"
        );
        assert_eq!(balance.held, Micros::ZERO, "nothing stays held");
    }

    #[test]
    fn owed_credit_is_reserved_from_holds_and_charges_but_not_from_the_charge_of_a_hold() {
        // available held owed: spendable, settled (actual): charged
        for (available, held, owed, spendable, actual, charged) in [
            (100, 0, 30, 70, 0, 0),
            (0, 40, 40, 0, 25, 25),
            (0, 40, 40, 0, 40, 40),
            (0, 40, 40, 0, 50, 40), // the cost beyond the hold is owed credit
            (100, 40, 30, 70, 130, 110), // the hold, and credit not owed
            (100, 40, 140, 0, 130, 40),
        ] {
            let mut balance = Balance {
                available: Micros::new(available),
                held: Micros::new(held),
                owed: Micros::new(owed),
                ..Balance::default()
            };
            assert_eq!(balance.spendable().get(), spendable, "{balance:?}");
            let case = format!("{actual} of {balance:?}");
            let mut other = balance;
            assert!(!other.hold(Micros::new(spendable + 1)), "{case}");
            assert!(other.hold(Micros::new(spendable)), "{case}");
            let taken = balance.settle(Micros::new(held), Micros::new(actual));
            assert_eq!(taken.charged.get(), charged, "{case}");
            assert_eq!(taken.written_off.get(), actual - charged, "{case}");
        }
    }

    #[test]
    fn a_hold_beyond_the_spendable_amount_changes_nothing() {
        //       available limit hold fits
        for (available, limit, hold, fits) in [
            (10, 0, 10, true),
            (10, 0, 11, false),
            (0, 0, 0, true),
            (-5, 10, 5, true),
            (-5, 10, 6, false),
            (-20, 10, 0, true),
            (-20, 10, 1, false),
        ] {
            let before = Balance {
                available: Micros::new(available),
                held: Micros::new(3),
                credit_limit: Micros::new(limit),
                ..Balance::default()
            };
            let mut balance = before;
            assert_eq!(
                balance.hold(Micros::new(hold)),
                fits,
                "{hold} of {available} with limit {limit}"
            );
            assert_eq!(balance.total(), before.total(), "a hold takes nothing");
            if !fits {
                assert_eq!(balance, before);
            }
        }
    }
}
