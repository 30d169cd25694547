//! The header fields that tell a client its quota: `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10,
//! sections 3 and 4), and beside them the older three that many clients read.

use http::{HeaderMap, HeaderName, HeaderValue};
use smallvec::SmallVec;

use crate::quota::{Quota, Verdict};

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// The fields of one policy: what is always the same is written once, when the filter is built.
#[derive(Debug)]
pub(crate) struct PolicyFields {
    /// `"requests";q=60;w=60`
    policy: HeaderValue,
    /// `60`
    limit: HeaderValue,
    /// `"requests";r=`
    state_start: Box<[u8]>,
}

impl PolicyFields {
    /// The fields of a quota under a policy name of lower-case letters and `-`, which stands in them as a quoted string.
    pub(crate) fn new(name: &'static str, quota: &Quota) -> PolicyFields {
        let limit = quota.limit();
        let policy = format!("\"{name}\";q={limit};w={}", quota.window_secs());
        PolicyFields {
            policy: HeaderValue::try_from(policy)
                .expect("a word and two numbers are visible ASCII"),
            limit: HeaderValue::from(limit.get()),
            state_start: format!("\"{name}\";r=").into_bytes().into(),
        }
    }

    /// Writes all five fields, in place of any that are there.
    pub(crate) fn write(&self, verdict: &Verdict, headers: &mut HeaderMap) {
        let mut number = itoa::Buffer::new();
        let mut state = SmallVec::<[u8; 64]>::new();
        state.extend_from_slice(&self.state_start);
        state.extend_from_slice(number.format(verdict.remaining).as_bytes());
        state.extend_from_slice(b";t=");
        state.extend_from_slice(number.format(verdict.reset_secs).as_bytes());
        let state =
            HeaderValue::from_bytes(&state).expect("a word and two numbers are visible ASCII");
        headers.insert(POLICY, self.policy.clone());
        headers.insert(STATE, state);
        headers.insert(LIMIT, self.limit.clone());
        headers.insert(REMAINING, decimal(verdict.remaining.into()));
        headers.insert(RESET, decimal(verdict.reset_secs));
    }
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

/// A number as a field value; without an allocation for the numbers that ordinary quotas need.
fn decimal(number: u64) -> HeaderValue {
    match usize::try_from(number) {
        Ok(at) if at < TABLE_NUMBERS => {
            let zeros = usize::from(at < 10) + usize::from(at < 100);
            HeaderValue::from_static(&DIGITS[3 * at + zeros..3 * at + 3])
        }
        _ => HeaderValue::from(number),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

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
        let verdict = Verdict {
            admitted: false,
            remaining: 0,
            reset_secs: 12,
        };
        PolicyFields::new("requests", &quota).write(&verdict, &mut headers);
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
