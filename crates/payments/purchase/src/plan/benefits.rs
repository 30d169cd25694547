//! Benefits of the plan in words, the same in every offer, document and page.

use super::Plan;

/// The benefits of one payment, as phrases: the credits, or their absence, and the request quota of the plan's rate class. A buyer has to
/// know before the payment whether credits are included.
pub fn benefits(plan: &Plan, quota: Option<String>) -> Vec<String> {
    let credits = match plan.monthly_credits.is_positive() {
        true => format!("{} credits with each payment", plan.monthly_credits),
        false => String::from(
            "no credits (requests are paid from the balance, to which the plan adds nothing)",
        ),
    };
    std::iter::once(credits).chain(quota).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_money::Micros;

    use super::*;

    #[test]
    fn a_plan_without_credits_says_so() {
        let plan = |credits: i64| Plan {
            product: "svc-pro-monthly".into(),
            slug: "svc-pro".into(),
            name: "Pro".into(),
            class: "pro".into(),
            monthly_credits: Micros::new(credits),
            renewal_days: 7,
            device_slots: None,
            computer_use_tasks: None,
            features: Arc::from([]),
        };
        let quota = "1,200 requests a minute";
        assert_eq!(
            benefits(&plan(100_500_000), Some(quota.to_owned())),
            ["100.5 credits with each payment", quota]
        );
        let none = benefits(&plan(0), None);
        assert_eq!(none.len(), 1);
        assert!(none[0].starts_with("no credits"), "{none:?}");
    }
}
