//! Moves of credit and of parts of caps between the shared budgets and this node, within a batch.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId, SpendingCap};

use super::Batch;
use crate::allotment::{
    AllotmentPart, Answer, Budget, CapRow, KeyCap, LEFT, Recall, SPENT_BEFORE, SharedBalance,
    TakeResult,
};
use crate::codes::ChangeKind;
use crate::engine::{Sql, WriteError};
use crate::entries::LedgerPart;
use crate::error::Refusal;
use crate::reads::caps;
use crate::tables;
use crate::unit::{CredentialChange, Receipt};

/// A take of a part of a budget.
struct Take {
    operation: OperationId,
    budget: Budget,
    need: i64,
    target: i64,
    is_owed: bool,
    at: Timestamp,
}

impl Batch {
    pub(super) fn allotment(
        &mut self,
        sql: &dyn Sql,
        part: &AllotmentPart,
    ) -> Result<Receipt, WriteError> {
        match *part {
            AllotmentPart::Take {
                operation,
                budget,
                need,
                target,
                is_owed,
                at,
            } => {
                let take = Take {
                    operation,
                    budget,
                    need: need.get(),
                    target: target.get(),
                    is_owed,
                    at,
                };
                let taken = self.take_share(sql, &take)?;
                Ok(Receipt {
                    taken: Some(taken),
                    ..Receipt::default()
                })
            }
            AllotmentPart::Return {
                operation,
                budget,
                amount,
                answer,
                at,
            } => {
                if amount.is_positive() {
                    let amount = Micros::new(-amount.get());
                    self.allot(sql, (operation, budget), amount, at)?;
                }
                self.answer_recall(sql, budget, answer)?;
                Ok(Receipt::default())
            }
            AllotmentPart::Overspent { cap, amount, at } => {
                if !tables::allotment::try_grant_cap(sql, self.node, cap, amount.get())? {
                    self.count_without_row(sql, cap)?;
                }
                self.recall_overspent(sql, cap, at)?;
                Ok(Receipt::default())
            }
            AllotmentPart::Leave => {
                self.shared.invalidate(sql, self.node)?;
                tables::allotment::leave(sql, self.node)?;
                Ok(Receipt::default())
            }
        }
    }

    /// Moves a part of the shared balance to this node, or recalls a budget that has too little.
    fn take_share(&mut self, sql: &dyn Sql, take: &Take) -> Result<TakeResult, WriteError> {
        let Take {
            operation,
            budget,
            need,
            target,
            is_owed,
            at,
        } = *take;
        let (shared, parts) = self.shared_of(sql, budget)?;
        let Some(amount) = shared.share(need, target, is_owed) else {
            let recall = self.keep_recall(sql, budget, &shared, need, at)?;
            // Includes answers in this batch.
            self.shared.flush(sql, self.node)?;
            return Ok(TakeResult::Short {
                spendable: Micros::new(shared.spendable().max(0)),
                recall,
                is_pending: tables::allotment::is_recall_pending(sql, self.node, budget, recall)?,
            });
        };
        let amount = Micros::new(amount);
        let mut recall = shared.recall.number;
        if recall != 0 && shared.has_plenty(need, at) {
            self.set_recall(sql, budget, Recall::default())?;
            self.recall_change(sql, budget, at)?;
            recall = 0;
        }
        match budget {
            Budget::Account(account) => {
                self.shared.open(sql, self.node, account, recall)?;
            }
            Budget::Cap(cap) => self.open_cap(sql, cap, recall, &parts)?,
        }
        self.allot(sql, (operation, budget), amount, at)?;
        Ok(TakeResult::Amount { amount, recall })
    }

    /// Records this node's answer to a recall of a budget.
    fn answer_recall(
        &mut self,
        sql: &dyn Sql,
        budget: Budget,
        answer: Answer,
    ) -> Result<(), WriteError> {
        let number = match answer {
            Answer::None => return Ok(()),
            Answer::Held(recall) => recall,
            Answer::Nothing => LEFT,
        };
        match budget {
            Budget::Account(account) => {
                self.shared.answer(sql, self.node, account, number)?;
            }
            Budget::Cap(cap) => tables::allotment::answer_cap_recall(sql, self.node, cap, number)?,
        }
        Ok(())
    }

    /// The shared balance of a budget; for a cap also the rows of the nodes.
    fn shared_of(
        &mut self,
        sql: &dyn Sql,
        budget: Budget,
    ) -> Result<(SharedBalance, CapParts), WriteError> {
        match budget {
            Budget::Account(account) => {
                let shared = self.shared.of(sql, account)?;
                let shared = shared.ok_or(WriteError::Refused(Refusal::NoAccount(account)))?;
                Ok((shared, CapParts::default()))
            }
            Budget::Cap(cap) => {
                let key = credential(sql, cap.credential)?;
                let mut parts = CapParts {
                    granted: tables::allotment::cap_rows(sql, cap)?,
                    is_summed: false,
                };
                if parts.granted.is_empty() {
                    let spent = self.spent_without_row(sql, cap, key.0, &[])?;
                    tables::allotment::insert_cap_row(sql, SPENT_BEFORE, cap, spent, spent, LEFT)?;
                    parts.granted.push(CapRow {
                        node: SPENT_BEFORE,
                        granted: spent,
                        spent,
                    });
                    parts.is_summed = true;
                }
                Ok((shared_cap(sql, cap, key.1, &parts.granted)?, parts))
            }
        }
    }

    /// A key's spending in a period beyond the sum of the nodes' rows: the spending of nodes without a row, or from before their row.
    /// Other nodes post only with the lock of the shared state, so the totals and the rows are of one moment.
    fn spent_without_row(
        &mut self,
        sql: &dyn Sql,
        cap: KeyCap,
        account: AccountId,
        counted: &[CapRow],
    ) -> Result<i64, WriteError> {
        let mut spent = caps::posted(sql, account, cap)?;
        let counted = counted.iter().filter(|row| row.node != SPENT_BEFORE);
        let counted: Vec<_> = counted.collect();
        spent -= counted.iter().map(|row| row.spent).sum::<i64>();
        let is_counted = |node| counted.iter().any(|row| row.node == node);
        if !is_counted(self.node) {
            spent += self.pending(cap)?;
        }
        let charges = self.unposted_of_cap(sql, cap)?;
        let others = charges.iter().filter(|(node, _)| !is_counted(*node));
        Ok(spent + others.map(|(_, charged)| charged).sum::<i64>())
    }

    /// Charges of a key in unposted commits, by node. The charges of every key are read once for a batch: the first takes of a month come
    /// together. Other nodes announce their later charges.
    fn unposted_of_cap(
        &mut self,
        sql: &dyn Sql,
        cap: KeyCap,
    ) -> Result<Vec<(i64, i64)>, WriteError> {
        let charges = match self.unposted_charges.take() {
            Some(charges) => charges,
            None => caps::unposted_charges(sql)?,
        };
        let of_cap = caps::unposted_of_cap(&charges, cap);
        self.unposted_charges = Some(charges);
        Ok(of_cap)
    }

    /// Charges of a key in the earlier units of this batch.
    fn pending(&self, cap: KeyCap) -> Result<i64, WriteError> {
        let mut sum = 0;
        if self.packer.count() > 0 {
            caps::each_charge(
                &self.packer.pending(),
                &mut |credential, charged, began_in| {
                    if credential == cap.credential && cap.counts(began_in) {
                        sum += charged;
                    }
                },
            )
            .map_err(|error| WriteError::Inconsistent(format!("the commit {error}")))?;
        }
        Ok(sum)
    }

    /// Opens the row of this node; the row counts the node's charges from now on. The node's earlier charges may be later than the row of
    /// spending without a row ([`SPENT_BEFORE`]).
    fn open_cap(
        &mut self,
        sql: &dyn Sql,
        cap: KeyCap,
        recall: i64,
        parts: &CapParts,
    ) -> Result<(), WriteError> {
        if parts.granted.iter().any(|row| row.node == self.node) {
            return Ok(tables::allotment::open_cap_row(
                sql, self.node, cap, recall,
            )?);
        }
        let charges = self.unposted_of_cap(sql, cap)?;
        let own = charges.iter().filter(|(node, _)| *node == self.node);
        let before = own.map(|(_, charged)| charged).sum::<i64>() + self.pending(cap)?;
        self.tail.count_cap_of(cap.credential);
        tables::allotment::insert_cap_row(sql, self.node, cap, 0, -before, recall)?;
        match parts.is_summed {
            // The sum is unchanged: the charges counted by this row from now on are not in the sum.
            true => Ok(()),
            false => self.count_without_row(sql, cap),
        }
    }

    /// Counts a key's spending from the time in which its cap was not in force. Recalls the excess over a lower cap from the nodes.
    /// Includes earlier months: requests of an earlier month may still run, and the audit checks these months by the cap in force.
    pub(super) fn cap_changed(
        &mut self,
        sql: &dyn Sql,
        change: &CredentialChange,
    ) -> Result<(), WriteError> {
        let Some(SpendingCap { period, .. }) = change.spending_cap else {
            return Ok(());
        };
        let now = KeyCap::at(change.id, period, change.at);
        let mut caps = vec![now];
        if now.month.is_some() {
            let months = tables::allotment::cap_months(sql, change.id)?
                .into_iter()
                .map(Some);
            let of_months = months.map(|month| KeyCap { month, ..now });
            caps.extend(of_months.filter(|cap| *cap != now));
        }
        for cap in caps {
            self.count_without_row(sql, cap)?;
            self.recall_overspent(sql, cap, change.at)?;
        }
        Ok(())
    }

    /// Sums the spending without a row again, from the journal: one charge may be both announced and found. If the cap has no row, the
    /// first take sums.
    fn count_without_row(&mut self, sql: &dyn Sql, cap: KeyCap) -> Result<(), WriteError> {
        let counted = tables::allotment::cap_rows(sql, cap)?;
        if let Some(before) = counted.iter().find(|row| row.node == SPENT_BEFORE) {
            let (account, _) = credential(sql, cap.credential)?;
            let spent = self.spent_without_row(sql, cap, account, &counted)?;
            tables::allotment::grant_cap(sql, SPENT_BEFORE, cap, spent - before.granted)?;
        }
        Ok(())
    }

    /// Recalls a cap whose nodes were granted more than the cap.
    fn recall_overspent(
        &mut self,
        sql: &dyn Sql,
        cap: KeyCap,
        at: Timestamp,
    ) -> Result<(), WriteError> {
        let granted = tables::allotment::cap_rows(sql, cap)?;
        if !granted.is_empty() {
            let (_, in_force) = credential(sql, cap.credential)?;
            let shared = shared_cap(sql, cap, in_force, &granted)?;
            if shared.available < 0 && shared.recall.number == 0 {
                self.keep_recall(sql, Budget::Cap(cap), &shared, 0, at)?;
            }
        }
        Ok(())
    }

    /// Recalls an account whose returned payments owe credits, until the account owes no credit. Credit freed by other nodes then becomes
    /// shared, where no request can spend the credit.
    pub(super) fn recall_owing(
        &mut self,
        sql: &dyn Sql,
        account: AccountId,
        at: Timestamp,
    ) -> Result<(), WriteError> {
        let budget = Budget::Account(account);
        let (shared, _) = self.shared_of(sql, budget)?;
        if shared.recall.number == 0 {
            self.keep_recall(sql, budget, &shared, 0, at)?;
        }
        // The owed amount is read again.
        Ok(self.shared.invalidate(sql, self.node)?)
    }

    /// Begins the recall of a budget that has too little for a take, or keeps the recall in force; returns the recall's number.
    fn keep_recall(
        &mut self,
        sql: &dyn Sql,
        budget: Budget,
        shared: &SharedBalance,
        need: i64,
        at: Timestamp,
    ) -> Result<i64, WriteError> {
        let kept = match shared.recall.number {
            0 => Some(Recall {
                number: self.recall_change(sql, budget, at)?,
                need,
                short_at: at,
            }),
            _ => shared.recall.after_short(need, at),
        };
        if let Some(recall) = kept {
            self.set_recall(sql, budget, recall)?;
        }
        Ok(kept.unwrap_or(shared.recall).number)
    }

    fn set_recall(
        &mut self,
        sql: &dyn Sql,
        budget: Budget,
        recall: Recall,
    ) -> Result<(), WriteError> {
        if let Budget::Account(account) = budget {
            self.shared.recalled(account, recall);
        }
        Ok(tables::allotment::set_recall(sql, budget, recall)?)
    }

    /// Announces the beginning or the end of a recall.
    fn recall_change(
        &mut self,
        sql: &dyn Sql,
        budget: Budget,
        at: Timestamp,
    ) -> Result<i64, WriteError> {
        match budget {
            Budget::Account(account) => {
                self.change(sql, ChangeKind::Recall, account.as_bytes(), at)
            }
            Budget::Cap(cap) => {
                let subject = cap.credential.as_bytes();
                self.change(sql, ChangeKind::Credential, subject, at)
            }
        }
    }

    /// Moves a part of a budget between the shared balance and this node.
    fn allot(
        &mut self,
        sql: &dyn Sql,
        (operation, budget): (OperationId, Budget),
        amount: Micros,
        at: Timestamp,
    ) -> Result<(), WriteError> {
        let account = match budget {
            Budget::Account(account) => account,
            Budget::Cap(cap) => {
                // A row removed by a later month has nothing to return.
                tables::allotment::grant_cap(sql, self.node, cap, amount.get())?;
                return Ok(());
            }
        };
        if !self.tail.begin(operation) {
            return Err(WriteError::Refused(Refusal::OperationExists(operation)));
        }
        self.shared.add(account, -amount.get());
        self.push(&LedgerPart::Allot {
            operation,
            account,
            amount,
            at,
        });
        Ok(())
    }
}

/// The rows of a cap.
#[derive(Default)]
struct CapParts {
    granted: Vec<CapRow>,
    /// Whether this commit sums the spending without a row.
    is_summed: bool,
}

/// The rest of a cap. A cap that is no longer in force leaves an unlimited rest to the requests that began under the cap.
fn shared_cap(
    sql: &dyn Sql,
    cap: KeyCap,
    in_force: Option<SpendingCap>,
    granted: &[CapRow],
) -> Result<SharedBalance, WriteError> {
    let max = caps::in_force(cap, in_force).map_or(i64::MAX, Micros::get);
    let sum = granted
        .iter()
        .fold(0_i64, |sum, row| sum.saturating_add(row.granted));
    Ok(SharedBalance {
        available: max.saturating_sub(sum),
        credit_limit: 0,
        owed: 0,
        recall: tables::allotment::recall(sql, Budget::Cap(cap))?,
    })
}

/// The account of a credential, and the credential's cap.
fn credential(
    sql: &dyn Sql,
    id: CredentialId,
) -> Result<(AccountId, Option<SpendingCap>), WriteError> {
    caps::owner_and_cap(sql, id)?.ok_or(WriteError::Refused(Refusal::NoCredential(id)))
}
