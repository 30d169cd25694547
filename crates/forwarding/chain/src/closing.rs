//! The wait for the end of a complete answer not closed by its provider.

use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_filter::{AnswerProgress, AnswerUsage, Tokens};

/// A complete answer has ended after this much silence, whatever the state of the provider's connection.
pub const SILENCE_MAX: Duration = Duration::from_secs(2);

/// The state of a stream from the moment at which every requested choice has a finish reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Closing(Option<Finished>);

/// An answer with finished choices: at most the usage is missing.
#[derive(Clone, Copy, Debug)]
struct Finished {
    /// Bytes of output.
    output: u64,
    usage: Option<Tokens>,
    /// Clock reading at the last change of choices or usage. Comments and events without new data are silence.
    since: Duration,
}

impl Closing {
    /// Notes the answer so far. Returns whether the wait for the end begins now.
    pub(crate) fn note(
        &mut self,
        progress: &AnswerProgress,
        answer: &AnswerUsage,
        clock: &Clock,
    ) -> bool {
        if !progress.finished {
            return false;
        }
        let output = answer.text.len() as u64 + answer.media_bytes;
        let usage = answer.reported;
        let known = self
            .0
            .filter(|known| known.output == output && known.usage == usage);
        if known.is_none() {
            self.0 = Some(Finished {
                output,
                usage,
                since: clock.elapsed(),
            });
        }
        known.is_none()
    }

    /// Whether the answer is complete: every requested choice has finished, and the usage is there.
    pub(crate) fn is_complete(&self) -> bool {
        // A provider that reports only zeros has not counted.
        let usage = self.0.and_then(|answer| answer.usage);
        usage.is_some_and(|usage| usage != Tokens::default())
    }

    /// How much longer the provider may be silent; `None` while a choice is unfinished.
    pub(crate) fn left(&self, clock: &Clock) -> Option<Duration> {
        let Finished { since, .. } = self.0?;
        Some(silence_left(since, clock))
    }

    /// Whether the provider has been silent for long enough.
    pub(crate) fn is_over(&self, clock: &Clock) -> bool {
        self.left(clock).is_some_and(|left| left.is_zero())
    }
}

/// How much longer a provider may be silent that was last heard at the clock reading `since`.
pub(crate) fn silence_left(since: Duration, clock: &Clock) -> Duration {
    SILENCE_MAX.saturating_sub(clock.elapsed().saturating_sub(since))
}

#[cfg(test)]
mod tests {
    use tollgate_clock::Timestamp;

    use super::*;

    const USAGE: Tokens = Tokens {
        prompt: 5,
        completion: 4,
    };

    #[test]
    fn an_answer_is_over_when_a_finished_one_has_not_changed_for_two_seconds() {
        let (clock, manual) = Clock::manual(Timestamp::from_secs(5));
        let mut closing = Closing::default();
        //   after ms, finished, text, usage, then: complete, over
        for (after, finished, text, usage, complete, over) in [
            (9_000, false, "a", Some(USAGE), false, false),
            (9_000, true, "ab", None, false, false),
            (1_999, true, "ab", None, false, false),
            // A usage of zeros is none, though it is news.
            (0, true, "ab", Some(Tokens::default()), false, false),
            (1_999, true, "ab", Some(USAGE), true, false),
            // Text after the finish reason belongs to the answer.
            (1_999, true, "abc", Some(USAGE), true, false),
            (1_999, true, "abc", Some(USAGE), true, false),
            (1, true, "abc", Some(USAGE), true, true),
        ] {
            manual.advance(Duration::from_millis(after));
            let progress = AnswerProgress {
                finished,
                ..AnswerProgress::default()
            };
            let answer = AnswerUsage {
                reported: usage,
                text: text.to_owned(),
                ..AnswerUsage::default()
            };
            closing.note(&progress, &answer, &clock);
            let state = (closing.is_complete(), closing.is_over(&clock));
            assert_eq!(state, (complete, over), "{text} with {usage:?}");
        }
    }
}
