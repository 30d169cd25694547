//! The example row of the README: written by a store, read from the file past it, and compared to the byte.

use std::fmt::Write as _;

use rusqlite::Connection;
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{Endpoint, EntryKind, Part, UsageFlags, UsageRecord};

use super::suite::support::{account_of, open, write};

const README: &str = include_str!("../../README.md");

/// Bytes of the body, with what they are.
const FIELDS: [(usize, &str); 34] = [
    (1, "version"),
    (1, "number of words"),
    (1, "word 0: length"),
    (7, "  `grant/1`"),
    (1, "word 1: length"),
    (10, "  `demo-small`"),
    (1, "word 2: length"),
    (4, "  `demo`"),
    (2, "record: bytes after this field"),
    (1, "  kind 6, grant"),
    (16, "  operation"),
    (16, "  account"),
    (8, "  time, microseconds, little-endian"),
    (4, "  amount 5000000"),
    (1, "  reference, word 0"),
    (2, "record: bytes after this field"),
    (1, "  kind 4, charge"),
    (16, "  operation"),
    (16, "  account"),
    (8, "  time"),
    (2, "  charged 1234"),
    (1, "  written off 0"),
    (1, "  price version follows"),
    (1, "  price version 1"),
    (1, "  no credential"),
    (1, "  endpoint 1, chat"),
    (1, "  model, word 1"),
    (1, "  provider, word 2: its number + 1"),
    (1, "  prompt tokens 12"),
    (2, "  completion tokens 300"),
    (1, "  flags 4, streamed"),
    (2, "  status 200"),
    (3, "  microseconds to the first byte 90000: + 1"),
    (3, "  microseconds to the last byte 450000: + 1"),
];

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_example_row_of_the_readme_is_what_the_file_has() {
    let account = AccountId::from_bytes([0xaa; 16]);
    let at = Timestamp::from_micros(1_700_000_000_000_000);
    let grant = LedgerPart::Credit {
        operation: OperationId::from_bytes([0x11; 16]),
        account,
        kind: EntryKind::Grant,
        amount: Micros::new(5_000_000),
        reference: "grant/1".into(),
        at,
    };
    let charge = LedgerPart::Charge {
        operation: OperationId::from_bytes([0x22; 16]),
        account,
        charged: Micros::new(1234),
        written_off: Micros::ZERO,
        price_version: Some(1),
        usage: UsageRecord {
            credential: None,
            endpoint: Endpoint::Chat,
            model: "demo-small".into(),
            upstream: Some("demo".into()),
            prompt_tokens: 12,
            completion_tokens: 300,
            flags: UsageFlags::STREAMED,
            http_status: 200,
            ttfb_us: Some(90_000),
            total_us: Some(450_000),
        },
        at,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let parts = [
        account_of(account),
        Part::Ledger(grant),
        Part::Ledger(charge),
    ];
    write(&store, parts).expect("one commit");
    store.close();

    let file = Connection::open(folder.path().join("t.db")).expect("the file");
    let sql = "SELECT id, entries, sum_avail, sum_held, at, prev, hash, body FROM journal";
    let (mut text, body) = file
        .query_row(sql, [], |row| {
            let mut text = String::new();
            for (column, name) in ["id", "entries", "sum_avail", "sum_held", "at"]
                .iter()
                .enumerate()
            {
                let number: i64 = row.get(column)?;
                writeln!(text, "{name:<10} {number}").expect("a string");
            }
            for (column, name) in [(5, "prev"), (6, "hash")] {
                let bytes: Vec<u8> = row.get(column)?;
                writeln!(text, "{name:<10} {}", hex(&bytes)).expect("a string");
            }
            Ok((text, row.get::<_, Vec<u8>>(7)?))
        })
        .expect("one row");
    writeln!(text, "body       {} bytes", body.len()).expect("a string");
    let mut rest = &body[..];
    for (length, what) in FIELDS.iter().filter(|(length, _)| *length > 0) {
        let at = body.len() - rest.len();
        let (bytes, after) = rest.split_at(*length);
        writeln!(text, "{at:>5}  {:<32}  {what}", hex(bytes)).expect("a string");
        rest = after;
    }
    assert!(rest.is_empty(), "bytes without a name: {}", hex(rest));
    assert!(
        README.contains(&text),
        "the README has another row; this is the one of the file:\n{text}"
    );
}
