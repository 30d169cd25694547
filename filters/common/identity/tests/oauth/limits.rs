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
async fn unauthorized_clients_are_deleted_after_a_day_and_others_after_90_days_unused() {
    let bench = Bench::new().await;
    let idle = bench.register().await;
    let (used, _) = bench.allowed(API, 1).await;
    bench.pass(DAY);
    forget(&bench).await;
    assert!(known(&bench, &idle).await && known(&bench, &used).await);
    bench.pass(61 * SECOND);
    forget(&bench).await;
    assert!(!known(&bench, &idle).await && known(&bench, &used).await);
    bench.pass(89 * DAY);
    forget(&bench).await;
    assert!(!known(&bench, &used).await);
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
    bench.pass(600 * SECOND);
    let token = bench
        .works(granted.access.expose_secret())
        .expect("it works");
    let part = OAuthPart::NoteUses(vec![(token.id, bench.now())]);
    let unit = UnitOfWork::of(Part::OAuth(Box::new(part)), Admission::BestEffort);
    commit(&*bench.store, unit).await.expect("durable");
    let apps = bench.server.apps(bench.account).await.expect("read");
    assert_eq!(apps[0].used_at, bench.now());
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
