//! Attempts at an action that the server refuses for a while, or whose connection was lost.

use std::time::Duration;

use super::Writer;
use crate::engine::{EngineError, Fault};
use crate::threads;

/// Pauses between two attempts.
const PAUSE_MIN: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Attempts without a pause: a conflict with another transaction has ended when the server reports the conflict.
const AT_ONCE: u32 = 19;

/// The failed attempts at one action.
#[derive(Default)]
pub(super) struct Attempts {
    /// The time after which an attempt is the last; set by the first failure.
    give_up: Option<Duration>,
    /// Number of failed attempts without a pause.
    at_once: u32,
    /// The last pause.
    pause: Option<Duration>,
}

impl Attempts {
    /// Whether a pause was made; the log has a warning of the pause.
    pub(super) fn have_paused(&self) -> bool {
        self.pause.is_some()
    }

    /// Waits before the next attempt; returns the last attempt's error, as the cause. After the grace the error is final.
    pub(super) fn pause_after(
        &mut self,
        writer: &Writer,
        error: EngineError,
    ) -> Result<EngineError, EngineError> {
        let now = writer.outage.clock.since_boot();
        let give_up = *(self.give_up).get_or_insert(now + writer.outage.times.grace);
        if now >= give_up {
            return Err(match error.fault {
                // The caller must not retry either.
                Fault::Conflict => EngineError {
                    fault: Fault::Lost,
                    ..error
                },
                _ => error,
            });
        }
        let pause = match self.pause {
            Some(pause) => (pause * 2).min(PAUSE_MAX),
            None => {
                let problem = match error.fault {
                    Fault::Conflict => {
                        "transaction conflicted with another one, running it again on a new connection"
                    }
                    Fault::Short => "database refused a statement, sending it again",
                    _ => "connection to the database was lost, connecting again",
                };
                tracing::warn!(database = %writer.target.url, error = %error.source, "{problem}");
                PAUSE_MIN
            }
        };
        self.pause = Some(pause);
        threads::sleep(pause);
        Ok(error)
    }

    /// [`pause_after`](Self::pause_after), without a pause after the first attempts. An error by a lack of resources always pauses.
    pub(super) fn pause_after_many(
        &mut self,
        writer: &Writer,
        error: EngineError,
    ) -> Result<EngineError, EngineError> {
        if error.fault != Fault::Short && self.at_once < AT_ONCE {
            self.at_once += 1;
            return Ok(error);
        }
        self.pause_after(writer, error)
    }
}
