//! Idempotency keys of provider calls for purchases.

use tollgate_money::{AccountId, TopUpId};

use crate::keys::key_of;

/// A step of a purchase that the provider must not carry out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    /// A capture, numbered from 0: after a decline another capture follows.
    Capture(u32),
}

/// 64 hex digits, equal for a repeated step of a purchase in one environment.
///
/// Derived and not random, so that a step repeated after a crash keeps the key; nevertheless stored before the call.
pub(super) fn key(environment: &str, account: AccountId, top_up: TopUpId, step: Step) -> String {
    let step = match step {
        Step::Create => String::from("create"),
        Step::Capture(number) => format!("capture-{number}"),
    };
    let (account, top_up) = (account.to_string(), top_up.to_string());
    key_of(&["tollgate", environment, &account, &top_up, &step])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_belongs_to_one_step_of_one_purchase_in_one_environment() {
        let account = |byte| AccountId::from_bytes([byte; 16]);
        let top_up = |byte| TopUpId::from_bytes([byte; 16]);
        let keys = [
            key("live", account(1), top_up(1), Step::Create),
            key("sandbox", account(1), top_up(1), Step::Create),
            key("live", account(2), top_up(1), Step::Create),
            key("live", account(1), top_up(2), Step::Create),
            key("live", account(1), top_up(1), Step::Capture(0)),
            key("live", account(1), top_up(1), Step::Capture(1)),
        ];
        for (at, one) in keys.iter().enumerate() {
            assert_eq!(one.len(), 64);
            assert!(!keys[..at].contains(one), "{at} has the key of another");
        }
        assert_eq!(
            keys[0],
            key("live", account(1), top_up(1), Step::Create),
            "the same again"
        );
    }
}
