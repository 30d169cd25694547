//! The completeness of a stream: which choices have started and finished.

use smallvec::SmallVec;

use crate::chunk::Chunk;
use crate::completion::FinishReason;
use crate::usage::Usage;

/// The most choices whose ends are tracked. No provider sends as many; the limit bounds the cost of a broken provider.
const CHOICES_MAX: usize = 1024;

/// The state of a stream, updated by each event.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Choices so far, by index, with their finish reasons.
    choices: SmallVec<[(u32, Option<FinishReason>); 2]>,
    unfinished: usize,
    usage: Option<Usage>,
    error: bool,
    /// The choices that have had output, by index.
    with_output: SmallVec<[u32; 2]>,
}

impl Progress {
    /// Adds one event.
    pub fn note(&mut self, chunk: &Chunk<'_>) {
        self.usage = chunk.usage().or(self.usage);
        self.error |= chunk.error().is_some();
        for choice in chunk.choices() {
            let place = self
                .choices
                .binary_search_by_key(&choice.index, |(index, _)| *index);
            if place.is_err() && self.choices.len() == CHOICES_MAX {
                // The stream will never count as finished, because the stream is not tracked to the end.
                self.unfinished = usize::MAX;
                continue;
            }
            let at = place.unwrap_or_else(|at| {
                self.choices.insert(at, (choice.index, None));
                self.unfinished = self.unfinished.saturating_add(1);
                at
            });
            if choice.output
                && let Err(at) = self.with_output.binary_search(&choice.index)
            {
                self.with_output.insert(at, choice.index);
            }
            let finish = &mut self.choices[at].1;
            if choice.finish.is_some() {
                self.unfinished -= usize::from(finish.is_none());
                *finish = choice.finish;
            }
        }
    }

    /// Whether at least a choice has arrived, and every arrived choice has ended.
    ///
    /// With `n` above 1 a choice may still be missing when this becomes true: compare [`choices_seen`](Self::choices_seen) with the
    /// requested number.
    pub fn all_finished(&self) -> bool {
        !self.choices.is_empty() && self.unfinished == 0
    }

    /// Whether every choice ended by itself, and not at a limit on its tokens.
    pub fn all_stopped(&self) -> bool {
        let stopped =
            |(_, finish): &(u32, Option<FinishReason>)| finish.is_some_and(FinishReason::is_stop);
        self.all_finished() && self.choices.iter().all(stopped)
    }

    /// Whether every choice has ended, and no choice broke off: see [`FinishReason::is_whole`].
    pub fn all_whole(&self) -> bool {
        let whole =
            |(_, finish): &(u32, Option<FinishReason>)| finish.is_some_and(FinishReason::is_whole);
        self.all_finished() && self.choices.iter().all(whole)
    }

    /// Whether each choice has had output: see [`Choice::output`](crate::Choice::output).
    pub fn all_have_output(&self) -> bool {
        self.with_output.len() == self.choices.len()
    }

    /// The finish reasons so far, in the order of the choices.
    pub fn finishes(&self) -> impl Iterator<Item = FinishReason> {
        self.choices.iter().filter_map(|(_, finish)| *finish)
    }

    /// The number of different choices so far.
    pub fn choices_seen(&self) -> usize {
        self.choices.len()
    }

    /// The current usage: the last valid usage.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Whether the stream reported a failure, as an `error` or as a finish reason.
    pub fn failed(&self) -> bool {
        let by_reason = |(_, finish): &(u32, _)| *finish == Some(FinishReason::Error);
        self.error || self.choices.iter().any(by_reason)
    }
}
