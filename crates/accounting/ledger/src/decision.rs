//! A decision on a hold, which is taken at once or waited for.

use std::pin::Pin;

/// A decision. A node that has all that is asked for takes it at once, as a node that is alone does always; any other waits for the database.
#[must_use]
pub enum Decision<'l, T> {
    /// Decided.
    Now(T),
    /// Decides when it is polled, and not before.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'l>>),
}

impl<'l, T: 'l> Decision<'l, T> {
    pub(crate) fn later(decide: impl Future<Output = T> + Send + 'l) -> Decision<'l, T> {
        Decision::Later(Box::pin(decide))
    }

    /// The result, awaited if necessary.
    pub async fn finish(self) -> T {
        match self {
            Decision::Now(decided) => decided,
            Decision::Later(decide) => decide.await,
        }
    }

    /// The result if it is decided.
    pub fn now(self) -> Option<T> {
        match self {
            Decision::Now(decided) => Some(decided),
            Decision::Later(_) => None,
        }
    }
}
