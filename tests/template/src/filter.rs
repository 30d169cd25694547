//! The filter `office-hours`: refuses requests by the hour of the day.

use tollgate_clock::Clock;
use tollgate_counters::{Counters, labels};
use tollgate_filter::{
    ApiError, Body, Contract, ErrorCode, Exchange, FailureMode, Filter, Outcome, Phase, Step,
};

use crate::config::OfficeHoursSettings;

const SECS_PER_HOUR: i64 = 3_600;

labels! {
    /// The decision on a request.
    pub(crate) enum Decision {
        /// It came within the hours.
        Admitted = "admitted",
        /// It came outside of them.
        Refused = "refused",
    }
}

/// Refuses requests outside of the office hours.
pub(crate) struct OfficeHours {
    pub(crate) settings: OfficeHoursSettings,
    pub(crate) counters: Counters<Decision>,
    pub(crate) clock: Clock,
}

impl Filter for OfficeHours {
    fn name(&self) -> &'static str {
        "office-hours"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request.into(),
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let hour = exchange
            .now(&self.clock)
            .as_secs()
            .div_euclid(SECS_PER_HOUR)
            .rem_euclid(24);
        let OfficeHoursSettings { opens, closes } = self.settings;
        if (opens..closes).contains(&hour.unsigned_abs()) {
            self.counters.inc(Decision::Admitted);
            return Step::now(Outcome::Continue);
        }
        self.counters.inc(Decision::Refused);
        let message = format!("Requests are served from {opens}:00 to {closes}:00 UTC.");
        Step::now(Outcome::refuse(ApiError::new(
            ErrorCode::KeyNotPermitted,
            message,
        )))
    }
}
