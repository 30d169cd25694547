//! The test rig: a gateway, a provider and an account, and an audit of the ledger at the end.

mod after;
mod browser;
mod reload;
mod setup;
mod tokens;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tollgate::{Books, Gateway};
use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{Resources, Scopes};
use tollgate_identity::{CreatedKey, Form, NewAccount, NewKey, create_account, create_key};
use tollgate_ledger::Credit;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{Failure, RootSecret, sqlite};
use tollgate_testing::{Client, Provider, RawClient, Secrets, TempDir, within};

pub(crate) use after::{audited, audited_store};
pub(crate) use browser::{Browser, add_login};
pub(crate) use setup::{PROVIDER_KEY, Setup};
pub(crate) use tokens::Token;

/// Every secret of the suite.
pub(crate) static SECRETS: Secrets = Secrets::new();

/// The price of a request to [`chat`] with the stand-in's usual answer of 16 words: 1 input token, 16 output tokens.
pub(crate) const PRICE_OF_A_CHAT: i64 = 150 + 16 * 600;

/// Micro-credits for an input token, and for an output token, of the model `small`.
pub(crate) const IN: i64 = 150;
pub(crate) const OUT: i64 = 600;

/// The initial credit of a rig's account, in micro-credits.
pub(crate) const CREDITS: i64 = 100_000_000;

/// The path of chats.
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// The path of text completions.
pub(crate) const TEXT: &str = "/v1/completions";

/// A chat of a single word: a single token for the stand-in.
pub(crate) fn chat(stream: bool) -> Value {
    json!({"model": "small", "stream": stream, "messages": [{"role": "user", "content": "Halt!"}]})
}

/// A gateway in the process of the test, with a provider.
///
/// A test ends with [`Rig::finish`]: the gateway is stopped, and the ledger audited. A test without [`Rig::finish`] fails.
pub(crate) struct Rig {
    pub(crate) provider: Provider,
    /// The address of plain HTTP.
    pub(crate) plain: SocketAddr,
    /// The address of TLS.
    pub(crate) tls: SocketAddr,
    /// The CA of the TLS listener.
    pub(crate) ca_pem: String,
    /// The admin address.
    pub(crate) admin: SocketAddr,
    pub(crate) books: Books,
    /// The account for most tests.
    pub(crate) account: AccountId,
    /// Its key.
    pub(crate) key: String,
    pub(crate) folder: TempDir,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    /// The expected charges: charges received by clients, and charges added by the test.
    charged: Mutex<Micros>,
    /// The usage expected to be written off, without an account to pay.
    written_off: Mutex<Micros>,
    finished: bool,
}

impl Rig {
    /// The usual gateway.
    pub(crate) async fn start() -> Rig {
        Setup::default().start().await
    }

    /// A gateway with `settings` laid over the usual settings; elements of arrays by their place.
    pub(crate) async fn with(settings: &str) -> Rig {
        Setup::with(settings).start().await
    }

    async fn of(setup: Setup) -> Rig {
        let folder = tollgate_testing::tempdir().expect("a folder");
        let provider = setup.provider(folder.path()).await;
        let (file, certificate) = setup.write(folder.path(), &provider);
        if let Some(secret) = setup.root_secret {
            let options = sqlite::Options::new(Clock::system().now(), RootSecret(secret));
            let store = sqlite::open(&database(folder.path()), options);
            store.expect("a store").close();
        }
        let (started, ready) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let (customise, environment) = (setup.customise, setup.environment);
        // A gateway creates runtimes, and a runtime must not be created inside a runtime.
        let thread = std::thread::spawn(move || {
            let builder = customise(Gateway::builder());
            let settings = tollgate::config::load(&file, &environment, &builder.declarations());
            let settings = settings.unwrap_or_else(|report| panic!("bad settings:\n{report}"));
            let gateway = builder.start(settings).expect("the gateway starts");
            let addresses: Vec<SocketAddr> = gateway
                .addresses()
                .iter()
                .map(|listener| listener.address.tcp().expect("TCP"))
                .collect();
            let sent = started.send((addresses, gateway.admin_address(), gateway.books()));
            assert!(sent.is_ok(), "the test waits for its gateway");
            gateway.run(async {
                // A failed test has dropped the sender, and the drop ends the gateway too.
                let _ = stopped.await;
            })
        });
        let (addresses, admin, books) = within("the start of the gateway", ready)
            .await
            .expect("the gateway starts");
        let [plain, tls] = addresses[..] else {
            panic!("the settings of a rig have two listeners, got {addresses:?}");
        };
        let mut rig = Rig {
            provider,
            plain,
            tls,
            admin,
            ca_pem: certificate.ca_pem,
            books,
            account: AccountId::from_bytes([0; 16]),
            key: String::new(),
            folder,
            stop: Some(stop),
            thread: Some(thread),
            charged: Mutex::new(Micros::ZERO),
            written_off: Mutex::new(Micros::ZERO),
            finished: false,
        };
        rig.account = rig.new_account("pro", setup.credits).await;
        rig.key = rig.new_key(rig.account, |_| {}).await.1;
        rig
    }

    /// Makes an account of the rate class `class` with `micros` micro-credits.
    pub(crate) async fn new_account(&self, class: &str, micros: i64) -> AccountId {
        open_account(&self.books, class, micros).await
    }

    /// Makes a key; `change` may restrict the key.
    pub(crate) async fn new_key(
        &self,
        account: AccountId,
        change: impl FnOnce(&mut NewKey),
    ) -> (tollgate_identity::KeyId, String) {
        let made = open_key(&self.books, account, change).await;
        let secret = made.secret.expose_secret().to_owned();
        (made.id, secret)
    }

    /// Adds credit to an account.
    pub(crate) async fn grant(&self, account: AccountId, micros: i64) {
        grant(&self.books, account, micros).await;
    }

    /// The available credit of an account, in micro-credits.
    pub(crate) fn available(&self, account: AccountId) -> i64 {
        let loaded = tollgate_store::block_on(self.books.ledger.load(account));
        loaded.expect("no panic").expect("it can be loaded");
        let available = self.books.ledger.available(account);
        available.expect("an account of this rig").get()
    }

    /// The origin of the plain listener.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.plain)
    }

    /// A GET at the admin address.
    pub(crate) async fn admin_get(&self, path: &str) -> tollgate_testing::Answer {
        self.operator().get(path).await
    }

    /// A client of the operator's own address.
    pub(crate) fn operator(&self) -> Client {
        Client::new(&format!("http://{}", self.admin))
    }

    /// A number of the metrics, by name with labels; seconds without their fraction.
    pub(crate) async fn metric(&self, name: &str) -> i64 {
        let page = self.operator().get("/metrics").await;
        let number = page
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let number = number.unwrap_or_else(|| panic!("no metric `{name}`"));
        number.parse::<f64>().expect("a number") as i64
    }

    /// Waits until a metric has a value: an event is counted after the answer.
    pub(crate) async fn metric_becomes(&self, name: &str, value: i64) {
        let line = format!("\n{name} {value}\n");
        let is_so = async {
            let mut often = tokio::time::interval(std::time::Duration::from_millis(10));
            while !self.admin_get("/metrics").await.text().contains(&line) {
                often.tick().await;
            }
        };
        within(&format!("`{}`", line.trim()), is_so).await;
    }

    /// A client with the rig's key over HTTP/1.1.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.url()).with_key(&self.key)
    }

    /// A client with the rig's key for every protocol of the gateway.
    pub(crate) fn clients(&self) -> [(&'static str, Client); 4] {
        let tls = format!("https://localhost:{}", self.tls.port());
        let secure = || Client::new(&tls).with_key(&self.key);
        [
            ("HTTP/1.1", self.client()),
            ("h2c", self.client().with_http2()),
            ("HTTP/1.1 over TLS", secure().with_tls(&self.ca_pem)),
            (
                "HTTP/2 over TLS",
                secure().with_http2().with_tls(&self.ca_pem),
            ),
        ]
    }

    /// A client over HTTP/1.1 and a client over HTTP/2.
    pub(crate) fn both(&self) -> [(&'static str, Client); 2] {
        let [one, two, ..] = self.clients();
        [one, two]
    }

    /// A connection for raw bytes of the test.
    pub(crate) async fn raw(&self) -> RawClient {
        RawClient::connect(self.plain).await
    }

    /// Records the charge in a response's `x_svc` as expected; returns the charge in micro-credits.
    pub(crate) fn record_charge(&self, body: &Value) -> i64 {
        let micros = micros(&body["x_svc"]["credits_used"]);
        self.add_expected_charge(micros);
        micros
    }

    /// Adds a charge without delivery to a client.
    pub(crate) fn add_expected_charge(&self, micros: i64) {
        let mut charged = self.charged.lock().expect("not poisoned");
        *charged += Micros::new(micros);
    }

    /// Adds usage beyond the account's credit.
    pub(crate) fn add_expected_write_off(&self, micros: i64) {
        let mut written_off = self.written_off.lock().expect("not poisoned");
        *written_off += Micros::new(micros);
    }

    /// Waits until no hold is open.
    pub(crate) async fn quiet(&self) {
        let quiet = || self.books.ledger.totals().open_holds == 0;
        within("the end of every hold", poll(quiet)).await;
    }

    /// Where the store is.
    pub(crate) fn database(&self) -> PathBuf {
        database(self.folder.path())
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !self.finished && !std::thread::panicking() {
            panic!("the test did not look at the books; end it with `rig.finish().await`");
        }
    }
}

/// The database of a gateway whose settings are in `folder`.
pub(crate) fn database(folder: &Path) -> PathBuf {
    folder.join("tollgate.db")
}

/// Waits until `is_so`, by polling: for conditions without an event.
pub(crate) async fn poll(is_so: impl Fn() -> bool) {
    poll_mut(is_so).await;
}

/// Polls a condition with mutable state.
pub(crate) async fn poll_mut(mut is_so: impl FnMut() -> bool) {
    let mut often = tokio::time::interval(std::time::Duration::from_millis(2));
    while !is_so() {
        often.tick().await;
    }
}

/// An amount of credits in an answer, in micro-credits.
pub(crate) fn micros(number: &Value) -> i64 {
    let credits = number
        .as_f64()
        .unwrap_or_else(|| panic!("`{number}` is no amount of credits"));
    (credits * 1e6).round() as i64
}

pub(crate) async fn open_account(books: &Books, class: &str, micros: i64) -> AccountId {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let account = NewAccount {
        logins: Vec::new(),
        class: Arc::from(class),
        credit_limit: Micros::ZERO,
        cache_scope: tollgate_store::CacheScope::Shared,
        created_at: clock.now(),
    };
    let account = create_account(&*books.store, account, |out| entropy.fill(out)).await;
    let account = account.expect("an account");
    if micros > 0 {
        grant(books, account, micros).await;
    }
    account
}

async fn grant(books: &Books, account: AccountId, micros: i64) {
    let (clock, entropy) = (Clock::system(), Entropy::system());
    let operation = OperationId::generate(clock.now(), &entropy);
    let credit = Credit {
        operation,
        account,
        amount: Micros::new(micros),
        reference: Arc::from(operation.to_string()),
        at: clock.now(),
    };
    books.ledger.grant(credit).await.expect("credits");
}

async fn open_key(
    books: &Books,
    account: AccountId,
    change: impl FnOnce(&mut NewKey),
) -> CreatedKey {
    let entropy = Entropy::system();
    let mut key = NewKey {
        account,
        label: String::from("test"),
        resources: Resources::API.bits(),
        scopes: Scopes::API.bits(),
        models: None,
        spending_cap: None,
        expires_at: None,
        created_at: Clock::system().now(),
    };
    change(&mut key);
    let form = Form::api_key("svc");
    let made = create_key(&*books.store, &form, key, |out| entropy.fill(out)).await;
    let made = made.expect("a key");
    SECRETS.used("an API key", made.secret.expose_secret());
    made
}
