//! The settings of `[idempotency]`, as written and as checked.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{Problems, Whole};
use tollgate_module::{Section, SectionContext, Services, check_text};
use tollgate_store::KeyLimits;

/// Responses recorded for requests with an `Idempotency-Key`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawIdempotency {
    /// How long a response is recorded.
    pub(crate) keep_secs: Whole<86_400, 60, 2_592_000>,
    /// Maximum size of a recorded response, as the provider sends it. A repeat of a request with a larger response is refused with 409.
    pub(crate) answer_bytes_max: Whole<4_194_304, 1_024, 67_108_864>,
    /// Maximum number of keys of an account; beyond it 429. A key takes about 200 bytes on the disk.
    pub(crate) account_keys_max: Whole<100_000, 100, 100_000_000>,
    /// Maximum size of the recorded responses of an account, each stored once; beyond it 429.
    pub(crate) account_bytes_max: Whole<268_435_456, 1_048_576, 1_099_511_627_776>,
}

/// Checked settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencySettings {
    /// How long an answer is kept.
    pub keep: Duration,
    /// Bytes of the largest kept answer.
    pub answer_bytes_max: usize,
    /// The limits of an account.
    pub limits: KeyLimits,
}

impl Default for IdempotencySettings {
    fn default() -> IdempotencySettings {
        check_text::<RawIdempotency>("", &Services::default())
            .expect("the defaults pass their own check")
    }
}

impl Section for RawIdempotency {
    const NAME: &'static str = "idempotency";
    type Settings = IdempotencySettings;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<IdempotencySettings> {
        let keep = self.keep_secs.check(context.key("keep_secs"), problems);
        let bytes = self
            .answer_bytes_max
            .check(context.key("answer_bytes_max"), problems);
        let keys = self
            .account_keys_max
            .check(context.key("account_keys_max"), problems);
        let account_bytes = self
            .account_bytes_max
            .check(context.key("account_bytes_max"), problems);
        Some(IdempotencySettings {
            limits: KeyLimits {
                keys: keys?,
                bytes: account_bytes?,
            },
            keep: Duration::from_secs(keep?),
            answer_bytes_max: usize::try_from(bytes?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_is_read_and_has_a_default() {
        assert_eq!(
            check(""),
            Ok(IdempotencySettings {
                keep: Duration::from_secs(86_400),
                answer_bytes_max: 4 << 20,
                limits: KeyLimits {
                    keys: 100_000,
                    bytes: 256 << 20,
                },
            })
        );
        assert_eq!(
            check(
                "keep_secs = 60\nanswer_bytes_max = 1024\naccount_keys_max = 100\naccount_bytes_max = 1048576"
            ),
            Ok(IdempotencySettings {
                keep: Duration::from_secs(60),
                answer_bytes_max: 1_024,
                limits: KeyLimits {
                    keys: 100,
                    bytes: 1 << 20,
                },
            })
        );
        assert_eq!(
            check("keep_secs = 59\nanswer_bytes_max = 67108865"),
            Err(vec![
                "idempotency.keep_secs".to_owned(),
                "idempotency.answer_bytes_max".to_owned()
            ])
        );
    }

    fn check(text: &str) -> Result<IdempotencySettings, Vec<String>> {
        check_text::<RawIdempotency>(text, &Services::default())
            .map_err(|found| found.into_iter().map(|problem| problem.key).collect())
    }
}
