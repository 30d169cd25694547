//! Flows of several requests, every request at another node of a cluster. No charge, credit or message is made twice.

use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Value, json};
use tollgate_money::{AccountId, MICROS_PER_CREDIT};
use tollgate_testing::mailbox::{self, Mailbox};
use tollgate_testing::paypal::PayPal;
use tollgate_testing::{
    Answer, Client, Facilitator, McpServer, Postgres, Script, TempDir, Wallet, within,
};

use super::balancer::Balancer;
use super::nodes::Cluster;
use crate::credits::{back_from_paypal, field, order, order_of};
use crate::oauth::support::{BASE, CHALLENGE, REDIRECT, VERIFIER, encoded, parameter};
use crate::pay::{mpp, x402};
use crate::rig::{Browser, CHAT, PRICE_OF_A_CHAT, SECRETS, chat};
use crate::sign_in::{ask, type_code};
use crate::ucp::{AGENT, PROTOCOL, Platform, payment, plan};

/// The price of the plan for a month.
pub(super) const MONTH_CENTS: i64 = 19_900;

/// A cluster with every product, behind a balancer.
pub(super) struct Flows {
    pub(super) cluster: Cluster,
    pub(super) balancer: Balancer,
    pub(super) mailbox: Mailbox,
    pub(super) paypal: PayPal,
    pub(super) facilitator: Facilitator,
    mcp: McpServer,
    /// Has the certificate authority of PayPal.
    _folder: TempDir,
}

impl Flows {
    pub(super) async fn start() -> Flows {
        let mailbox = Mailbox::start(mailbox::Settings::default()).expect("free ports");
        let paypal = PayPal::start().await;
        let facilitator = Facilitator::start().await;
        let mcp = McpServer::start().await;
        let folder = tollgate_testing::tempdir().expect("a folder");
        let ca = folder.path().join("paypal-ca.pem");
        std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
        let classes: String = ["anonymous", "register", "authorize", "oauth"]
            .map(|name| format!("[limits.classes.{name}]\nquota = 1000000\nwindow_secs = 1\n"))
            .concat();
        let settings = format!(
            "{}\n{}\n{classes}\n[signin.mail]\nsmtp_url = 'smtp://{}'\nfrom = 'Tolls <codes@example.net>'\n\
             [mcp.general]\nupstream = '{}'\n\
             # A credential of another node is refused until the feed is read.\n\
             [limits.failed_credentials]\nquota = 1000000\nwindow_secs = 1\n",
            mpp::selling(&paypal, &ca),
            x402::settings(&facilitator, true),
            mailbox.smtp(),
            mcp.url(),
        );
        let service = format!("[service]\nbase_url = '{BASE}'");
        let database = Postgres::shared().database();
        let cluster = Cluster::with(&database, &service, &settings, &mpp::secrets()).await;
        let balancer = Balancer::start(&cluster.nodes).await;
        paypal.send_notices_to(&format!("{}/webhooks/paypal", balancer.url));
        for node in &cluster.nodes {
            let sells = async { while node.metric("tollgate_x402_up").await != 1 {} };
            within("the facilitator's first word", sells).await;
        }
        Flows {
            cluster,
            balancer,
            mailbox,
            paypal,
            facilitator,
            mcp,
            _folder: folder,
        }
    }

    /// An account with `address`, and a key known to every node.
    pub(super) async fn account(&self, address: &str) -> (AccountId, String) {
        let made = ["account", "create", "--class", "free", "--email", address];
        let made = self.cluster.ask("a", &made).await;
        let account = made["id"].as_str().expect("an id");
        let key = ["key", "create", "--account", account, "--name", "test"];
        let key = self.cluster.ask("b", &key).await;
        let key = key["secret"].as_str().expect("a secret").to_owned();
        SECRETS.used("an API key", &key);
        self.becomes(&key, 402, "a key").await;
        (account.parse().expect("an id"), key)
    }

    /// A client with requests to every node in turn.
    pub(super) fn client(&self) -> Client {
        Client::new(&self.balancer.url)
    }

    /// A browser after a sign-in with the code sent to `address`.
    pub(super) async fn signed_in(&self, address: &str) -> Browser {
        signed_in(&self.balancer.url, &self.mailbox, address).await
    }

    /// Waits until a chat with `bearer` has `status` at every node.
    async fn becomes(&self, bearer: &str, status: u16, what: &str) {
        self.becomes_at(CHAT, bearer, |found| found == status, what)
            .await;
    }

    /// Waits for a status at every node, with a request to `path`.
    async fn becomes_at(&self, path: &str, bearer: &str, is_so: impl Fn(u16) -> bool, what: &str) {
        for node in &self.cluster.nodes {
            let client = Client::new(&node.url).with_key(bearer);
            let polled = async {
                while !is_so(client.post(path, &chat(false)).await.status) {
                    tokio::task::yield_now().await;
                }
            };
            within(what, polled).await;
        }
    }

    pub(super) fn payments(&self, account: AccountId) -> usize {
        let store = self.cluster.installation.store();
        store.payments_of(account, 10).expect("readable").len()
    }

    /// Ends the test: every message was sent once, and the books balance.
    pub(super) fn close(self, addresses: &[&str]) {
        for address in addresses {
            let messages = self.mailbox.messages(address);
            assert_eq!(messages.len(), 1, "messages to {address}");
            assert_eq!(messages[0].copies, 1, "messages to {address}");
        }
        self.cluster.audit();
    }
}

/// A browser after a sign-in at `url` with the code sent to `address`.
pub(super) async fn signed_in(url: &str, mailbox: &Mailbox, address: &str) -> Browser {
    let mut browser = Browser::at(url);
    let asked = ask(&mut browser, "/sign-in", address).await;
    assert_eq!(asked.status, 303, "{}", asked.text());
    let message = mailbox.message(address, 1).await;
    let typed = type_code(&mut browser, message.code()).await;
    assert_eq!(typed.status, 303, "{}", typed.text());
    browser
}

pub(super) async fn form(client: &Client, path: &str, pairs: &[(&str, &str)]) -> Answer {
    let mut request = client.request("POST", path, encoded(pairs).into());
    let kind = "application/x-www-form-urlencoded";
    let kind = kind.parse().expect("a value");
    request.headers_mut().insert("content-type", kind);
    client.send(request).await
}

async fn send(
    client: &Client,
    path: &str,
    body: &Value,
    fields: &[(&'static str, &str)],
) -> Answer {
    let mut request = client.request("POST", path, Bytes::from(body.to_string()));
    let headers: &mut HeaderMap = request.headers_mut();
    for (name, value) in fields {
        headers.insert(*name, value.parse().expect("a value"));
    }
    client.send(request).await
}

#[tokio::test]
async fn a_persons_pages_and_apps_are_served_by_another_node_at_each_request() {
    let flows = Flows::start().await;
    let address = "ada@example.com";
    let (account, _) = flows.account(address).await;
    let account = account.to_string();
    flows.cluster.grant("c", &account, "5").await;
    let mut browser = flows.signed_in(address).await;

    // A key: created, changed, revoked.
    let page = browser.get("/keys/create").await;
    let id = field(&page, "id");
    let fields = [
        ("id", &*id),
        ("name", "staging"),
        ("may", "chat"),
        ("may", "models"),
    ];
    let made = browser.submit("/keys/create", &fields).await;
    assert_eq!(made.status, 200, "{}", made.text());
    let again = browser.submit("/keys/create", &fields).await;
    assert!(
        again.text().contains("This key was already created."),
        "{}",
        again.text()
    );
    let (_, secret) = made.text().split_once("sk-svc-").expect("a key");
    let key = format!(
        "sk-svc-{}",
        secret.split(['"', '<']).next().unwrap_or_default()
    );
    SECRETS.used("an API key", &key);
    flows.becomes(&key, 200, "a created key").await;
    let list = browser.get("/keys").await;
    let path = edit_of(&list, "staging");
    let page = browser.get(&path).await;
    let version = field(&page, "version");
    let changed = [
        ("version", &*version),
        ("name", "renamed"),
        ("models", "dear"),
        ("cap", "1"),
        ("cap_period", "month"),
    ];
    let saved = browser.submit(&path, &changed).await;
    assert_eq!(saved.status, 303, "{}", saved.text());
    let list = browser.follow(saved).await;
    assert!(list.text().contains("renamed"), "{}", list.text());
    flows.becomes(&key, 403, "a changed key").await;
    let path = path.replace("/edit", "/revoke");
    browser.get(&path).await;
    let revoked = browser.submit(&path, &[]).await;
    assert_eq!(revoked.status, 303, "{}", revoked.text());
    flows.becomes(&key, 401, "a revoked key").await;

    // An app: registered and allowed; the app's token is used, refreshed and revoked.
    let client = flows.client();
    let app = App::allowed(&client, &mut browser).await;
    let exchange = app.exchange();
    let token = form(&client, "/oauth/token", &exchange).await;
    assert_eq!(token.status, 200, "{}", token.text());
    let [access, refresh] = tokens(&token);
    let is_known = |status| status != 401;
    flows
        .becomes_at("/mcp", &access, is_known, "an access token")
        .await;
    session_of_mcp(&flows, &access).await;
    let refreshed = form(&client, "/oauth/token", &app.refresh(&refresh)).await;
    assert_eq!(refreshed.status, 200, "{}", refreshed.text());
    let [access, refresh] = tokens(&refreshed);
    flows
        .becomes_at("/mcp", &access, is_known, "a refreshed token")
        .await;
    let revoked = form(&client, "/oauth/revoke", &[("token", &*refresh)]).await;
    assert_eq!(revoked.status, 200, "{}", revoked.text());
    let is_unknown = |status| status == 401;
    flows
        .becomes_at("/mcp", &access, is_unknown, "a revoked token")
        .await;

    // The sandbox's token ends with the session, at any node.
    browser.get("/sandbox").await;
    let given = browser.submit("/sandbox/token", &[]).await;
    assert_eq!(given.status, 200, "{}", given.text());
    let token = given.json()["token"].as_str().expect("a token").to_owned();
    SECRETS.used("a token of the sandbox", &token);
    flows.becomes(&token, 200, "a token of the sandbox").await;
    let out = browser.submit("/sign-out", &[]).await;
    assert_eq!(out.status, 303, "{}", out.text());
    for _ in &flows.cluster.nodes {
        assert_eq!(browser.get("/keys").await.status, 303, "signed out");
    }
    flows.becomes(&token, 401, "the end of a session").await;
    flows.close(&[address]);
}

/// A registered app with an authorization code.
pub(super) struct App {
    id: String,
    code: String,
}

impl App {
    /// Registers an app, and allows the app in `browser`.
    pub(super) async fn allowed(client: &Client, browser: &mut Browser) -> App {
        let metadata = json!({
            "client_name": "Notebook Copilot",
            "redirect_uris": [REDIRECT],
            "grant_types": ["authorization_code", "refresh_token"],
        });
        let registered = client.post("/oauth/register", &metadata).await;
        assert_eq!(registered.status, 201, "{}", registered.text());
        let id = registered.json()["client_id"]
            .as_str()
            .expect("an id")
            .to_owned();
        let resource = format!("{BASE}/mcp");
        let asked = [
            ("client_id", &*id),
            ("redirect_uri", REDIRECT),
            ("response_type", "code"),
            ("code_challenge", CHALLENGE),
            ("code_challenge_method", "S256"),
            ("state", "s"),
            ("resource", &resource),
        ];
        let consent = browser
            .get(&format!("/oauth/authorize?{}", encoded(&asked)))
            .await;
        let path = consent.header("location").expect("a way on").to_owned();
        let page = browser.get(&path).await;
        assert_eq!(page.status, 200, "{}", page.text());
        let allowed = browser.submit(&path, &[("decision", "allow")]).await;
        let code = parameter(allowed.header("location").expect("a way on"), "code");
        let code = code.expect("a code");
        SECRETS.used("an authorization code", &code);
        App { id, code }
    }

    /// The request for tokens in exchange for the app's code.
    pub(super) fn exchange(&self) -> [(&'static str, &str); 5] {
        [
            ("grant_type", "authorization_code"),
            ("code", &self.code),
            ("redirect_uri", REDIRECT),
            ("client_id", &self.id),
            ("code_verifier", VERIFIER),
        ]
    }

    /// The request for new tokens in exchange for a refresh token.
    pub(super) fn refresh<'t>(&'t self, token: &'t str) -> [(&'static str, &'t str); 3] {
        [
            ("grant_type", "refresh_token"),
            ("refresh_token", token),
            ("client_id", &self.id),
        ]
    }
}

/// The access token and the refresh token of an answer.
pub(super) fn tokens(answer: &Answer) -> [String; 2] {
    ["access_token", "refresh_token"].map(|name| {
        let token = answer.json()[name].as_str().expect("a token").to_owned();
        SECRETS.used(name, &token).to_owned()
    })
}

/// The path of the page for changes of the key `name`.
pub(super) fn edit_of(list: &Answer, name: &str) -> String {
    let (_, row) = list
        .text()
        .split_once(&format!(">{name}<"))
        .expect("the key's row");
    let at = row.find("/keys/").expect("a link");
    let path = row[at..].split('"').next().unwrap_or_default();
    assert!(path.ends_with("/edit"), "{path}");
    path.to_owned()
}

/// A session of an MCP server, begun at a node and continued at the remaining nodes.
async fn session_of_mcp(flows: &Flows, token: &str) {
    let client = flows.client().with_key(token);
    let accept = ("accept", "application/json, text/event-stream");
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let begun = send(&client, "/mcp", &initialize, &[accept]).await;
    assert_eq!(begun.status, 200, "{}", begun.text());
    let id = begun
        .header("mcp-session-id")
        .expect("a session")
        .to_owned();
    let call = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}});
    for _ in &flows.cluster.nodes {
        let answer = send(&client, "/mcp", &call, &[accept, ("mcp-session-id", &id)]).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let calls = flows.mcp.calls();
    let in_session = calls.iter().filter(|call| {
        call.headers
            .get("mcp-session-id")
            .is_some_and(|id| id == "session-1")
    });
    assert_eq!(in_session.count(), flows.cluster.nodes.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purchase_whose_requests_go_to_several_nodes_is_paid_once() {
    let flows = Flows::start().await;
    top_up(&flows).await;
    transfer(&flows).await;
    monthly_payment(&flows).await;
    checkout(&flows).await;
    flows.close(&["mara@example.com", "ursula@example.com"]);
}

/// A node with freed credit spent the credit until the leader took the credit back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credits_held_at_a_refund_are_spent_at_no_node() {
    const STREAMS_EACH: usize = 3;
    let flows = Flows::start().await;
    let address = "mara@example.com";
    let (account, key) = flows.account(address).await;
    let account = account.to_string();
    let mut browser = flows.signed_in(address).await;
    let (page, _) = order(&mut browser, "20.00").await;
    let order = order_of(&page);
    assert!(flows.paypal.approve(&order).await);
    let credited =
        async { while flows.cluster.balance(&account).await != (2_000 * MICROS_PER_CREDIT, 0) {} };
    within("the credit", credited).await;
    let provider = &flows.cluster.installation.provider;
    let gate = "streams";
    provider.script(Script::hold(2, gate));
    let mut streams = Vec::new();
    for node in &flows.cluster.nodes {
        let client = Client::new(&node.url).with_key(&key);
        for _ in 0..STREAMS_EACH {
            let stream = client.stream(CHAT, &chat(true)).await;
            assert_eq!(stream.status, 200);
            streams.push((Client::new(&node.url).with_key(&key), stream));
        }
    }
    assert!(flows.paypal.refund(&order, 2_000).await);
    let returned = async { while flows.cluster.sql("SELECT owed > 0 FROM top_ups") != "t" {} };
    within("the refund", returned).await;
    provider.gate(gate).open();
    for (client, mut stream) in streams {
        let (events, _) = stream.rest().await;
        assert!(!events.is_empty());
        // The stream has freed more credit than the charge. A node may wait for the answer of another node.
        for _ in 0..2 {
            let answer = client.post(CHAT, &chat(false)).await;
            assert!([402, 503].contains(&answer.status), "{}", answer.text());
        }
    }
    let spent = (STREAMS_EACH * flows.cluster.nodes.len()) as i64 * PRICE_OF_A_CHAT;
    let collected = async {
        let owed = spent.to_string();
        while flows.cluster.sql("SELECT owed FROM top_ups") != owed {}
    };
    within("all that is not spent", collected).await;
    for node in &flows.cluster.nodes {
        let client = Client::new(&node.url).with_key(&key);
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 402, "{}", answer.text());
    }
    flows.close(&[address]);
}

/// Credits bought with PayPal: ordered at a node. The buyer returns to every node at once, while PayPal notifies another node.
async fn top_up(flows: &Flows) {
    let address = "mara@example.com";
    let (account, key) = flows.account(address).await;
    let mut browser = flows.signed_in(address).await;
    let (page, path) = order(&mut browser, "20.00").await;
    let (order, back) = (order_of(&page), back_from_paypal(&path));
    let returns = (0..6).map(|_| {
        let (mut browser, back) = (browser.clone(), back.clone());
        async move { browser.get(&back).await }
    });
    let (approved, pages) = futures_util::join!(
        flows.paypal.approve(&order),
        futures_util::future::join_all(returns)
    );
    assert!(approved);
    for page in pages {
        assert!(
            [200, 303].contains(&page.status),
            "{}: {}",
            page.status,
            page.text()
        );
    }
    let account = account.to_string();
    let credited =
        async { while flows.cluster.balance(&account).await != (2_000 * MICROS_PER_CREDIT, 0) {} };
    within("the credit", credited).await;
    assert_eq!(flows.paypal.taken_cents(), 2_000, "taken once");
    // Two nodes have a part of the credit, and any node takes the whole credit back.
    for node in &flows.cluster.nodes[..2] {
        let client = Client::new(&node.url).with_key(&key);
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    assert!(flows.paypal.refund(&order, 2_000).await);
    let refunded = async { while flows.cluster.sql("SELECT returned FROM top_ups") == "0" {} };
    within("the refund", refunded).await;
    let owed = flows.cluster.sql("SELECT owed FROM top_ups");
    assert_eq!(
        owed,
        (2 * PRICE_OF_A_CHAT).to_string(),
        "all but what was spent"
    );
}

/// The plan by a signed transfer (x402): offered at a node, presented to every node at once, and presented again.
async fn transfer(flows: &Flows) {
    let (account, key) = flows.account("satoshi@example.com").await;
    let client = flows.client().with_key(&key);
    let offer = client.post(x402::BUY, &json!({})).await;
    assert_eq!(offer.status, 402, "{}", offer.text());
    let offer = offer.header("payment-required").expect("an offer");
    let payment = Wallet::new(1).pay(offer, [1; 32], x402::now());
    let body = json!({});
    let presented = (0..6).map(|_| x402::submit(&client, &payment, &body));
    let mut receipts = 0;
    for answer in futures_util::future::join_all(presented).await {
        // Another attempt is under way at another node.
        assert!(
            [200, 409, 503].contains(&answer.status),
            "{}",
            answer.text()
        );
        receipts += usize::from(answer.status == 200);
    }
    assert!(receipts > 0, "none was answered with the plan");
    for _ in 0..2 {
        let answer = x402::submit(&client, &payment, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(answer.header("payment-response").is_some());
    }
    assert_eq!(flows.facilitator.transfers().len(), 1);
    assert_eq!(flows.payments(account), 1);
}

/// The plan by monthly payment (MPP): challenge, approval, credential, notification and repeats at different nodes.
async fn monthly_payment(flows: &Flows) {
    const BODY: &str = r#"{"idempotency_key":"one purchase"}"#;
    let (account, key) = flows.account("lovelace@example.com").await;
    let client = flows.client();
    // Six challenges at once are a single subscription.
    let asked = (0..6).map(|_| mpp::ask(&client, &key));
    let mut offers = Vec::new();
    for answer in futures_util::future::join_all(asked).await {
        assert_eq!(answer.status, 402, "{}", answer.text());
        offers.push(mpp::Offer::of(&answer));
    }
    let before = flows.paypal.subscriptions().len();
    assert!(
        offers
            .iter()
            .all(|offer| offer.subscription == offers[0].subscription)
    );
    let credential = offers[0].credential();
    let waits = mpp::submit(&client, &key, &credential, BODY).await;
    assert_eq!(waits.status, 402, "{}", waits.text());
    let submitted = (0..6).map(|_| mpp::submit(&client, &key, &credential, BODY));
    let (agreed, answers) = futures_util::join!(
        flows.paypal.agree(&offers[0].subscription),
        futures_util::future::join_all(submitted),
    );
    assert!(agreed);
    for answer in answers {
        // Not approved yet, or another attempt is under way.
        assert!(
            [200, 402, 409].contains(&answer.status),
            "{}: {}",
            answer.status,
            answer.text()
        );
    }
    let mut receipts = Vec::new();
    for _ in 0..3 {
        let bought = async {
            loop {
                let answer = mpp::submit(&client, &key, &credential, BODY).await;
                if answer.status == 200 {
                    return answer;
                }
            }
        };
        let bought = within("the plan", bought).await;
        receipts.push(
            bought
                .header("payment-receipt")
                .expect("a receipt")
                .to_owned(),
        );
    }
    assert!(
        receipts.iter().all(|receipt| *receipt == receipts[0]),
        "one receipt"
    );
    assert_eq!(flows.paypal.subscriptions().len(), before, "made once");
    assert_eq!(flows.paypal.charged_cents(), MONTH_CENTS, "charged once");
    assert_eq!(flows.payments(account), 1);
}

/// The plan bought by a platform (UCP): begun, agreed to and completed at different nodes, with every request repeated at every node at
/// once.
async fn checkout(flows: &Flows) {
    let address = "ursula@example.com";
    let (account, key) = flows.account(address).await;
    let platform = Platform::of(flows.client().with_key(&key));
    let body = plan();
    let fields = [AGENT, ("idempotency-key", "begin")];
    let begin = || platform.send("POST", PROTOCOL, Some(&body), &fields);
    let begun = begin().await;
    assert_eq!(begun.status, 201, "{}", begun.text());
    let session = begun.json();
    for _ in &flows.cluster.nodes {
        assert_eq!(begin().await.json(), session, "the same checkout");
    }
    let id = session["id"].as_str().expect("an id");
    let one = format!("{PROTOCOL}/{id}");
    let updated = platform.send("PUT", &one, Some(&body), &[AGENT]).await;
    assert_eq!(updated.status, 200, "{}", updated.text());
    let page = format!("/commerce/continue/{id}");
    let mut browser = flows.signed_in(address).await;
    browser.get(&page).await;
    let sent = browser.submit(&page, &[]).await;
    assert_eq!(sent.status, 303, "{}", sent.text());
    let before = flows.paypal.charged_cents();
    let made = flows.paypal.subscriptions().pop().expect("a subscription");
    let fields = [AGENT, ("idempotency-key", "complete")];
    let (path, instruments) = (format!("{one}/complete"), payment());
    let complete = || platform.send("POST", &path, Some(&instruments), &fields);
    let completed = (0..6).map(|_| complete());
    let (agreed, answers) = futures_util::join!(
        flows.paypal.agree(&made.id),
        futures_util::future::join_all(completed),
    );
    assert!(agreed);
    for answer in answers {
        assert!(
            [200, 409].contains(&answer.status),
            "{}: {}",
            answer.status,
            answer.text()
        );
    }
    let done = async {
        loop {
            let answer = platform.get(&one).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            if answer.json()["status"] == "completed" {
                return;
            }
        }
    };
    within("the end of the checkout", done).await;
    assert_eq!(
        flows.paypal.charged_cents(),
        before + MONTH_CENTS,
        "charged once"
    );
    assert_eq!(flows.payments(account), 1);
}

#[tokio::test]
async fn a_repeat_is_refused_while_another_node_has_the_first_request_and_gets_its_answer_afterwards()
 {
    let cluster = Cluster::start().await;
    for stream in [false, true] {
        let key = format!("key-{stream}");
        let fields = [("idempotency-key", &*key)];
        let provider = &cluster.installation.provider;
        provider.script(Script::hold_head("head").once());
        let gate = provider.gate("head");
        let arrived = gate.arrived();
        let (client, body) = (cluster.client(0), chat(stream));
        let first = tokio::spawn({
            let (body, key) = (body.clone(), key.clone());
            async move { send(&client, CHAT, &body, &[("idempotency-key", &key)]).await }
        });
        gate.reached_by(arrived + 1).await;
        for node in 0..cluster.nodes.len() {
            let refused = send(&cluster.client(node), CHAT, &body, &fields).await;
            assert_eq!(refused.status, 409, "node {node}: {}", refused.text());
            assert_eq!(refused.json()["error"]["code"], "in_progress");
        }
        gate.release(1);
        let first = first.await.expect("no panic");
        assert_eq!(first.status, 200, "{}", first.text());
        for node in 0..cluster.nodes.len() {
            let again = send(&cluster.client(node), CHAT, &body, &fields).await;
            assert_eq!(again.text(), first.text(), "node {node}");
        }
    }
    let account = cluster.installation.account.clone();
    let left = 1_000_000_000 - 2 * PRICE_OF_A_CHAT;
    assert_eq!(
        cluster.balance(&account).await,
        (left, 0),
        "charged once each"
    );
    cluster.audit();
}
