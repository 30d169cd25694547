//! The settings of `[office_hours]`, as written and as checked.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{Problems, Whole};
use tollgate_module::{Section, SectionContext};

/// Hours in which requests are served, in UTC.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawOfficeHours {
    /// The first hour.
    opens: Whole<8, 0, 23>,
    /// The hour after the last.
    closes: Whole<18, 0, 24>,
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
        let opens = self.opens.check(context.key("opens"), problems);
        let closes = self.closes.check(context.key("closes"), problems);
        Some(OfficeHoursSettings {
            opens: opens?,
            closes: closes?,
        })
    }
}
