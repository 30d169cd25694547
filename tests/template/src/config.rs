//! The settings of `[office_hours]`, as written and as checked.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Problems};
use tollgate_module::{Section, SectionContext};

/// Hours in which requests are served, in UTC.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawOfficeHours {
    /// The first hour. 0 to 23, default 8.
    opens: Option<At<u64>>,
    /// The hour after the last. 0 to 24, default 18.
    closes: Option<At<u64>>,
}

/// Checked settings: hours of the day, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfficeHoursSettings {
    pub(crate) opens: u64,
    pub(crate) closes: u64,
}

impl Section for RawOfficeHours {
    const NAME: &'static str = "office_hours";
    type Settings = OfficeHoursSettings;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<OfficeHoursSettings> {
        let mut hour = |name: &str, at: &Option<At<u64>>, last, default| match at {
            Some(at) => problems.within(context.key(name), at, 0..=last),
            None => Some(default),
        };
        let opens = hour("opens", &self.opens, 23, 8);
        let closes = hour("closes", &self.closes, 24, 18);
        Some(OfficeHoursSettings {
            opens: opens?,
            closes: closes?,
        })
    }
}
