//! Generation of a random request from the seed.

use serde_json::{Value, json};
use tollgate_clock::Entropy;

use crate::rig::{CHAT, TEXT};

/// The credits of the accounts: two accounts with enough credit, and an account that soon runs out.
pub(super) const ACCOUNTS: [&str; 3] = ["900000000", "800000000", "1"];

/// The length of a large prompt in bytes.
const LARGE_BYTES: usize = 1_000_000;

/// A request and the client's behaviour.
#[derive(Debug)]
pub(super) struct PlannedRequest {
    /// The account of the request.
    pub(super) account: usize,
    pub(super) http2: bool,
    pub(super) path: &'static str,
    pub(super) body: Value,
    pub(super) key: Option<String>,
    pub(super) manners: Manners,
}

/// The client's behaviour towards the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manners {
    /// Reads the answer to the end.
    Stays,
    /// Reads the answer to the end, but begins only after a number of milliseconds.
    Slow(u64),
    /// Leaves after a number of milliseconds, at any state of the answer.
    LeavesAfter(u64),
    /// Leaves after a number of events.
    LeavesAt(usize),
}

/// Draws numbers from a seed.
pub(super) struct Dice(Entropy);

impl Dice {
    pub(super) fn seeded(seed: u64) -> Dice {
        Dice(Entropy::seeded(seed))
    }

    /// A number below `sides`.
    pub(super) fn below(&self, sides: u64) -> u64 {
        u64::from_le_bytes(self.0.bytes()) % sides
    }

    /// Draws an event with a probability of `times` in a thousand.
    fn per_mille(&self, times: u64) -> bool {
        self.below(1_000) < times
    }
}

impl PlannedRequest {
    /// The request with the number `number`.
    pub(super) fn draw(seed: u64, number: u64) -> PlannedRequest {
        let mixed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let dice = Dice::seeded(mixed);
        let chat = dice.per_mille(750);
        let stream = dice.per_mille(600);
        let prompt = prompt(&dice, number);
        let mut body = if chat {
            json!({"messages": [{"role": "user", "content": prompt}]})
        } else {
            json!({"prompt": prompt})
        };
        body["model"] = "small".into();
        if stream {
            body["stream"] = true.into();
            if dice.per_mille(300) {
                body["stream_options"] = json!({"include_usage": true});
            }
        }
        if dice.per_mille(500) {
            body["max_tokens"] = (16 + dice.below(200)).into();
        }
        if dice.per_mille(30) {
            body["n"] = 2.into();
        }
        if dice.per_mille(100) {
            body["cache"] = false.into();
        }
        if dice.per_mille(300) {
            body["stand_in"] = fault(&dice);
        }
        PlannedRequest {
            account: match dice.below(20) {
                0 => 2,
                even if even % 2 == 0 => 0,
                _ => 1,
            },
            http2: dice.per_mille(500),
            path: if chat { CHAT } else { TEXT },
            body,
            key: dice.per_mille(150).then(|| format!("{seed}-{number}")),
            manners: match dice.below(100) {
                0..75 => Manners::Stays,
                75..80 => Manners::Slow(20 + dice.below(80)),
                80..88 => Manners::LeavesAfter(dice.below(15)),
                _ => Manners::LeavesAt(dice.below(12) as usize),
            },
        }
    }

    /// Whether the request is for a stream.
    pub(super) fn is_stream(&self) -> bool {
        self.body["stream"] == true
    }
}

/// One of a few repeated prompts, a unique prompt, or a large prompt.
fn prompt(dice: &Dice, number: u64) -> String {
    if dice.per_mille(10) {
        return format!("{number} {}", "lorem ".repeat(LARGE_BYTES / 6));
    }
    if dice.per_mille(400) {
        return format!("What is the toll on Monday number {}?", dice.below(30));
    }
    format!("What is the toll for cart number {number}?")
}

/// The misbehaviour of the provider for a request, as a script of the stand-in.
fn fault(dice: &Dice) -> Value {
    let by = ["close", "reset"][dice.below(2) as usize];
    let usages = [
        json!("forgotten"),
        json!("every_chunk"),
        json!("cumulative"),
        json!("absurd"),
        json!("negative"),
        json!("words"),
        json!({"exactly": {"prompt_tokens": 4_000, "completion_tokens": 300}}),
    ];
    let failures = ["html", "garbage", "invalid_json", "other_json", "empty"];
    match dice.below(16) {
        0 => json!({"status": 500}),
        1 => json!({"status": 429}),
        2 => json!({"status": 400}),
        3 => json!({"instead_of_head": by}),
        4 | 5 => json!({"cut": {"after_events": dice.below(15), "by": by}}),
        6 => json!({"cut": {"after_bytes": dice.below(2_000), "by": by}}),
        7 => json!({"failure": failures[dice.below(5) as usize]}),
        8 | 9 => json!({"usage": usages[dice.below(7) as usize]}),
        10 => json!({"error_event_at": dice.below(10)}),
        11 => json!({"no_done": true}),
        12 => json!({"delay_head_ms": 1 + dice.below(20)}),
        13 => json!({"event_bytes": 1_000 + dice.below(100_000)}),
        14 => json!({"words": dice.below(300), "comments": true}),
        _ => {
            json!({"write_bytes": 1 + dice.below(50), "line_end": "crlf", "delay_head_ms": dice.below(5)})
        }
    }
}
