//! Group commit: the writer thread, the content of a commit, and the state for the writer's decisions.

mod batch;
mod coalesce;
mod journal_tail;
mod posted_balances;
mod posting_schedule;
mod recent_operations;
mod serve;
mod writer;

pub(crate) use self::journal_tail::JournalTail;
pub(crate) use self::writer::{Settings, Shared, StartError, start};
