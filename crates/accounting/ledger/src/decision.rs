//! A decision on a hold: available at once, or awaited.

use std::pin::Pin;

/// A decision. A node with enough credit decides at once; a node that is alone always does. Otherwise the decision waits for the database.
#[must_use]
pub enum Decision<'l, T> {
    Now(T),
    /// Decides when polled, and not before.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'l>>),
}

impl<'l, T: 'l> Decision<'l, T> {
    pub(crate) fn later(decide: impl Future<Output = T> + Send + 'l) -> Decision<'l, T> {
        Decision::Later(Box::pin(decide))
    }

    /// The decision with another result.
    pub(crate) fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'l) -> Decision<'l, U> {
        match self {
            Decision::Now(decided) => Decision::Now(change(decided)),
            Decision::Later(decide) => {
                Decision::Later(Box::pin(async move { change(decide.await) }))
            }
        }
    }

    /// The result, awaited if necessary.
    pub async fn finish(self) -> T {
        match self {
            Decision::Now(decided) => decided,
            Decision::Later(decide) => decide.await,
        }
    }

    /// The result, if already decided.
    pub fn now(self) -> Option<T> {
        match self {
            Decision::Now(decided) => Some(decided),
            Decision::Later(_) => None,
        }
    }
}
