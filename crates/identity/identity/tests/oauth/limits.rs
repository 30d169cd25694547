//! Retention and limits: obsolete rows are deleted, and the store stays bounded.

use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use tollgate_clock::Timestamp;
use tollgate_identity::oauth::{DecideError, OAuthSettings, PendingId};
use tollgate_store::{Admission, OAuthPart, Part, PendingRow, UnitOfWork, commit, flush};

use crate::support::{API, Bench, CHALLENGE, REDIRECT, SECOND, SESSION, with_refresh};

const DAY: Duration = Duration::from_secs(24 * 3600);

async fn known(bench: &Bench, client: &Arc<str>) -> bool {
    bench.server.client(client).await.expect("read").is_some()
}

async fn forget(bench: &Bench) {
    bench.server.forget();
    flush(&*bench.store).await.expect("durable");
}

#[tokio::test]
async fn unauthorized_clients_are_deleted_after_30_days_and_others_after_90_days_unused() {
    let bench = Bench::new().await;
    let idle = bench.register().await;
    let asking = bench.register().await;
    let (used, _) = bench.allowed(API, 1).await;
    bench.pass(30 * DAY - SECOND);
    forget(&bench).await;
    assert!(known(&bench, &idle).await && known(&bench, &used).await);
    let id = bench.ask(&asking, API, 1).await;
    bench.pass(62 * SECOND);
    forget(&bench).await;
    assert!(!known(&bench, &idle).await && known(&bench, &used).await);
    bench
        .code(id, 1)
        .await
        .expect("its app is still registered");
    bench.pass(60 * DAY);
    forget(&bench).await;
    assert!(!known(&bench, &used).await && known(&bench, &asking).await);
}

#[tokio::test]
async fn above_the_limit_the_oldest_unauthorized_client_is_dropped() {
    let settings = OAuthSettings {
        unused_clients_max: 3,
        ..OAuthSettings::default()
    };
    let bench = Bench::with(settings).await;
    let (used, _) = bench.allowed(API, 1).await;
    let mut clients = Vec::new();
    for _ in 0..5 {
        bench.pass(SECOND);
        clients.push(bench.register().await);
    }
    for (at, client) in clients.iter().enumerate() {
        assert_eq!(known(&bench, client).await, at >= 2, "number {at}");
    }
    assert!(known(&bench, &used).await);
    // A request of a deleted client cannot be allowed: its code could not be used.
    let id = bench.ask(&clients[0], API, 1).await;
    assert!(matches!(
        bench.code(id, 1).await,
        Err(DecideError::NoClient)
    ));
}

/// The clients that are registered, by their place in the list.
async fn left(bench: &Bench, clients: &[Arc<str>]) -> Vec<usize> {
    let mut left = Vec::new();
    for (at, client) in clients.iter().enumerate() {
        if known(bench, client).await {
            left.push(at);
        }
    }
    left
}

#[tokio::test]
async fn above_the_limit_the_network_with_the_most_unauthorized_clients_loses_its_oldest() {
    let settings = OAuthSettings {
        unused_clients_max: 4,
        ..OAuthSettings::default()
    };
    let bench = Bench::with(settings).await;
    let mut clients = Vec::new();
    for network in [
        "192.0.2.1",
        "2001:db8::1",
        "198.51.100.7",
        "2001:db8::2",
        "2001:db8::3",
        "2001:db8:0:1::1",
    ] {
        bench.pass(SECOND);
        clients.push(bench.register_from(Some(network)).await);
    }
    assert_eq!(
        left(&bench, &clients).await,
        [0, 2, 4, 5],
        "the older of the same 64 bits"
    );
    bench.pass(SECOND);
    clients.push(bench.register_from(Some("2001:db8::4")).await);
    assert_eq!(left(&bench, &clients).await, [0, 2, 5, 6]);
    // Of networks with one client each the oldest client goes.
    bench.pass(SECOND);
    clients.push(bench.register_from(Some("203.0.113.9")).await);
    assert_eq!(left(&bench, &clients).await, [2, 5, 6, 7]);
}

#[tokio::test]
async fn a_client_with_an_authorization_under_way_is_not_dropped() {
    let settings = OAuthSettings {
        unused_clients_max: 2,
        ..OAuthSettings::default()
    };
    let bench = Bench::with(settings).await;
    let mut clients = Vec::new();
    let mut requests = Vec::new();
    for number in 0..3 {
        bench.pass(SECOND);
        clients.push(bench.register_from(Some("192.0.2.1")).await);
        if number < 2 {
            requests.push(bench.ask(&clients[number], API, 1).await);
        }
    }
    assert_eq!(
        left(&bench, &clients).await,
        [0, 1, 2],
        "one more than the maximum"
    );
    bench.pass(SECOND);
    clients.push(bench.register_from(Some("198.51.100.7")).await);
    assert_eq!(left(&bench, &clients).await, [0, 1, 3]);
    bench
        .code(requests[0], 1)
        .await
        .expect("its app is still registered");
    // A request that has expired keeps no client.
    bench.pass(601 * SECOND);
    clients.push(bench.register_from(Some("198.51.100.7")).await);
    clients.push(bench.register_from(Some("198.51.100.7")).await);
    assert_eq!(
        left(&bench, &clients).await.len(),
        3,
        "two and the authorized one"
    );
    assert!(known(&bench, &clients[0]).await);
}

#[tokio::test]
async fn ended_grants_and_tokens_are_deleted_after_a_week() {
    let bench = Bench::with(with_refresh()).await;
    let (client, code) = bench.allowed(API, 1).await;
    let granted = bench.exchange(&client, &code).await.expect("tokens");
    let token = granted.refresh.expect("one");
    let rows = |bench: &Bench| {
        let rows = bench.store.account_credentials(bench.account);
        rows.expect("read").len()
    };
    let grants = |bench: &Bench| {
        let rows = bench
            .store
            .oauth_grants(bench.account, Timestamp::UNIX_EPOCH);
        rows.expect("read").len()
    };
    bench.pass(20 * DAY);
    bench
        .refresh(&client, token.expose_secret())
        .await
        .expect("rotated");
    forget(&bench).await;
    assert_eq!(
        (rows(&bench), grants(&bench)),
        (1, 1),
        "the first access token"
    );
    bench.pass(30 * DAY);
    forget(&bench).await;
    assert_eq!((rows(&bench), grants(&bench)), (0, 1));
    bench.pass(7 * DAY + 61 * SECOND);
    forget(&bench).await;
    forget_again(&bench).await;
    assert_eq!(grants(&bench), 0);
}

async fn forget_again(bench: &Bench) {
    bench.pass(61 * SECOND);
    forget(bench).await;
}

#[tokio::test]
async fn the_last_use_of_a_token_shows_on_its_app() {
    let bench = Bench::new().await;
    let (client, code) = bench.allowed(API, 1).await;
    let granted = bench.exchange(&client, &code).await.expect("a token");
    let unused = bench.server.apps(bench.account).await.expect("read");
    assert_eq!(unused[0].used_at, None, "a token alone is no use");
    bench.pass(600 * SECOND);
    let token = bench
        .works(granted.access.expose_secret())
        .expect("it works");
    let part = OAuthPart::NoteUses(vec![(token.id, bench.now())]);
    let unit = UnitOfWork::of(Part::OAuth(Box::new(part)), Admission::BestEffort);
    commit(&*bench.store, unit).await.expect("durable");
    let apps = bench.server.apps(bench.account).await.expect("read");
    assert_eq!(apps[0].used_at, Some(bench.now()));
}

/// Stores a request, with room for three.
async fn ask_among_three(bench: &Bench, number: u8) {
    bench.pass(SECOND);
    let part = OAuthPart::InsertPending {
        pending: PendingRow {
            id: [number; 16],
            client: Arc::from("c_1"),
            client_name: None,
            refresh: false,
            document: false,
            redirect_uri: Arc::from(REDIRECT),
            state: None,
            challenge: Arc::from(CHALLENGE),
            resource: API,
            asked: None,
            scopes: 1,
            session: None,
            created_at: bench.now(),
            expires_at: Timestamp::MAX,
        },
        pending_max: 3,
    };
    let unit = UnitOfWork::of(Part::OAuth(Box::new(part)), Admission::Normal);
    commit(&*bench.store, unit).await.expect("durable");
}

/// Opens the page of a request in a session.
async fn look(bench: &Bench, number: u8) {
    let id: PendingId = format!("{number:02x}").repeat(16).parse().expect("an id");
    bench
        .server
        .open_request(id, &SESSION)
        .await
        .expect("it waits");
}

fn waiting(bench: &Bench) -> Vec<u8> {
    let waits = |number: &u8| bench.store.oauth_pending(&[*number; 16]).expect("read");
    (1..10).filter(|number| waits(number).is_some()).collect()
}

#[tokio::test]
async fn unopened_requests_are_dropped_before_opened_ones() {
    let bench = Bench::new().await;
    ask_among_three(&bench, 1).await;
    look(&bench, 1).await;
    for number in 2..=5 {
        ask_among_three(&bench, number).await;
    }
    assert_eq!(waiting(&bench), [1, 4, 5], "the oldest of the strangers");
    for number in [4, 5] {
        look(&bench, number).await;
    }
    ask_among_three(&bench, 6).await;
    assert_eq!(
        waiting(&bench),
        [4, 5, 6],
        "the oldest, where all are known"
    );
    ask_among_three(&bench, 7).await;
    assert_eq!(waiting(&bench), [4, 5, 7]);
}
