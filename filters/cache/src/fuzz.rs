//! Entry point of fuzzing: a record of the shared server, called with any bytes.

use std::time::Duration;

use tollgate_clock::Timestamp;

use crate::entry::Entry;
use crate::key::Key;
use crate::record::{Expected, Seal};

/// The largest answer of the reader.
const BYTES_MAX: usize = 1 << 20;

/// Reads the input as a record of the server, and as the content of a record with a valid seal. The content of a valid record is replayed.
pub fn record(input: &[u8]) {
    let (seal, key) = (Seal::new(&[1; 32]), Key([3; 32]));
    let expected = || Expected {
        name: (1, &key),
        model: "m".into(),
        bytes_max: BYTES_MAX,
        ttl: Duration::from_secs(60),
        now: Timestamp::from_secs(1_800_000_000),
        elapsed: Duration::from_secs(5),
    };
    assert!(seal.read(input, expected()).is_none(), "without a seal");
    let Some(entry) = seal.read(&seal.sealed((1, &key), input), expected()) else {
        return;
    };
    assert!(entry.weight() <= BYTES_MAX * 2, "{} bytes", entry.weight());
    assert!(
        entry.expires <= Duration::from_secs(65),
        "no longer than allowed"
    );
    let Ok(stored) = entry.stored("x_name") else {
        return;
    };
    let stamp = tollgate_openai::Stamp {
        id: "id",
        created: 1,
    };
    let _ = Entry::whole(stored, stamp);
    for include_usage in [false, true] {
        let _ = entry.with_stream(stored, include_usage);
    }
}
