//! Write conflicts: another node has changed a row since the read. Locks separate the tasks of a process; row versions separate nodes. The
//! loser of a conflict reads the rows again.

use tollgate_store::{CommitError, Refusal};

/// Attempts of an operation while other nodes keep changing the rows.
pub(crate) const ATTEMPTS: usize = 8;

/// An error of an operation on rows that have versions.
pub(crate) trait WriteConflict {
    /// Whether a row changed since the read and the write was refused.
    fn is_conflict(&self) -> bool;
}

impl WriteConflict for Refusal {
    fn is_conflict(&self) -> bool {
        matches!(
            self,
            Refusal::MandateConflict(_) | Refusal::MandateExists(_) | Refusal::TopUpConflict(_)
        )
    }
}

impl WriteConflict for CommitError {
    fn is_conflict(&self) -> bool {
        matches!(self, CommitError::Refused(refusal) if refusal.is_conflict())
    }
}

/// Runs an operation, and repeats the operation after each conflict. The operation has to read the rows itself.
pub(crate) async fn repeated<T, E: WriteConflict, F: Future<Output = Result<T, E>>>(
    operation: impl Fn() -> F,
) -> Result<T, E> {
    for _ in 1..ATTEMPTS {
        match operation().await {
            Err(error) if error.is_conflict() => {}
            done => return done,
        }
    }
    operation().await
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tollgate_money::MandateId;

    use super::*;

    #[tokio::test]
    async fn an_operation_is_repeated_after_conflicts_alone() {
        let conflict = Refusal::MandateConflict(MandateId::from_bytes([1; 16]));
        let refused = |refusal: &Refusal| Err(CommitError::Refused(refusal.clone()));
        for (refusals, refusal, attempts, is_done) in [
            (0, &conflict, 1, true),
            (2, &conflict, 3, true),
            (100, &conflict, 8, false),
            (1, &Refusal::SessionEnded, 1, false),
        ] {
            let calls = Cell::new(0);
            let done = repeated(|| {
                calls.set(calls.get() + 1);
                std::future::ready(match calls.get() <= refusals {
                    true => refused(refusal),
                    false => Ok(()),
                })
            });
            assert_eq!(done.await.is_ok(), is_done, "{refusals} times {refusal}");
            assert_eq!(calls.get(), attempts, "{refusals} times {refusal}");
        }
    }
}
