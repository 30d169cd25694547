//! The settings of `[idempotency]`, as written and as checked.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Problems};
use tollgate_module::{Section, SectionContext};

const KEEP_SECS: u64 = 86_400;
const ANSWER_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Responses recorded for requests with an `Idempotency-Key`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawIdempotency {
    /// Seconds for which an answer is kept under its key. 60 to 2592000, default 86400.
    pub(crate) keep_secs: Option<At<u64>>,
    /// Bytes of the largest answer that is kept. 1024 to 67108864, default 4194304.
    pub(crate) answer_bytes_max: Option<At<u64>>,
}

/// Checked settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdempotencySettings {
    /// How long an answer is kept.
    pub keep: Duration,
    /// Bytes of the largest answer that is kept.
    pub answer_bytes_max: usize,
}

impl Default for IdempotencySettings {
    fn default() -> IdempotencySettings {
        IdempotencySettings {
            keep: Duration::from_secs(KEEP_SECS),
            answer_bytes_max: ANSWER_BYTES_MAX as usize,
        }
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
        let mut number = |name: &str, at: Option<&At<u64>>, range, default| match at {
            Some(at) => problems.within(context.key(name), at, range),
            None => Some(default),
        };
        let keep = number(
            "keep_secs",
            self.keep_secs.as_ref(),
            60..=2_592_000,
            KEEP_SECS,
        );
        let bytes = number(
            "answer_bytes_max",
            self.answer_bytes_max.as_ref(),
            1_024..=67_108_864,
            ANSWER_BYTES_MAX,
        );
        Some(IdempotencySettings {
            keep: Duration::from_secs(keep?),
            answer_bytes_max: usize::try_from(bytes?).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use tollgate_module::{Services, check_text};

    use super::*;

    #[test]
    fn every_setting_is_read_and_has_a_default() {
        assert_eq!(check(""), Ok(IdempotencySettings::default()));
        assert_eq!(
            check("keep_secs = 60\nanswer_bytes_max = 1024"),
            Ok(IdempotencySettings {
                keep: Duration::from_secs(60),
                answer_bytes_max: 1_024,
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
