//! Chains of upgrades: earlier processes with open requests.

use tollgate_testing::{Postgres, RawClient, Script, StreamEnd, within};

use super::installation::Installation;
use super::upgrade::{Successor, address, charged, first_ended, held, spent};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, chat, poll};

#[tokio::test]
async fn a_killed_process_between_two_others_takes_no_request_of_the_first_one_along() {
    killed_between(Installation::new("").await).await;
}

#[tokio::test]
async fn a_killed_process_between_two_others_takes_no_request_along_on_postgresql() {
    let database = Postgres::shared().database();
    killed_between(Installation::on_postgres(&database, "").await).await;
}

/// The first process has a stream and an idle connection, and the second process has a stream. The second process is killed after the start
/// of the third process.
async fn killed_between(installation: Installation) {
    let mut serving = installation.serve().await;
    let provider = &installation.provider;
    let client = serving.client(&installation);
    let mut kept = RawClient::connect(address(&serving)).await;
    let body = chat(false).to_string();
    kept.post(CHAT, &installation.key, &body).await;
    assert_eq!(kept.read_answer().await.0.status(), 200);
    let stream_of = async |gate: &str| {
        provider.script(Script::pace(gate).once());
        provider.gate(gate).release(1);
        let stream = client.stream(CHAT, &chat(true)).await;
        assert_eq!(stream.status, 200);
        provider.gate(gate).reached_by(1).await;
        stream
    };

    let mut of_first = stream_of("first").await;
    let second = Successor::of(&installation).await;
    let held_by_first = held(&installation).await;
    assert!(held_by_first > 0);
    let mut of_second = stream_of("second").await;
    let third = Successor::of(&installation).await;
    assert!(held(&installation).await > held_by_first);
    second.signal("KILL");
    within("the end of the second process", poll(|| second.has_ended())).await;
    let cut = of_second.rest().await.1;
    assert!(matches!(cut, StreamEnd::Cut(_)), "{cut:?}");
    let released = async { while held(&installation).await != held_by_first {} };
    within("the release of the second process's hold", released).await;

    kept.post(CHAT, &installation.key, &body).await;
    let (head, answer) = kept.read_answer().await;
    assert_eq!(head.status(), 200, "{answer:?}");
    assert_eq!(head.header("connection"), Some("close"));
    let answer = serde_json::from_slice(&answer).expect("JSON");
    assert_eq!(charged(&answer), PRICE_OF_A_CHAT);
    provider.gate("first").open();
    let (events, end) = of_first.rest().await;
    assert_eq!(end, StreamEnd::Proper);
    assert!(events.last().expect("events").is_done());

    assert_eq!(first_ended(&mut serving).await, Some(0));
    assert_eq!(spent(&installation).await, 3 * PRICE_OF_A_CHAT);
    third.stop().await;
    let audit = installation.audit().await;
    assert_eq!(audit["open_holds"], 0, "{audit}");
}

/// The first process sends the ends of requests to the third process, and sees the end of the third process.
#[tokio::test]
async fn a_process_ends_with_the_last_one_of_its_chain() {
    let installation = Installation::new("").await;
    let mut serving = installation.serve().await;
    let provider = &installation.provider;
    provider.script(Script::pace("piece").once());
    provider.gate("piece").release(1);
    let stream = serving
        .client(&installation)
        .stream(CHAT, &chat(true))
        .await;
    provider.gate("piece").reached_by(1).await;
    let second = Successor::of(&installation).await;
    let third = Successor::of(&installation).await;
    within("the end of the second process", poll(|| second.has_ended())).await;
    third.signal("KILL");
    assert_eq!(first_ended(&mut serving).await, Some(1));
    drop(stream);
    let again = installation.serve().await;
    assert_eq!(held(&installation).await, 0);
    assert_eq!(spent(&installation).await, 0);
    drop(again);
}
