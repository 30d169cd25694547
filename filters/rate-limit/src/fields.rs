//! Rate limit header fields: `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10, sections 3 and 4), and the three
//! older fields that many clients read.

use std::num::NonZeroU32;
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate_filter::DeferredHeaders;

use crate::quota::Quota;
use crate::tokens::TokenQuota;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");

/// The fields of a policy: the constant parts are encoded once, when the filter is built.
#[derive(Debug)]
pub(crate) struct PolicyFields {
    /// `"requests";q=60;w=60`, followed by the other policies of the class.
    policies: HeaderValue,
    /// `60`
    limit: HeaderValue,
    /// `"requests";r=`
    state_start: Start,
}

/// The state of a policy in a response.
pub(crate) struct PolicyState {
    fields: Arc<PolicyFields>,
    remaining: u64,
    reset_secs: u64,
    beside: bool,
}

impl PolicyState {
    /// The five fields, replacing existing fields.
    pub(crate) fn of(fields: &Arc<PolicyFields>, remaining: u64, reset_secs: u64) -> PolicyState {
        PolicyState {
            fields: Arc::clone(fields),
            remaining,
            reset_secs,
            beside: false,
        }
    }

    /// Appended to the state of the previous policies, as [`PolicyFields::write_beside`] does.
    pub(crate) fn beside(self) -> PolicyState {
        PolicyState {
            beside: true,
            ..self
        }
    }
}

impl DeferredHeaders for PolicyState {
    fn write(&self, headers: &mut HeaderMap) {
        let write = match self.beside {
            false => PolicyFields::write,
            true => PolicyFields::write_beside,
        };
        write(&self.fields, self.remaining, self.reset_secs, headers);
    }
}

/// The most bytes of the state of a policy: its name, two numbers, and the separators.
const STATE_BYTES_MAX: usize = Start::BYTES_MAX + 2 * NUMBER_BYTES_MAX + BEFORE_RESET.len();

/// Digits of a 64-bit number.
const NUMBER_BYTES_MAX: usize = 20;

const BEFORE_RESET: &[u8; 3] = b";t=";

/// The prefix of a policy's state. The copy of the whole buffer takes a few instructions; a copy of the exact length would be a call.
#[derive(Debug)]
struct Start {
    bytes: [u8; Start::BYTES_MAX],
    length: usize,
}

impl Start {
    const BYTES_MAX: usize = 32;

    fn of(name: &str) -> Start {
        let text = format!("\"{name}\";r=");
        let mut bytes = [0; Start::BYTES_MAX];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Start {
            bytes,
            length: text.len(),
        }
    }
}

/// A policy in the form of `RateLimit-Policy`.
pub(crate) struct Policy {
    /// Lower-case letters and `-`, encoded as a quoted string.
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

    /// Tokens in a window. The draft has no unit for tokens, so that the name is the unit.
    pub(crate) fn tokens(quota: &TokenQuota) -> Policy {
        let limit = quota.limit().get();
        Policy {
            name: "tokens",
            limit,
            parameters: format!(";q={limit};w={};qu=\"tokens\"", quota.window_secs()),
        }
    }

    /// Concurrent requests.
    pub(crate) fn concurrent(max: NonZeroU32) -> Policy {
        Policy {
            name: "concurrent",
            limit: max.get().into(),
            parameters: format!(";q={max};qu=\"concurrent-requests\""),
        }
    }
}

impl PolicyFields {
    /// The fields of policies that apply together.
    pub(crate) fn of(policies: &[Policy]) -> Vec<PolicyFields> {
        let named = |policy: &Policy| format!("\"{}\"{}", policy.name, policy.parameters);
        let all: Vec<String> = policies.iter().map(named).collect();
        let all = HeaderValue::try_from(all.join(", ")).expect("words and numbers are ASCII");
        let fields = |policy: &Policy| PolicyFields {
            policies: all.clone(),
            limit: decimal(policy.limit),
            state_start: Start::of(policy.name),
        };
        policies.iter().map(fields).collect()
    }

    /// The fields of a single policy.
    pub(crate) fn alone(policy: Policy) -> PolicyFields {
        let fields = PolicyFields::of(&[policy]).pop();
        fields.expect("one policy has one set of fields")
    }

    /// Writes the five fields, replacing existing fields.
    pub(crate) fn write(&self, remaining: u64, reset_secs: u64, headers: &mut HeaderMap) {
        headers.insert(POLICY, self.policies.clone());
        let state = self.with_state(remaining, reset_secs, HeaderValue::from_bytes);
        headers.insert(STATE, changing(state.expect(STATE_IS_VISIBLE)));
        self.write_trio(remaining, reset_secs, headers);
    }

    /// Appends the state of this policy to the existing fields. The older three fields describe a single policy: the policy with the
    /// smaller fraction remaining.
    pub(crate) fn write_beside(&self, remaining: u64, reset_secs: u64, headers: &mut HeaderMap) {
        let Some(other) = headers.get(STATE) else {
            return self.write(remaining, reset_secs, headers);
        };
        let mut state = other.as_bytes().to_vec();
        state.extend_from_slice(b", ");
        self.with_state(remaining, reset_secs, |own| state.extend_from_slice(own));
        let state = HeaderValue::try_from(state).expect(STATE_IS_VISIBLE);
        headers.insert(STATE, changing(state));
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

    /// Calls `take` with the text of the state.
    fn with_state<T>(&self, remaining: u64, reset_secs: u64, take: impl FnOnce(&[u8]) -> T) -> T {
        let mut state = [0; STATE_BYTES_MAX];
        state[..Start::BYTES_MAX].copy_from_slice(&self.state_start.bytes);
        let mut end = self.state_start.length;
        end = put_number(&mut state, end, remaining);
        state[end..end + BEFORE_RESET.len()].copy_from_slice(BEFORE_RESET);
        end = put_number(&mut state, end + BEFORE_RESET.len(), reset_secs);
        take(&state[..end])
    }
}

const STATE_IS_VISIBLE: &str = "a word and two numbers are visible ASCII";

/// Writes the digits of `number` at `at`, and returns the position after the digits.
fn put_number(out: &mut [u8; STATE_BYTES_MAX], at: usize, number: u64) -> usize {
    let end = at + number.checked_ilog10().map_or(1, |tens| tens as usize + 1);
    let mut rest = number;
    for place in out[at..end].iter_mut().rev() {
        *place = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    end
}

/// A value that differs in the next response. HTTP/2 encodes the value as never indexed (RFC 7541 section 7.1.3): an index entry would
/// evict the constant fields from the connection's table, without later hits.
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

/// A number as a field value: allocation-free for the numbers of ordinary quotas.
fn decimal(number: u64) -> HeaderValue {
    match usize::try_from(number) {
        Ok(at) if at < TABLE_NUMBERS => {
            let zeros = usize::from(at < 10) + usize::from(at < 100);
            HeaderValue::from_static(&DIGITS[3 * at + zeros..3 * at + 3])
        }
        // From an integer `HeaderValue` builds a growable buffer, which takes two allocations.
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
    fn a_state_has_its_numbers_in_full() {
        let most = u64::MAX;
        for (remaining, reset_secs) in [(0, 0), (9, 10), (99, 100), (999_999, 1), (most, most)] {
            let one = NonZeroU32::new(1).expect("not zero");
            let mut headers = HeaderMap::new();
            let policy = Policy::requests("failed-credentials", &Quota::new(one, one, one));
            PolicyFields::alone(policy).write(remaining, reset_secs, &mut headers);
            let state = format!("\"failed-credentials\";r={remaining};t={reset_secs}");
            assert_eq!(headers[STATE], state);
            assert_eq!(headers[REMAINING], remaining.to_string());
            assert_eq!(headers[RESET], reset_secs.to_string());
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
