//! What the events of one stream add up to.

use smallvec::SmallVec;

use crate::chunk::Chunk;
use crate::completion::FinishReason;
use crate::usage::Usage;

/// Most choices whose ends are followed. No provider gives as many; the bound keeps a broken one cheap.
const CHOICES_MAX: usize = 1024;

/// The standing of one stream, told event by event.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Choices seen, in the order of their index, with the reason they ended for.
    choices: SmallVec<[(u32, Option<FinishReason>); 2]>,
    unfinished: usize,
    usage: Option<Usage>,
    error: bool,
}

impl Progress {
    /// Takes one event into account.
    pub fn note(&mut self, chunk: &Chunk<'_>) {
        self.usage = chunk.usage().or(self.usage);
        self.error |= chunk.error().is_some();
        for choice in chunk.choices() {
            let place = self
                .choices
                .binary_search_by_key(&choice.index, |(index, _)| *index);
            if place.is_err() && self.choices.len() == CHOICES_MAX {
                // The stream will not count as finished: it is not followed to the end.
                self.unfinished = usize::MAX;
                continue;
            }
            let at = place.unwrap_or_else(|at| {
                self.choices.insert(at, (choice.index, None));
                self.unfinished = self.unfinished.saturating_add(1);
                at
            });
            let finish = &mut self.choices[at].1;
            if choice.finish.is_some() {
                self.unfinished -= usize::from(finish.is_none());
                *finish = choice.finish;
            }
        }
    }

    /// Whether at least one choice was seen, and every one of them has ended.
    ///
    /// With `n` above 1 a choice may not have been seen yet when this becomes true: compare
    /// [`choices_seen`](Self::choices_seen) with what was asked for.
    pub fn all_finished(&self) -> bool {
        !self.choices.is_empty() && self.unfinished == 0
    }

    /// How many different choices were seen.
    pub fn choices_seen(&self) -> usize {
        self.choices.len()
    }

    /// The usage that holds so far: the last that made sense.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Whether the stream reported a failure, as an `error` or as the reason a choice ended for.
    pub fn failed(&self) -> bool {
        let by_reason = |(_, finish): &(u32, _)| *finish == Some(FinishReason::Error);
        self.error || self.choices.iter().any(by_reason)
    }
}
