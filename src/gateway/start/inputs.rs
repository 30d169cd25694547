//! Inputs of every phase of a start.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};

use crate::config::Settings;
use crate::gateway::StartError;
use crate::telemetry::Telemetry;

/// Settings, time and randomness, and the telemetry that exists before the first socket.
pub(super) struct Inputs {
    pub(super) settings: Arc<Settings>,
    pub(super) clock: Clock,
    pub(super) entropy: Entropy,
    pub(super) telemetry: Telemetry,
}

impl Inputs {
    pub(super) fn new(
        settings: Settings,
        clock: Clock,
        entropy: Entropy,
    ) -> Result<Inputs, StartError> {
        let telemetry = Telemetry::new(&settings, clock.clone()).map_err(StartError::Telemetry)?;
        Ok(Inputs {
            settings: Arc::new(settings),
            clock,
            entropy,
            telemetry,
        })
    }
}
