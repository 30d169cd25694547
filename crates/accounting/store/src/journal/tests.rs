//! Bodies are read back as packed or copied, and damaged bodies are detected.

use proptest::prelude::*;

use super::*;

fn ids() -> impl Strategy<Value = (OperationId, AccountId, Timestamp)> {
    (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<i64>()).prop_map(|(operation, account, at)| {
        (
            OperationId::from_bytes(operation),
            AccountId::from_bytes(account),
            Timestamp::from_micros(at),
        )
    })
}

fn micros() -> impl Strategy<Value = Micros> {
    any::<i64>().prop_map(Micros::new)
}

fn words() -> impl Strategy<Value = Arc<str>> {
    prop_oneof!["demo-(small|large)", ".{0,300}"].prop_map(Arc::from)
}

fn usage() -> impl Strategy<Value = UsageRecord> {
    let counts = (any::<u64>(), any::<u64>(), any::<u32>(), any::<u16>());
    // The last number stands for all greater numbers.
    let durations = prop::option::of(0..u64::MAX);
    let credential = prop::option::of(any::<[u8; 16]>());
    (
        credential,
        words(),
        prop::option::of(words()),
        counts,
        durations.clone(),
        durations,
    )
        .prop_map(
            |(
                credential,
                model,
                upstream,
                (prompt_tokens, completion_tokens, flags, http_status),
                ttfb_us,
                total_us,
            )| UsageRecord {
                credential: credential.map(CredentialId::from_bytes),
                endpoint: Endpoint::Completions,
                model,
                upstream,
                prompt_tokens,
                completion_tokens,
                flags: UsageFlags::from_bits(flags),
                http_status,
                ttfb_us,
                total_us,
            },
        )
}

fn part() -> impl Strategy<Value = LedgerPart> {
    let version = prop::option::of(any::<i64>());
    prop_oneof![
        (ids(), micros(), version.clone(), any::<i64>()).prop_map(
            |((operation, account, at), amount, price_version, expires_at)| {
                LedgerPart::Hold {
                    operation,
                    account,
                    amount,
                    price_version,
                    at,
                    expires_at: Timestamp::from_micros(expires_at),
                }
            }
        ),
        (
            ids(),
            micros(),
            micros(),
            micros(),
            version.clone(),
            usage()
        )
            .prop_map(
                |((operation, account, at), held, charged, written_off, price_version, usage)| {
                    LedgerPart::Settle {
                        operation,
                        account,
                        held,
                        charged,
                        written_off,
                        price_version,
                        usage,
                        at,
                    }
                }
            ),
        (ids(), micros()).prop_map(|((operation, account, at), held)| LedgerPart::Release {
            operation,
            account,
            held,
            at
        }),
        (ids(), micros(), micros(), version, usage()).prop_map(
            |((operation, account, at), charged, written_off, price_version, usage)| {
                LedgerPart::Charge {
                    operation,
                    account,
                    charged,
                    written_off,
                    price_version,
                    usage,
                    at,
                }
            }
        ),
        (ids(), micros(), words()).prop_map(|((operation, account, at), amount, reference)| {
            LedgerPart::Credit {
                operation,
                account,
                kind: EntryKind::Refund,
                amount,
                reference,
                at,
            }
        }),
    ]
}

fn unpacked(body: &[u8]) -> Result<Vec<LedgerPart>, DecodeError> {
    Body::read(body)?
        .records()
        .map(|record| record?.part())
        .collect()
}

proptest! {
    #[test]
    fn packed_parts_are_read_back(parts in prop::collection::vec(part(), 0..20), undone in prop::collection::vec(part(), 0..3)) {
        let mut packer = Packer::default();
        for part in &parts {
            packer.push(part);
            let mark = packer.mark();
            undone.iter().for_each(|part| packer.push(part));
            packer.rewind(mark);
        }
        prop_assert_eq!(packer.count(), parts.len());
        prop_assert_eq!(unpacked(&packer.finish()), Ok(parts));
        prop_assert_eq!(packer.count(), 0);
    }

    #[test]
    fn records_copied_from_other_bodies_are_read_back(bodies in prop::collection::vec(prop::collection::vec(part(), 0..8), 0..4)) {
        let packed = |parts: &Vec<LedgerPart>| {
            let mut packer = Packer::default();
            parts.iter().for_each(|part| packer.push(part));
            packer.finish()
        };
        let mut packer = Packer::default();
        for body in bodies.iter().map(packed) {
            let body = Body::read(&body).expect("it has just been packed");
            for record in body.records() {
                packer.copy(&record.expect("a record")).expect("a whole record");
            }
        }
        let parts = bodies.concat();
        prop_assert_eq!(packer.count(), parts.len());
        let body = packer.finish();
        prop_assert_eq!(unpacked(&body), Ok(parts.clone()));
        // The bytes equal the bytes of a body whose records were packed one by one.
        prop_assert_eq!(body, packed(&parts));
    }

    #[test]
    fn damaged_bytes_are_reported_and_never_decoded(parts in prop::collection::vec(part(), 1..4), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut packer = Packer::default();
        parts.iter().for_each(|part| packer.push(part));
        let mut body = packer.finish();
        let at = at.index(body.len());
        if cut {
            body.truncate(at);
        } else {
            body[at] = byte;
        }
        // Whatever the result, decoding does not panic, and the head of every record can be read.
        if let Ok(body) = Body::read(&body) {
            for record in body.records().flatten() {
                let _ = (record.operation(), record.account(), record.at(), record.is_owner_visible(), record.part());
                let mut copy = Packer::default();
                let copied = copy.copy(&record);
                if let Ok(part) = record.part() {
                    prop_assert!(copied.is_ok());
                    prop_assert_eq!(unpacked(&copy.finish()), Ok(vec![part]));
                }
            }
        }
    }
}

/// Indices of one byte become indices of two bytes, and vice versa.
#[test]
fn a_copied_record_refers_to_the_new_positions_of_its_words() {
    let part = |number: u32| LedgerPart::Credit {
        operation: OperationId::from_bytes([7; 16]),
        account: AccountId::from_bytes([1; 16]),
        kind: EntryKind::Grant,
        amount: Micros::new(1),
        reference: Arc::from(number.to_string()),
        at: Timestamp::from_micros(1),
    };
    let parts: Vec<LedgerPart> = (0..200).map(part).collect();
    let mut packer = Packer::default();
    parts.iter().for_each(|part| packer.push(part));
    let body = packer.finish();
    let body = Body::read(&body).expect("it has just been packed");
    let records: Vec<_> = body
        .records()
        .map(|record| record.expect("a record"))
        .collect();
    for from in [0, 100, 199] {
        let in_turn = records[from..].iter().chain(&records[..from]);
        in_turn.for_each(|record| packer.copy(record).expect("a whole record"));
        let turned = [&parts[from..], &parts[..from]].concat();
        assert_eq!(unpacked(&packer.finish()), Ok(turned), "from {from}");
    }
}

#[test]
fn a_word_of_many_records_is_written_once() {
    let model = Arc::<str>::from("a-model-with-a-long-name");
    let part = |number| LedgerPart::Credit {
        operation: OperationId::from_bytes([number; 16]),
        account: AccountId::from_bytes([1; 16]),
        kind: EntryKind::Grant,
        amount: Micros::new(1),
        reference: Arc::clone(&model),
        at: Timestamp::from_micros(1),
    };
    let mut packer = Packer::default();
    (0..10).for_each(|number| packer.push(&part(number)));
    let body = packer.finish();
    let found = body
        .windows(model.len())
        .filter(|window| *window == model.as_bytes());
    assert_eq!(found.count(), 1);
}
