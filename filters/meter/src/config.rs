//! Settings: `[meter]` as written, and as checked.

use std::num::NonZeroU64;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::AfterLeaving;
use tollgate_filter::settings::{Amount, CallTimeouts, Problems, Switch, Whole, Word};
use tollgate_module::{Section, SectionContext, Services, check_text};
use tollgate_money::Micros;

/// `[meter]` exactly as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawMeter {
    /// The credit limit of a new account.
    ///
    /// Default: `"0"`
    pub credit_limit: Amount,
    /// How long a stream is drained after the client has disconnected.
    pub drain_secs: Whole<30, 0, 600>,
    /// When the client of a stream has disconnected: `drain` reads on from the provider, for the usage that it reports at the end; `stop`
    /// cancels the call at once, and the relayed tokens are counted.
    pub after_leaving: Word<AfterLeaving>,
    /// Lifetime of a hold; then it expires.
    ///
    /// Range: above every `total_secs`
    pub hold_secs: Whole<3_600, 60, 86_400>,
    /// Tokens of work in an hour, for requests of an account whose client disconnects before any output, that are free: prompts, and 100
    /// for each second; beyond it 429. 0: no limit.
    pub abandoned_tokens_max: Whole<1_000_000, 0, 1_000_000_000_000>,
    /// Caps a request without a cap at what its account can pay, instead of refusing it.
    pub clamp_output: Switch<true>,
    /// The smallest such cap; below it the request is refused with 402.
    pub clamp_tokens_min: Whole<16, 1, 65_536>,
    /// How tokens are estimated.
    pub estimate: RawEstimate,
}

/// `[meter.estimate]` exactly as written.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RawEstimate {
    /// Bytes of text per token in the estimate for the hold; with 1 the hold is never too small. It is 1 for accounts that have never
    /// paid, whatever is set here.
    pub bytes_per_token: Whole<3, 1, 8>,
    /// Responses whose tokens are counted concurrently.
    pub parallel: Whole<2, 1, 64>,
}

/// Checked settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeterSettings {
    /// The credit limit of a new account: how far below zero its balance may go; not negative.
    pub credit_limit: Micros,
    /// How long the gateway drains a provider's stream after the client has disconnected.
    pub drain: Duration,
    /// The default handling of a stream whose client has disconnected; a model's own setting overrides it.
    pub after_leaving: AfterLeaving,
    /// Lifetime of a hold.
    pub hold: Duration,
    /// The smallest cap that is written into a request; `None`: requests are refused instead.
    pub clamp_tokens_min: Option<NonZeroU64>,
    /// Free tokens of abandoned work in an hour; `None`: any number is free.
    pub abandoned_tokens_max: Option<NonZeroU64>,
    /// Bytes of text estimated as a token.
    pub bytes_per_token: NonZeroU64,
    /// Answers whose tokens are counted concurrently; above zero.
    pub count_parallel: usize,
}

impl Default for MeterSettings {
    fn default() -> MeterSettings {
        check_text::<RawMeter>("", &Services::default()).expect("the defaults pass their own check")
    }
}

impl Section for RawMeter {
    const NAME: &'static str = "meter";
    type Settings = MeterSettings;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<MeterSettings> {
        let settings = self.values(context, problems);
        if let Some(timeouts) = context.find() {
            let hold = settings
                .as_ref()
                .map_or_else(|| MeterSettings::default().hold, |settings| settings.hold);
            self.outlives(&timeouts, hold, context, problems);
        }
        settings
    }
}

impl RawMeter {
    /// The checked values, or `None` after recording every problem.
    fn values(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<MeterSettings> {
        let estimate = &self.estimate;
        let key = |name: &str| context.key(name);
        let credit_limit = self.credit_limit.check(key("credit_limit"), problems);
        let after_leaving = self.after_leaving.check(key("after_leaving"), problems);
        let drain = self.drain_secs.check(key("drain_secs"), problems);
        let hold = self.hold_secs.check(key("hold_secs"), problems);
        let clamp_tokens_min = self
            .clamp_tokens_min
            .check(key("clamp_tokens_min"), problems);
        let bytes_per_token = estimate
            .bytes_per_token
            .check(key("estimate.bytes_per_token"), problems);
        let parallel = estimate.parallel.check(key("estimate.parallel"), problems);
        let abandoned = self
            .abandoned_tokens_max
            .check(key("abandoned_tokens_max"), problems);
        let clamp = self.clamp_output.is_on();
        Some(MeterSettings {
            credit_limit: credit_limit.unwrap_or_default(),
            drain: Duration::from_secs(drain?),
            after_leaving: after_leaving?,
            hold: Duration::from_secs(hold?),
            clamp_tokens_min: NonZeroU64::new(clamp_tokens_min?).filter(|_| clamp),
            bytes_per_token: NonZeroU64::new(bytes_per_token?)?,
            abandoned_tokens_max: NonZeroU64::new(abandoned?),
            count_parallel: usize::try_from(parallel?).ok()?,
        })
    }

    /// A hold has to outlive the call for which the hold pays.
    fn outlives(
        &self,
        timeouts: &CallTimeouts,
        hold: Duration,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) {
        for (key, at) in &*timeouts.written {
            if hold <= Duration::from_secs(at.value) {
                let message = format_args!(
                    "is {}, but credit is held for only {} seconds; raise `meter.hold_secs` above it",
                    at.value,
                    hold.as_secs()
                );
                problems.note(key, at, message);
            }
        }
        // A provider without a written value has the default, so that the error is reported at `hold_secs`.
        if let (Some(at), Some(longest)) = (self.hold_secs.written(), timeouts.longest)
            && hold <= longest
            && timeouts.written.is_empty()
        {
            let message = format_args!(
                "is {}, but a call may take {} seconds; use more",
                at.value,
                longest.as_secs()
            );
            problems.note(context.key("hold_secs"), at, message);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_written_means_the_defaults() {
        assert_eq!(
            check(""),
            Ok(MeterSettings {
                credit_limit: Micros::ZERO,
                drain: Duration::from_secs(30),
                after_leaving: AfterLeaving::Drain,
                hold: Duration::from_secs(3_600),
                clamp_tokens_min: NonZeroU64::new(16),
                bytes_per_token: NonZeroU64::new(3).expect("not zero"),
                abandoned_tokens_max: NonZeroU64::new(1_000_000),
                count_parallel: 2,
            })
        );
    }

    #[test]
    fn written_settings_replace_defaults() {
        let settings = check(
            r#"
            credit_limit = "2.5"
            drain_secs = 0
            after_leaving = "stop"
            hold_secs = 60
            abandoned_tokens_max = 0
            clamp_tokens_min = 1
            estimate = { bytes_per_token = 1, parallel = 8 }
            "#,
        );
        assert_eq!(
            settings,
            Ok(MeterSettings {
                credit_limit: Micros::new(2_500_000),
                drain: Duration::ZERO,
                after_leaving: AfterLeaving::Stop,
                hold: Duration::from_secs(60),
                clamp_tokens_min: NonZeroU64::new(1),
                bytes_per_token: NonZeroU64::MIN,
                abandoned_tokens_max: None,
                count_parallel: 8,
            })
        );
    }

    #[test]
    fn without_clamping_there_is_no_smallest_cap() {
        let settings = check("clamp_output = false").expect("good settings");
        assert_eq!(settings.clamp_tokens_min, None);
    }

    #[test]
    fn every_value_out_of_range_is_reported_at_once() {
        let text = r#"
            credit_limit = "-1"
            drain_secs = 601
            after_leaving = "wait"
            hold_secs = 59
            clamp_tokens_min = 0
            estimate = { bytes_per_token = 9, parallel = 0 }
            "#;
        let keys = check(text).expect_err("seven problems");
        assert_eq!(
            keys,
            [
                "meter.credit_limit",
                "meter.after_leaving",
                "meter.drain_secs",
                "meter.hold_secs",
                "meter.clamp_tokens_min",
                "meter.estimate.bytes_per_token",
                "meter.estimate.parallel",
            ]
        );
    }

    #[test]
    fn an_unknown_key_is_refused() {
        assert!(toml::from_str::<RawMeter>("credit_limits = \"1\"").is_err());
    }

    fn check(text: &str) -> Result<MeterSettings, Vec<String>> {
        check_text::<RawMeter>(text, &Services::default())
            .map_err(|found| found.into_iter().map(|problem| problem.key).collect())
    }
}
