//! `[plan]`: the benefits of the plan for a month.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Problems};
use tollgate_money::Micros;
use tollgate_purchase::plan::Plan;

/// The rate class of the plan: one of the built-in ones.
const CLASS: &str = "pro";

const NAME: &str = "Pro";

/// Days before the end from which a plan without renewal may be bought again.
const RENEWAL_DAYS: u32 = 7;

/// Its maximum: a buyer who has just paid must not be asked again because an answer was lost.
const RENEWAL_DAYS_MAX: u32 = 14;

const FEATURES_MAX: usize = 20;

const FEATURE_CHARS_MAX: usize = 200;

/// The benefits of the monthly plan. Its price is fixed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPlan {
    /// The display name.
    pub(crate) name: Option<At<String>>,
    /// Credits granted with each payment, as a decimal string.
    pub(crate) monthly_credits: Option<At<String>>,
    /// Days before its end from which a plan without automatic renewal may be bought again.
    pub(crate) renewal_days: Option<At<u32>>,
    /// Included devices.
    pub(crate) included_device_slots: Option<At<u32>>,
    /// Included computer use tasks per month.
    pub(crate) computer_use_tasks_per_month: Option<At<u32>>,
    /// The benefits, as texts.
    pub(crate) features: Option<At<Vec<At<String>>>>,
}

impl RawPlan {
    /// The default plan of the service with this name.
    pub(super) fn check(&self, service: &str, problems: &mut Problems) -> Plan {
        let monthly_credits = match &self.monthly_credits {
            None => Micros::ZERO,
            Some(at) => {
                let credits: Micros = problems
                    .parse("plan.monthly_credits", at)
                    .unwrap_or_default();
                if credits < Micros::ZERO {
                    let message = format_args!("is `{}`; use 0 or more", at.value);
                    problems.note("plan.monthly_credits", at, message);
                }
                credits.max(Micros::ZERO)
            }
        };
        let mut count = |key: &str, at: &Option<At<u32>>, range| {
            let at = at.as_ref()?;
            problems.within(format!("plan.{key}"), at, range)
        };
        let renewal_days = count("renewal_days", &self.renewal_days, 0..=RENEWAL_DAYS_MAX);
        let device_slots = count(
            "included_device_slots",
            &self.included_device_slots,
            1..=1_000_000,
        );
        let computer_use_tasks = count(
            "computer_use_tasks_per_month",
            &self.computer_use_tasks_per_month,
            1..=1_000_000_000,
        );
        let name = self.name.as_ref().map(|at| {
            if at.value.is_empty()
                || at.value.chars().count() > 32
                || at.value.chars().any(char::is_control)
            {
                problems.note("plan.name", at, "is not a name; use 1 to 32 characters");
            }
            at.value.as_str()
        });
        Plan {
            product: format!("{service}-pro-monthly").into(),
            slug: format!("{service}-pro").into(),
            name: name.unwrap_or(NAME).into(),
            class: CLASS.into(),
            monthly_credits,
            renewal_days: renewal_days.unwrap_or(RENEWAL_DAYS),
            device_slots,
            computer_use_tasks,
            features: self.features(problems),
        }
    }

    fn features(&self, problems: &mut Problems) -> Arc<[String]> {
        let Some(list) = &self.features else {
            return Arc::from([]);
        };
        if list.value.len() > FEATURES_MAX {
            let message = format_args!(
                "has {} elements; use {FEATURES_MAX} or fewer",
                list.value.len()
            );
            problems.note("plan.features", list, message);
        }
        for (number, at) in list.value.iter().enumerate() {
            let length = at.value.chars().count();
            if length == 0 || length > FEATURE_CHARS_MAX || at.value.chars().any(char::is_control) {
                let message = format_args!(
                    "is not a feature; use 1 to {FEATURE_CHARS_MAX} characters on one line"
                );
                problems.note(format!("plan.features.{number}"), at, message);
            }
        }
        list.value.iter().map(|at| at.value.clone()).collect()
    }
}
