//! Certificates by ACME, from a real authority. The authority validates challenges over connections to the listeners.

use std::cell::Cell;
use std::net::SocketAddr;

use serde_json::Value;
use tollgate_clock::{Clock, Timestamp};
use tollgate_testing::{
    AcmeCall, Authority, Client, EXTERNAL_ACCOUNT, Misbehaviour, Postgres, RawClient,
    refusing_address, within,
};
use toml::Table;

use super::installation::{Installation, Serving, ended};
use super::nodes::settings_of;
use super::reload::{edit, element, toml_of};
use super::upgrade::{Successor, first_ended};
use crate::rig::{CHAT, SECRETS, chat};

const NAME: &str = "api.tollgate.test";
const DAY: u32 = 24 * 3600;
const OBTAINED: &str = "obtained certificate";
const FAILED: &str = "obtaining certificate failed";

/// Lets the TLS listener order from `authority` instead of using a file.
fn order(installation: &Installation, authority: &Authority, names: &[&str], more: &str) {
    let ca = installation.folder.path().join("directory-ca.pem");
    std::fs::write(&ca, authority.ca_pem()).expect("the folder takes files");
    let directory = authority.directory();
    let acme = format!(
        "names = {names:?}\ndirectory = '{directory}'\nca_file = 'directory-ca.pem'\nterms_agreed = true\nretry_secs = 1\n{more}"
    );
    edit(installation, |table| {
        let mut source = Table::new();
        source.insert("acme".into(), toml_of(&acme));
        let tls = toml::Value::Array(vec![source.into()]);
        element(table, "listener", 1).insert("tls".into(), tls);
    });
}

/// The addresses of the two listeners.
fn addresses(serving: &Serving) -> (SocketAddr, SocketAddr) {
    let plain = serving.url.trim_start_matches("http://");
    let tls = serving.tls_url.replace("https://localhost", "127.0.0.1");
    (
        plain.parse().expect("an address"),
        tls.parse().expect("an address"),
    )
}

fn forward(authority: &Authority, serving: &Serving) {
    let (plain, tls) = addresses(serving);
    authority.forward_to(plain, tls);
}

/// Waits for the line number `count` with `words`.
async fn line(serving: Serving, words: &'static str, count: usize) -> (Serving, String) {
    let read = tokio::task::spawn_blocking(move || {
        let seen = Cell::new(0);
        // The closure is called once a line.
        let is_it = |line: &str| {
            seen.set(seen.get() + usize::from(line.contains(words)));
            seen.get() == count
        };
        let line = serving.process.line_where(words, is_it);
        (serving, line)
    });
    read.await.expect("the line comes")
}

/// A client over TLS by the name `name`.
fn client(serving: &Serving, installation: &Installation, name: &str, root: &str) -> Client {
    let port = serving.tls_url.rsplit(':').next().expect("a port");
    let client = Client::new(&format!("https://{name}:{port}"));
    client.with_key(&installation.key).with_tls(root)
}

async fn is_served(client: &Client) -> bool {
    let request = client.request("GET", "/v1/models", Default::default());
    match client.try_send(request).await {
        Ok(answer) => {
            assert_eq!(answer.status, 200, "{}", answer.text());
            true
        }
        Err(_) => false,
    }
}

async fn warnings(serving: &Serving) -> Vec<String> {
    let answer = Client::new(&serving.admin_url).get("/ready").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json: Value = answer.json();
    let list = json["warnings"].as_array().cloned().unwrap_or_default();
    let texts = list.iter().filter_map(Value::as_str).map(str::to_owned);
    texts.filter(|text| text.contains("acme:")).collect()
}

/// A metric of the certificate of [`NAME`].
async fn of_certificate(serving: &Serving, metric: &str) -> u64 {
    let name = format!("{metric}{{certificate=\"acme:{NAME}\"}}");
    serving.metric(&name).await
}

async fn stop(mut serving: Serving) -> String {
    serving.process.signal("TERM");
    let status = ended(&mut serving.process).await;
    let output = serving.process.output();
    assert!(status.success(), "{output}");
    output
}

/// The first order, and a restart with the ordered certificate.
async fn first_order(installation: Installation, names: &[&str], more: &str) {
    let authority = Authority::start(90 * DAY, false).await;
    order(&installation, &authority, names, more);
    let checked = installation.run(&["check"]).await;
    assert!(!checked.contains("error"), "{checked}");
    let serving = installation.serve().await;
    let root = authority.root().await;
    let by_name = |serving: &Serving, name| client(serving, &installation, name, &root);
    // The authority connects after the ports are forwarded. Before, the gateway has no certificate.
    assert!(!is_served(&by_name(&serving, NAME)).await, "no certificate");
    let waiting = warnings(&serving).await;
    assert!(waiting[0].contains("for the first time"), "{waiting:?}");
    assert_eq!(
        of_certificate(&serving, "tollgate_acme_certificate_missing").await,
        1
    );
    let plain = serving.client(&installation).get("/v1/models").await;
    assert_eq!(plain.status, 200, "the plain listener serves");
    forward(&authority, &serving);
    let (serving, _) = line(serving, OBTAINED, 1).await;
    let (serving, _) = settled(serving, &installation, &root).await;
    for name in names {
        assert!(is_served(&by_name(&serving, name)).await, "{name}");
        let http2 = by_name(&serving, name).with_http2();
        assert!(is_served(&http2).await, "{name} over HTTP/2");
    }
    assert_eq!(warnings(&serving).await, [""; 0]);
    // `doctor` ends with 1, because other parties of the settings are missing.
    let mut doctor = installation.spawn(installation.command(&["doctor"]));
    ended(&mut doctor).await;
    let found = doctor.output();
    let stored = format!("ok       certificate acme:{NAME}: valid until ");
    assert!(found.contains(&stored), "{found}");
    for (metric, value) in [
        ("tollgate_acme_certificate_missing", 0),
        ("tollgate_acme_failures", 0),
    ] {
        assert_eq!(of_certificate(&serving, metric).await, value, "{metric}");
    }
    let issued = serving.metric("tollgate_acme_orders_total{result=\"issued\"}");
    assert_eq!(issued.await, 1);
    let expiry = "tollgate_certificate_expiry_timestamp_seconds";
    assert!(of_certificate(&serving, expiry).await > 0);
    // The challenge is not answered any more.
    let path = "/.well-known/acme-challenge/token";
    assert_eq!(serving.client(&installation).get(path).await.status, 404);
    let output = stop(serving).await;
    assert!(!output.contains("PRIVATE KEY"), "{output}");

    let serving = installation.serve().await;
    for name in names {
        assert!(is_served(&by_name(&serving, name)).await, "{name}, stored");
    }
    assert_eq!(authority.calls(AcmeCall::NewOrder), 1, "nothing is ordered");
    assert_eq!(authority.calls(AcmeCall::NewAccount), 1);
    stop(serving).await;
    installation.audit().await;
}

/// Waits until the certificate named by the log is used.
async fn settled(serving: Serving, installation: &Installation, root: &str) -> (Serving, ()) {
    let client = client(&serving, installation, NAME, root);
    let used = async { while !is_served(&client).await {} };
    within("the certificate", used).await;
    (serving, ())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_certificate_is_obtained_by_http_and_a_restart_uses_it() {
    first_order(Installation::new("").await, &[NAME], "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_two_names_is_obtained_by_tls_alpn() {
    let more = "challenge = 'tls-alpn-01'\ncontact = ['ops@tollgate.test']";
    let names = [NAME, "www.tollgate.test"];
    first_order(Installation::new("").await, &names, more).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_stored_in_postgres() {
    let database = Postgres::shared().database();
    let installation = Installation::on_postgres(&database, "").await;
    first_order(installation, &[NAME], "").await;
}

/// Two gateways behind one name. The authority reaches the gateway without the order.
async fn challenge_at_another_node(more: &str) {
    let database = Postgres::shared().database();
    let authority = Authority::start(90 * DAY, false).await;
    let installation = Installation::on_postgres(&database, "").await;
    order(&installation, &authority, &[NAME], more);
    let node = |name: &str| {
        let config = settings_of(&installation.config, name);
        installation.command_with(&config, &["serve"])
    };
    let first = installation.serve_as(node("a")).await;
    // The gateway orders, and the authority's requests wait for the forwarding.
    within("the order", async {
        while authority.calls(AcmeCall::NewOrder) == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let other = installation.serve_as(node("b")).await;
    forward(&authority, &other);
    let root = authority.root().await;
    let (first, _) = line(first, OBTAINED, 1).await;
    let (first, _) = settled(first, &installation, &root).await;
    // Clients reach the second gateway too.
    let (other, _) = settled(other, &installation, &root).await;
    let orders = async |serving: &Serving, result: &str| {
        let metric = format!("tollgate_acme_orders_total{{result=\"{result}\"}}");
        serving.metric(&metric).await
    };
    assert_eq!(orders(&first, "issued").await, 1);
    for serving in [&first, &other] {
        assert_eq!(orders(serving, "failed").await, 0, "at the first attempt");
    }
    stop(first).await;
    stop(other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_answers_the_http_challenge_of_another() {
    challenge_at_another_node("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_answers_the_tls_challenge_of_another() {
    challenge_at_another_node("challenge = 'tls-alpn-01'").await;
}

/// The authority reaches a gateway started before the order of another gateway. The earlier gateway has a certificate.
async fn challenge_at_an_earlier_node(more: &str) {
    let database = Postgres::shared().database();
    let authority = Authority::start(90 * DAY, false).await;
    let installation = Installation::on_postgres(&database, "").await;
    let serve = async |node: &str, name: &str| {
        order(&installation, &authority, &[name], more);
        let config = settings_of(&installation.config, node);
        let command = installation.command_with(&config, &["serve"]);
        installation.serve_as(command).await
    };
    let earlier = serve("b", "www.tollgate.test").await;
    forward(&authority, &earlier);
    let (earlier, _) = line(earlier, OBTAINED, 1).await;
    let later = serve("a", NAME).await;
    let (later, _) = line(later, OBTAINED, 1).await;
    let root = authority.root().await;
    let (later, _) = settled(later, &installation, &root).await;
    for serving in [&earlier, &later] {
        let failed = "tollgate_acme_orders_total{result=\"failed\"}";
        assert_eq!(serving.metric(failed).await, 0, "at the first attempt");
    }
    stop(earlier).await;
    stop(later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_answers_the_http_challenge_of_one_that_started_later() {
    challenge_at_an_earlier_node("").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_answers_the_tls_challenge_of_one_that_started_later() {
    challenge_at_an_earlier_node("challenge = 'tls-alpn-01'").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_while_a_connection_is_open() {
    let authority = Authority::start(12, false).await;
    let installation = Installation::new("").await;
    order(&installation, &authority, &[NAME, "localhost"], "");
    let serving = installation.serve().await;
    forward(&authority, &serving);
    let root = authority.root().await;
    let (serving, _) = line(serving, OBTAINED, 1).await;
    let (serving, ()) = settled(serving, &installation, &root).await;
    let expiry = "tollgate_certificate_expiry_timestamp_seconds";
    let first = of_certificate(&serving, expiry).await;
    let (_, tls) = addresses(&serving);
    let mut open = RawClient::connect_tls(tls, &root).await.expect("TLS");
    let request = format!(
        "GET /v1/models HTTP/1.1\r\nhost: {NAME}\r\nauthorization: Bearer {}\r\n\r\n",
        installation.key
    );
    open.send(&request).await;
    assert_eq!(open.read_answer().await.0.status(), 200);
    let (serving, _) = line(serving, OBTAINED, 2).await;
    let renewed = async { while of_certificate(&serving, expiry).await == first {} };
    within("the renewal", renewed).await;
    assert!(is_served(&client(&serving, &installation, NAME, &root)).await);
    open.send(&request).await;
    assert_eq!(
        open.read_answer().await.0.status(),
        200,
        "the same connection"
    );
    assert!(authority.calls(AcmeCall::NewOrder) >= 2);
    assert_eq!(authority.calls(AcmeCall::NewAccount), 1);
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_that_the_authority_suggests_for_a_renewal_counts() {
    let authority = Authority::start(90 * DAY, false).await;
    let installation = Installation::new("").await;
    order(&installation, &authority, &[NAME], "");
    let serving = installation.serve().await;
    forward(&authority, &serving);
    let (serving, _) = line(serving, OBTAINED, 1).await;
    stop(serving).await;
    authority.suggest_renewal(1_000_000_000, 1_000_003_600);
    let serving = installation.serve().await;
    forward(&authority, &serving);
    let (serving, _) = line(serving, OBTAINED, 1).await;
    assert_eq!(authority.replaced().len(), 1, "it names the certificate");
    assert_eq!(authority.calls(AcmeCall::NewOrder), 2);
    // The new certificate has an equal window: the information is read later, and no loop of orders begins.
    stop(serving).await;
    assert_eq!(authority.calls(AcmeCall::NewOrder), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_continues_with_the_certificate() {
    let authority = Authority::start(90 * DAY, false).await;
    let installation = Installation::new("").await;
    order(&installation, &authority, &[NAME], "");
    let serving = installation.serve().await;
    forward(&authority, &serving);
    let root = authority.root().await;
    let (serving, _) = line(serving, OBTAINED, 1).await;
    let (mut serving, ()) = settled(serving, &installation, &root).await;
    let successor = Successor::of(&installation).await;
    assert_eq!(first_ended(&mut serving).await, Some(0));
    let client = client(&serving, &installation, NAME, &root);
    assert!(is_served(&client).await, "the new process has it");
    successor.stop().await;
    assert_eq!(authority.calls(AcmeCall::NewOrder), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_not_repeated_before_its_time_and_a_restart_knows_it() {
    let authority = Authority::start(90 * DAY, false).await;
    let limited = Misbehaviour::Problem(429, "rateLimited", Some(3600));
    authority.misbehave(AcmeCall::NewOrder, limited, 1);
    let installation = Installation::new("").await;
    order(&installation, &authority, &[NAME], "");
    let begun = Clock::system().now();
    let serving = installation.serve().await;
    let (serving, failed) = line(serving, FAILED, 1).await;
    assert!(failed.contains("rateLimited: as the test"), "{failed}");
    assert!(failed.contains("failures=1"), "{failed}");
    let next = failed.split("next_attempt_at=").nth(1).expect("a time");
    let next = next.split(' ').next().expect("a word");
    let next = Timestamp::from_rfc3339(next).expect("a time");
    let wait = next.duration_since(begun);
    // The line may have whole seconds.
    assert!(wait.as_secs() >= 3599, "{wait:?}");
    let shown = async { while of_certificate(&serving, "tollgate_acme_failures").await != 1 {} };
    within("the failure", shown).await;
    let shown = warnings(&serving).await;
    assert!(shown[0].contains("rateLimited"), "{shown:?}");
    let counted = serving.metric("tollgate_acme_orders_total{result=\"failed\"}");
    assert_eq!(counted.await, 1);
    stop(serving).await;
    let serving = installation.serve().await;
    let known = async { while !warnings(&serving).await[0].contains("rateLimited") {} };
    within("the stored refusal", known).await;
    assert_eq!(
        authority.calls(AcmeCall::NewOrder),
        1,
        "an hour has to pass"
    );
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_of_an_authority_is_named_and_the_next_attempt_succeeds() {
    let authority = Authority::start(90 * DAY, false).await;
    authority.misbehave(AcmeCall::Directory, Misbehaviour::Page(503), 1);
    authority.misbehave(AcmeCall::NewAccount, Misbehaviour::Cut, 1);
    let bad_nonce = Misbehaviour::Problem(400, "badNonce", None);
    // The request is repeated at once, without a failure of the order.
    authority.misbehave(AcmeCall::NewOrder, bad_nonce, 1);
    let malformed = Misbehaviour::Problem(403, "badCSR", None);
    authority.misbehave(AcmeCall::Finalize, malformed, 1);
    let installation = Installation::new("").await;
    order(&installation, &authority, &[NAME], "");
    let serving = installation.serve().await;
    forward(&authority, &serving);
    let (serving, page) = line(serving, FAILED, 1).await;
    assert!(page.contains("answered with status 503"), "{page}");
    let (serving, _) = line(serving, FAILED, 2).await;
    let (serving, refused) = line(serving, FAILED, 3).await;
    assert!(refused.contains("badCSR"), "{refused}");
    assert!(refused.contains("failures=3"), "{refused}");
    let (serving, _) = line(serving, OBTAINED, 1).await;
    let root = authority.root().await;
    let (serving, ()) = settled(serving, &installation, &root).await;
    let cleared = async { while of_certificate(&serving, "tollgate_acme_failures").await != 0 {} };
    within("the end of the failures", cleared).await;
    assert_eq!(warnings(&serving).await, [""; 0]);
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_leads_elsewhere_is_named() {
    for challenge in ["http-01", "tls-alpn-01"] {
        let authority = Authority::start(90 * DAY, false).await;
        let installation = Installation::new("").await;
        let more = format!("challenge = '{challenge}'");
        order(&installation, &authority, &[NAME], &more);
        let serving = installation.serve().await;
        let elsewhere = refusing_address().expect("a free port");
        authority.forward_to(elsewhere, elsewhere);
        let (serving, failed) = line(serving, FAILED, 1).await;
        let text = format!("the authority could not validate `{NAME}`");
        assert!(failed.contains(&text), "{failed}");
        stop(serving).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_whose_challenge_is_refused_at_once_is_named() {
    let authority = Authority::start(90 * DAY, false).await;
    let refused = Misbehaviour::Problem(403, "unauthorized", None);
    authority.misbehave(AcmeCall::Challenge, refused, 1);
    let installation = Installation::new("").await;
    order(&installation, &authority, &[NAME], "");
    let serving = installation.serve().await;
    let (serving, failed) = line(serving, FAILED, 1).await;
    let text = format!("the authority could not validate `{NAME}`: unauthorized");
    assert!(failed.contains(&text), "{failed}");
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_that_does_not_answer_keeps_nothing_from_serving_or_stopping() {
    let authority = Authority::start(90 * DAY, false).await;
    authority.misbehave(AcmeCall::Directory, Misbehaviour::Never, 1);
    let installation = Installation::new("").await;
    order(&installation, &authority, &[NAME], "");
    let serving = installation.serve().await;
    authority.called(AcmeCall::Directory, 1).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200);
    stop(serving).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_is_bound_to_an_external_one() {
    let authority = Authority::start(90 * DAY, true).await;
    let installation = Installation::new("").await;
    let key = SECRETS.used("a MAC key", EXTERNAL_ACCOUNT.1);
    let file = installation.folder.path().join("mac.key");
    order(&installation, &authority, &[NAME], "");
    let serving = installation.serve().await;
    forward(&authority, &serving);
    let (serving, failed) = line(serving, FAILED, 1).await;
    assert!(failed.contains("externalAccountRequired"), "{failed}");
    stop(serving).await;
    std::fs::write(&file, key).expect("the folder takes files");
    let more = format!(
        "key_id = '{}'\nmac_key_file = 'mac.key'",
        EXTERNAL_ACCOUNT.0
    );
    order(&installation, &authority, &[NAME], &more);
    let serving = installation.serve().await;
    forward(&authority, &serving);
    let (serving, _) = line(serving, OBTAINED, 1).await;
    let output = stop(serving).await;
    SECRETS.assert_absent("the output", &output);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_adds_a_name_and_touches_no_connection() {
    let authority = Authority::start(90 * DAY, false).await;
    let installation = Installation::new("").await;
    order(&installation, &authority, &["localhost"], "");
    let serving = installation.serve().await;
    forward(&authority, &serving);
    let root = authority.root().await;
    let (serving, _) = line(serving, OBTAINED, 1).await;
    let (_, tls) = addresses(&serving);
    let localhost = client(&serving, &installation, "localhost", &root);
    let used = async { while !is_served(&localhost).await {} };
    within("the certificate", used).await;
    let mut open = RawClient::connect_tls(tls, &root).await.expect("TLS");
    let request = format!(
        "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\r\n",
        installation.key
    );
    open.send(&request).await;
    assert_eq!(open.read_answer().await.0.status(), 200);
    // Validations wait from here on.
    let elsewhere = refusing_address().expect("a free port");
    authority.forward_to(elsewhere, elsewhere);
    order(&installation, &authority, &["localhost", NAME], "");
    installation.ask(&["reload"]).await;
    let (serving, _) = line(serving, FAILED, 1).await;
    assert!(
        is_served(&localhost).await,
        "the earlier certificate is used"
    );
    forward(&authority, &serving);
    let (serving, _) = line(serving, OBTAINED, 2).await;
    let (serving, ()) = settled(serving, &installation, &root).await;
    assert!(is_served(&localhost).await, "the new one has both names");
    open.send(&request).await;
    assert_eq!(
        open.read_answer().await.0.status(),
        200,
        "the same connection"
    );
    order(&installation, &authority, &[NAME], "");
    installation.ask(&["reload"]).await;
    let (serving, _) = line(serving, OBTAINED, 3).await;
    // A new client: a client with a resumed session does not verify the name again.
    let is_named =
        || async { is_served(&client(&serving, &installation, "localhost", &root)).await };
    let gone = async { while is_named().await {} };
    within("the certificate without the name", gone).await;
    stop(serving).await;
}
