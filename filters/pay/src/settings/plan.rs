//! The section `[plan]`: the benefits of the plan for a month.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::ServiceIdentity;
use tollgate_filter::settings::{Amount, At, Number, Problems, Whole};
use tollgate_module::{Section, SectionContext};
use tollgate_purchase::plan::Plan;

/// The built-in rate class of the plan.
const CLASS: &str = "pro";

const NAME: &str = "Pro";

const FEATURES_MAX: usize = 20;

const FEATURE_CHARS_MAX: usize = 200;

/// The benefits of the monthly plan. Its price is fixed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawPlan {
    /// The display name.
    ///
    /// Default: `"Pro"`
    /// Range: 1 to 32 characters
    name: Option<At<String>>,
    /// Credits granted with each payment, in addition to the rate class. With 0 an account without credits pays for the plan and still gets
    /// 402 for its requests: `tollgate check` warns where the plan is sold, and every offer says so.
    ///
    /// Default: `"0"`
    monthly_credits: Amount,
    /// Days before its end from which a plan without automatic renewal may be bought again.
    // At most half a month: a buyer who has just paid must not be asked again because an answer was lost.
    renewal_days: Whole<7, 0, 14>,
    /// Shown in the product document.
    included_device_slots: Number<1, 1_000_000>,
    /// Shown in the product document.
    computer_use_tasks_per_month: Number<1, 1_000_000_000>,
    /// Shown in the product document and on the page of the plan.
    ///
    /// Type: list of texts
    /// Default: `[]`
    /// Range: at most 20, each of 1 to 200 characters
    features: Option<At<Vec<At<String>>>>,
}

impl Section for RawPlan {
    const NAME: &'static str = "plan";
    type Settings = Plan;

    fn check(&self, context: &SectionContext<'_>, problems: &mut Problems) -> Option<Plan> {
        let service = context.find::<ServiceIdentity>()?.name;
        let key = |name: &str| context.key(name);
        let monthly_credits = self
            .monthly_credits
            .check(key("monthly_credits"), problems)
            .unwrap_or_default();
        let renewal_days = self.renewal_days.check(key("renewal_days"), problems);
        let device_slots = self
            .included_device_slots
            .check(key("included_device_slots"), problems);
        let computer_use_tasks = self
            .computer_use_tasks_per_month
            .check(key("computer_use_tasks_per_month"), problems);
        let name = self.name.as_ref().map(|at| {
            if at.value.is_empty()
                || at.value.chars().count() > 32
                || at.value.chars().any(char::is_control)
            {
                problems.note(key("name"), at, "is not a name; use 1 to 32 characters");
            }
            at.value.as_str()
        });
        Some(Plan {
            product: format!("{service}-pro-monthly").into(),
            slug: format!("{service}-pro").into(),
            name: name.unwrap_or(NAME).into(),
            class: CLASS.into(),
            monthly_credits,
            features: self.features(&key("features"), problems),
            renewal_days: u32::try_from(renewal_days?).unwrap_or(u32::MAX),
            device_slots: device_slots.and_then(|count| count.try_into().ok()),
            computer_use_tasks: computer_use_tasks.and_then(|count| count.try_into().ok()),
        })
    }
}

/// Warns of a plan on sale without credits: a buyer without credits would pay and still be refused.
pub(super) fn warn_without_credits(context: &SectionContext<'_>, problems: &mut Problems) {
    let plan: Option<Plan> = context.find();
    if plan.is_some_and(|plan| !plan.monthly_credits.is_positive()) {
        problems.warn(
            "plan.monthly_credits",
            "is 0, so a payment for the plan adds no credits: an account without credits that buys it still gets 402 for its requests; write \
             the credits of a month, `monthly_credits = \"20000\"`, or keep 0 where the plan is sold for its rate alone",
        );
    }
}

impl RawPlan {
    fn features(&self, key: &str, problems: &mut Problems) -> Arc<[String]> {
        let Some(list) = &self.features else {
            return Arc::from([]);
        };
        if list.value.len() > FEATURES_MAX {
            let message = format_args!(
                "has {} elements; use {FEATURES_MAX} or fewer",
                list.value.len()
            );
            problems.note(key, list, message);
        }
        for (number, at) in list.value.iter().enumerate() {
            let length = at.value.chars().count();
            if length == 0 || length > FEATURE_CHARS_MAX || at.value.chars().any(char::is_control) {
                let message = format_args!(
                    "is not a feature; use 1 to {FEATURE_CHARS_MAX} characters on one line"
                );
                problems.note(format!("{key}.{number}"), at, message);
            }
        }
        list.value.iter().map(|at| at.value.clone()).collect()
    }
}
