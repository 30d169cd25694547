//! The header fields that tell a client its quota: `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10,
//! sections 3 and 4), and beside them the older three that many clients read.

use std::num::NonZeroU32;

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use crate::quota::Quota;
use crate::tokens::TokenQuota;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// The fields of one policy: what is always the same is written once, when the filter is built.
#[derive(Debug)]
pub(crate) struct PolicyFields {
    /// `"requests";q=60;w=60`, and the other policies of the class behind it.
    policies: HeaderValue,
    /// `60`
    limit: HeaderValue,
    /// `"requests";r=`
    state_start: Box<[u8]>,
}

/// A policy as `RateLimit-Policy` names it.
pub(crate) struct Policy {
    /// Lower-case letters and `-`, which stand as a quoted string.
    name: &'static str,
    limit: u64,
    /// `;q=60;w=60`
    parameters: String,
}

impl Policy {
    /// Requests in a window.
    pub(crate) fn requests(name: &'static str, quota: &Quota) -> Policy {
        let limit = quota.limit().get();
        Policy {
            name,
            limit: limit.into(),
            parameters: format!(";q={limit};w={}", quota.window_secs()),
        }
    }

    /// Tokens in a window. The draft has no unit for them, so the name has to say it.
    pub(crate) fn tokens(quota: &TokenQuota) -> Policy {
        let limit = quota.limit().get();
        Policy {
            name: "tokens",
            limit,
            parameters: format!(";q={limit};w={};qu=\"tokens\"", quota.window_secs()),
        }
    }

    /// Requests under way at once.
    pub(crate) fn concurrent(max: NonZeroU32) -> Policy {
        Policy {
            name: "concurrent",
            limit: max.get().into(),
            parameters: format!(";q={max};qu=\"concurrent-requests\""),
        }
    }
}

impl PolicyFields {
    /// The fields of each of these policies, which hold together.
    pub(crate) fn of(policies: &[Policy]) -> Vec<PolicyFields> {
        let named = |policy: &Policy| format!("\"{}\"{}", policy.name, policy.parameters);
        let all: Vec<String> = policies.iter().map(named).collect();
        let all = HeaderValue::try_from(all.join(", ")).expect("words and numbers are ASCII");
        let fields = |policy: &Policy| PolicyFields {
            policies: all.clone(),
            limit: HeaderValue::from(policy.limit),
            state_start: format!("\"{}\";r=", policy.name).into_bytes().into(),
        };
        policies.iter().map(fields).collect()
    }

    /// The fields of a policy that holds alone.
    pub(crate) fn alone(policy: Policy) -> PolicyFields {
        let fields = PolicyFields::of(&[policy]).pop();
        fields.expect("one policy has one set of fields")
    }

    /// Writes all five fields, in place of any that are there.
    pub(crate) fn write(&self, remaining: u64, reset_secs: u64, headers: &mut HeaderMap) {
        headers.insert(POLICY, self.policies.clone());
        headers.insert(STATE, self.state(&[], remaining, reset_secs));
        self.write_trio(remaining, reset_secs, headers);
    }

    /// Writes the state of this policy behind that of the one whose fields are there. The older three fields tell of one policy: the
    /// one of which the smaller part remains.
    pub(crate) fn write_beside(&self, remaining: u64, reset_secs: u64, headers: &mut HeaderMap) {
        let Some(other) = headers.get(STATE) else {
            return self.write(remaining, reset_secs, headers);
        };
        let state = self.state(other.as_bytes(), remaining, reset_secs);
        headers.insert(STATE, state);
        let number = |value: Option<&HeaderValue>| -> u128 {
            let text = value.and_then(|value| value.to_str().ok());
            text.and_then(|text| text.parse().ok()).unwrap_or(0)
        };
        let (other, of) = (number(headers.get(REMAINING)), number(headers.get(LIMIT)));
        // Compared as fractions, without dividing.
        if u128::from(remaining) * of < other * number(Some(&self.limit)) {
            self.write_trio(remaining, reset_secs, headers);
        }
    }

    fn write_trio(&self, remaining: u64, reset_secs: u64, headers: &mut HeaderMap) {
        headers.insert(LIMIT, self.limit.clone());
        headers.insert(REMAINING, changing(decimal(remaining)));
        headers.insert(RESET, decimal(reset_secs));
    }

    fn state(&self, before: &[u8], remaining: u64, reset_secs: u64) -> HeaderValue {
        let mut number = itoa::Buffer::new();
        let mut state = SmallVec::<[u8; 64]>::new();
        if !before.is_empty() {
            state.extend_from_slice(before);
            state.extend_from_slice(b", ");
        }
        state.extend_from_slice(&self.state_start);
        state.extend_from_slice(number.format(remaining).as_bytes());
        state.extend_from_slice(b";t=");
        state.extend_from_slice(number.format(reset_secs).as_bytes());
        let state = HeaderValue::from_bytes(&state);
        changing(state.expect("a word and two numbers are visible ASCII"))
    }
}

/// A value that will be another one in the next answer. HTTP/2 is told not to remember it (RFC 7541 section 7.1.3): it would crowd out of
/// the connection's table what stays the same, and be looked for in vain.
fn changing(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

const TABLE_NUMBERS: usize = 1000;

/// `000001002...999`
const TABLE: [u8; 3 * TABLE_NUMBERS] = {
    let mut table = [0; 3 * TABLE_NUMBERS];
    let mut number = 0;
    while number < TABLE_NUMBERS {
        table[3 * number] = b'0' + (number / 100) as u8;
        table[3 * number + 1] = b'0' + (number / 10 % 10) as u8;
        table[3 * number + 2] = b'0' + (number % 10) as u8;
        number += 1;
    }
    table
};

static DIGITS: &str = match std::str::from_utf8(&TABLE) {
    Ok(digits) => digits,
    Err(_) => panic!("digits are ASCII"),
};

/// A number as a field value: without an allocation for the numbers that ordinary quotas need, with one for others.
fn decimal(number: u64) -> HeaderValue {
    match usize::try_from(number) {
        Ok(at) if at < TABLE_NUMBERS => {
            let zeros = usize::from(at < 10) + usize::from(at < 100);
            HeaderValue::from_static(&DIGITS[3 * at + zeros..3 * at + 3])
        }
        // Of a number `HeaderValue` makes itself a buffer that may grow, which takes two.
        _ => HeaderValue::from_str(itoa::Buffer::new().format(number)).expect("digits are ASCII"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_from_the_table_are_those_that_would_be_formatted() {
        for number in 0..2 * TABLE_NUMBERS as u64 {
            assert_eq!(decimal(number), HeaderValue::from(number));
        }
    }

    #[test]
    fn the_policy_name_is_a_quoted_string_and_the_numbers_are_integers() {
        let sixty = NonZeroU32::new(60).expect("not zero");
        let quota = Quota::new(sixty, sixty, sixty);
        let mut headers = HeaderMap::new();
        PolicyFields::alone(Policy::requests("requests", &quota)).write(0, 12, &mut headers);
        let fields: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.to_str().expect("ASCII")))
            .collect();
        assert_eq!(
            fields,
            [
                ("ratelimit-policy", "\"requests\";q=60;w=60"),
                ("ratelimit", "\"requests\";r=0;t=12"),
                ("ratelimit-limit", "60"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", "12"),
            ]
        );
    }
}
