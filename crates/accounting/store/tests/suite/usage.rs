//! Usage of an account, read by day and request by request.

use std::cmp::Reverse;
use std::sync::Arc;

use proptest::prelude::*;
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, GrantId, Micros, OperationId, Price, TokenPrice};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    CredentialKind, CredentialRow, Endpoint, GrantRow, NewCredential, OAuthPart, PageCursor, Part,
    PriceRow, RequestPosition, RequestsQuery, Store, UsageDay, UsageFlags, UsageRecord, UsageRow,
};

use super::engine;
use super::support::{Options, account_of, open_as, operation, options, write};

const DAY: i64 = 86_400_000_000;
const MINE: AccountId = AccountId::from_bytes([1; 16]);
const THEIRS: AccountId = AccountId::from_bytes([2; 16]);

/// One request: the fields that differ between requests.
#[derive(Clone, Copy, Debug)]
struct Request {
    at: i64,
    model: &'static str,
    key: u8,
    flags: UsageFlags,
}

struct Fixture {
    store: Arc<dyn Store>,
    made: u8,
    _folder: tempfile::TempDir,
}

impl Fixture {
    fn open() -> Fixture {
        let folder = tempfile::tempdir().expect("a folder");
        let options = Options {
            // So few that some of the data read is posted and some is not.
            post_records: 5,
            ..options()
        };
        let store = open_as(folder.path(), options);
        let mut fixture = Fixture {
            store,
            made: 0,
            _folder: folder,
        };
        fixture.write([MINE, THEIRS].map(account_of));
        fixture
    }

    fn write(&mut self, parts: impl IntoIterator<Item = Part>) {
        write(&self.store, parts).expect("it is written");
    }

    fn used(&mut self, account: AccountId, requests: &[Request]) {
        let parts: Vec<Part> = requests
            .iter()
            .map(|request| {
                self.made += 1;
                Part::Ledger(LedgerPart::Charge {
                    operation: operation(self.made),
                    account,
                    charged: Micros::ZERO,
                    written_off: Micros::ZERO,
                    price_version: None,
                    usage: UsageRecord {
                        credential: Some(key(request.key)),
                        endpoint: Endpoint::Chat,
                        model: Arc::from(request.model),
                        upstream: None,
                        prompt_tokens: 1_000_000,
                        completion_tokens: 2_000_000,
                        flags: request.flags,
                        http_status: 200,
                        ttfb_us: None,
                        total_us: None,
                    },
                    at: Timestamp::from_micros(request.at),
                })
            })
            .collect();
        self.write(parts);
    }

    fn requests(&self, change: impl FnOnce(&mut RequestsQuery)) -> Vec<UsageRow> {
        let mut wanted = RequestsQuery {
            account: MINE,
            from: Timestamp::UNIX_EPOCH,
            to: Timestamp::MAX,
            model: None,
            credential: None,
            cursor: PageCursor::Newest,
            limit: 1000,
        };
        change(&mut wanted);
        self.store.requests(&wanted).expect("a read")
    }
}

fn key(number: u8) -> CredentialId {
    CredentialId::from_bytes([number; 16])
}

fn at(at: i64, model: &'static str, key: u8) -> Request {
    Request {
        at,
        model,
        key,
        flags: UsageFlags::NONE,
    }
}

fn mark(row: &UsageRow) -> RequestPosition {
    RequestPosition {
        at: row.at,
        operation: row.operation,
    }
}

fn price(version: i64, valid_from: i64, per_token: i64) -> Part {
    let tokens = TokenPrice::new(Micros::new(per_token * 1_000_000)).expect("a price");
    Part::RecordPrice(Box::new(PriceRow {
        version,
        model: Arc::from("small"),
        price: Price {
            input: tokens,
            output: tokens,
            request: Micros::ZERO,
        },
        valid_from: Timestamp::from_micros(valid_from),
    }))
}

#[test]
fn usage_days_are_by_model_and_key_and_hits_save_their_full_cost() {
    let mut fixture = Fixture::open();
    fixture.write([price(1, 10, 1), price(2, 2 * DAY, 2)]);
    let hit = |time| Request {
        flags: UsageFlags::CACHE_HIT,
        ..at(time, "small", 1)
    };
    let cut = Request {
        flags: UsageFlags::INCOMPLETE,
        ..at(DAY + 1, "small", 1)
    };
    fixture.used(
        MINE,
        &[
            at(DAY, "small", 1),
            cut,
            hit(DAY + 2),
            at(DAY + 3, "small", 2),
            at(DAY + 4, "large", 1),
            hit(2 * DAY),
            Request {
                flags: UsageFlags::CACHE_HIT,
                ..at(2 * DAY, "not priced", 1)
            },
        ],
    );
    fixture.used(THEIRS, &[at(DAY, "small", 1)]);
    let days = fixture
        .store
        .usage_days(
            MINE,
            Timestamp::from_micros(DAY),
            Timestamp::from_micros(3 * DAY),
        )
        .expect("a read");
    let seen: Vec<_> = days
        .iter()
        .map(|day: &UsageDay| {
            (
                day.day_at.as_micros() / DAY,
                &*day.model,
                day.credential,
                (day.requests, day.cache_hits, day.incomplete),
                day.saved.get(),
            )
        })
        .collect();
    //  day, model, key, (requests, hits, cut), saved
    assert_eq!(
        seen,
        [
            (1, "large", Some(key(1)), (1, 0, 0), 0),
            (1, "small", Some(key(1)), (3, 1, 1), 3_000_000),
            (1, "small", Some(key(2)), (1, 0, 0), 0),
            (2, "not priced", Some(key(1)), (1, 1, 0), 0),
            (2, "small", Some(key(1)), (1, 1, 0), 6_000_000),
        ]
    );
    let first = fixture
        .store
        .usage_days(
            MINE,
            Timestamp::from_micros(DAY),
            Timestamp::from_micros(DAY + 1),
        )
        .expect("a read");
    assert_eq!(first.len(), 1, "an end is not in the period");
    assert_eq!(first[0].prompt_tokens, 1_000_000);
}

/// Sums of the requests themselves, in the order of the totals.
fn summed(rows: &[UsageRow]) -> Vec<(i64, String, Option<CredentialId>, u64)> {
    let mut sums = std::collections::BTreeMap::new();
    for row in rows {
        let day = row.at.start_of_day().as_micros() / DAY;
        let sum = sums
            .entry((day, row.usage.model.to_string(), row.usage.credential))
            .or_default();
        *sum += 1u64;
    }
    sums.into_iter()
        .map(|((day, model, key), sum)| (day, model, key, sum))
        .collect()
}

/// A release without totals posts and leaves them behind; so does a file that was made before they were.
#[test]
fn totals_that_are_behind_the_postings_are_not_read_and_are_derived_at_the_next_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let few = || Options {
        post_records: 5,
        ..options()
    };
    let store = open_as(folder.path(), few());
    let mut fixture = Fixture {
        store: Arc::clone(&store),
        made: 0,
        _folder: folder,
    };
    fixture.write([MINE, THEIRS].map(account_of));
    for number in 0..40 {
        let model = if number % 3 == 0 { "large" } else { "small" };
        fixture.used(
            MINE,
            &[at(DAY + number * DAY / 9, model, (number % 2) as u8)],
        );
    }
    let read = |store: &tollgate_store::Reader| {
        let days = store.usage_days(MINE, Timestamp::UNIX_EPOCH, Timestamp::MAX);
        let days = days.expect("a read").into_iter();
        days.map(|day| {
            let at = day.day_at.as_micros() / DAY;
            (at, day.model.to_string(), day.credential, day.requests)
        })
        .collect::<Vec<_>>()
    };
    let rows = store.requests(&RequestsQuery {
        account: MINE,
        from: Timestamp::UNIX_EPOCH,
        to: Timestamp::MAX,
        model: None,
        credential: None,
        cursor: PageCursor::Newest,
        limit: 100,
    });
    let expected = summed(&rows.expect("a read"));
    assert_eq!(read(&store), expected);
    store.close();
    let folder = fixture._folder.path();
    let marks = engine::MARKS;
    let edits =
        format!("UPDATE usage_days SET requests = 1000; UPDATE {marks} SET days_posted = 0");
    engine::execute(folder, &edits);
    let reader = engine::open_read(folder);
    assert_eq!(read(&reader), expected, "from the requests themselves");
    drop(reader);
    let store = open_as(folder, few());
    assert_eq!(read(&store), expected);
    store.close();
    let wrong = "SELECT count(*) FROM usage_days WHERE requests >= 1000";
    let wrong = engine::number(folder, wrong);
    assert_eq!(wrong, 0, "they were derived again");
}

#[test]
fn a_used_credential_has_its_time_of_use_and_a_missing_one_is_skipped() {
    let mut fixture = Fixture::open();
    let grant = GrantId::from_bytes([7; 16]);
    fixture.write([Part::OAuth(Box::new(OAuthPart::InsertGrant(GrantRow {
        id: grant,
        account: MINE,
        client: "client".into(),
        client_name: None,
        refresh: false,
        redirect_uri: "http://localhost/".into(),
        resource: 1,
        asked: None,
        scopes: 1,
        created_at: Timestamp::from_micros(1),
        used_at: Timestamp::from_micros(1),
        ends_at: Timestamp::from_micros(1_000),
        revoked_at: None,
    })))]);
    // A key, and two tokens of one grant.
    for (number, grant) in [(1, None), (2, Some(grant)), (3, Some(grant))] {
        fixture.write([Part::InsertCredential(Box::new(NewCredential {
            id: key(number),
            hash: [number; 32],
            kind: match grant {
                None => CredentialKind::ApiKey,
                Some(_) => CredentialKind::AccessToken,
            },
            account: MINE,
            client_id: None,
            grant_id: grant.map(|grant| *grant.as_bytes()),
            resource: 1,
            scopes: 1,
            label: None,
            hint: None,
            models: None,
            spending_cap: None,
            created_at: Timestamp::from_micros(1),
            expires_at: None,
        }))]);
    }
    let seen = |fixture: &Fixture| {
        let mut rows = fixture.store.account_credentials(MINE).expect("a read");
        rows.sort_by_key(|row| row.made.id);
        let of_grant = fixture.store.oauth_grant(grant).expect("a read");
        let of_grant = of_grant.expect("the grant").used_at.as_micros();
        let micros = |row: &CredentialRow| row.used_at.map_or(0, Timestamp::as_micros);
        (rows.iter().map(micros).collect::<Vec<_>>(), of_grant)
    };
    assert_eq!(seen(&fixture), (vec![0, 0, 0], 1));
    let used = |number, used_at| (key(number), Timestamp::from_micros(used_at));
    //   written, and the stored values then
    for (uses, of_credentials, of_grant) in [
        (vec![used(9, 50), used(1, 70)], [70, 0, 0], 1),
        (vec![used(1, 60)], [70, 0, 0], 1),
        (vec![used(1, 80)], [80, 0, 0], 1),
        (
            vec![used(2, 95), used(3, 92), used(1, 90)],
            [90, 95, 92],
            95,
        ),
        (vec![used(3, 94)], [90, 95, 94], 95),
    ] {
        fixture.write([Part::OAuth(Box::new(OAuthPart::NoteUses(uses)))]);
        assert_eq!(seen(&fixture), (of_credentials.to_vec(), of_grant));
    }
}

#[test]
fn requests_are_selected_by_period_model_and_key() {
    let mut fixture = Fixture::open();
    fixture.used(
        MINE,
        &[
            at(10, "small", 1),
            at(20, "large", 1),
            at(30, "small", 2),
            at(40, "small", 1),
        ],
    );
    fixture.used(THEIRS, &[at(25, "small", 1)]);
    let times = |change: fn(&mut RequestsQuery)| {
        let rows = fixture.requests(change);
        rows.iter()
            .map(|row| row.at.as_micros())
            .collect::<Vec<_>>()
    };
    assert_eq!(times(|_| {}), [40, 30, 20, 10]);
    assert_eq!(times(|wanted| wanted.limit = 2), [40, 30]);
    assert_eq!(
        times(|wanted| wanted.to = Timestamp::from_micros(40)),
        [30, 20, 10]
    );
    assert_eq!(
        times(|wanted| wanted.from = Timestamp::from_micros(20)),
        [40, 30, 20]
    );
    let small = |wanted: &mut RequestsQuery| wanted.model = Some(Arc::from("small"));
    assert_eq!(times(small), [40, 30, 10]);
    assert_eq!(times(|wanted| wanted.credential = Some(key(2))), [30]);
}

/// Some requests that were committed together.
fn commits() -> impl Strategy<Value = Vec<Vec<Request>>> {
    let request = (0i64..9, prop_oneof!["small", "large"], 1u8..3);
    let request = request.prop_map(|(time, model, key)| match &*model {
        "small" => at(time, "small", key),
        _ => at(time, "large", key),
    });
    // As many as a posting has, some more and some fewer: times overlap between postings, in no order.
    prop::collection::vec(prop::collection::vec(request, 1..9), 1..12)
}

/// A filter on an account's requests, with the pages it is read in.
fn choice() -> impl Strategy<Value = RequestsQuery> {
    let model = prop::option::of(Just(Arc::from("small")));
    let credential = prop::option::of((1u8..3).prop_map(key));
    (0i64..4, 4i64..12, model, credential, 1usize..7).prop_map(
        |(from, to, model, credential, limit)| RequestsQuery {
            account: MINE,
            from: Timestamp::from_micros(from),
            to: Timestamp::from_micros(to),
            model,
            credential,
            cursor: PageCursor::Newest,
            limit,
        },
    )
}

fn place_of(row: &UsageRow) -> (i64, OperationId) {
    (row.at.as_micros(), row.operation)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Including several requests of one instant: following the links yields each request once, in both directions, whatever of them is
    /// posted.
    #[test]
    fn pages_in_either_direction_omit_nothing(commits in commits(), wanted in choice()) {
        let mut fixture = Fixture::open();
        let mut all = Vec::new();
        for requests in &commits {
            let (mine, made) = (requests.as_slice(), fixture.made);
            fixture.used(MINE, mine);
            all.extend(mine.iter().zip(made + 1..).map(|(request, number)| {
                ((request.at, operation(number)), *request)
            }));
            fixture.used(THEIRS, &mine[..1]);
        }
        all.retain(|(_, request)| {
            (wanted.from..wanted.to).contains(&Timestamp::from_micros(request.at))
                && wanted.model.as_deref().is_none_or(|model| model == request.model)
                && wanted.credential.is_none_or(|id| id == key(request.key))
        });
        all.sort_by_key(|(place, _)| Reverse(*place));
        let all: Vec<_> = all.into_iter().map(|(place, _)| place).collect();
        let page = |place| {
            let rows = fixture.requests(|it| *it = RequestsQuery { cursor: place, ..wanted.clone() });
            assert!(rows.len() <= wanted.limit);
            rows
        };
        let (mut older, mut place) = (Vec::new(), PageCursor::Newest);
        loop {
            let rows = page(place);
            let Some(last) = rows.last() else { break };
            place = PageCursor::OlderThan(mark(last));
            older.extend(rows.iter().map(place_of));
        }
        prop_assert_eq!(&older, &all);
        // Before the first one: the link of an empty page.
        let mut place = PageCursor::NewerThan(RequestPosition { at: Timestamp::from_micros(-1), operation: operation(0) });
        let mut newer = Vec::new();
        loop {
            let rows = page(place);
            let Some(first) = rows.first() else { break };
            place = PageCursor::NewerThan(mark(first));
            newer.splice(0..0, rows.iter().map(place_of));
        }
        prop_assert_eq!(&newer, &all);
    }
}
