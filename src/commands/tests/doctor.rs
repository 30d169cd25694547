//! `tollgate doctor` against real servers, and stand-ins for unavailable parties.

use tollgate_testing::facilitator::{Contract, Effect, Fault, Operation};
use tollgate_testing::paypal::{CLIENT_ID, CLIENT_SECRET};
use tollgate_testing::{
    Act, Certificate, Facilitator, McpServer, PayPal, Postgres, Provider, Redis, provider,
    refusing_address,
};

use super::*;

const KEY: &str = "sk-provider-of-the-doctor";

impl Workspace {
    /// The exit code and the findings for `settings`.
    fn doctor(&self, settings: &str) -> (u8, Vec<Value>) {
        std::fs::write(self.file(), settings).expect("written");
        let (code, text) = self.run("doctor --json").expect("it runs");
        let found: Value = serde_json::from_str(&text).expect("JSON");
        json::compare("doctor", &found);
        (code, found.as_array().expect("a list").clone())
    }
}

/// The status of a check, and the measurement with the remedy.
fn of<'a>(found: &'a [Value], check: &str) -> (&'a str, String) {
    let one = found.iter().find(|one| one["check"] == check);
    let one = one.unwrap_or_else(|| panic!("no `{check}` in {found:#?}"));
    let text = |name: &str| one[name].as_str().unwrap_or_default();
    (
        text("status"),
        format!("{}; {}", text("measured"), text("remedy")),
    )
}

fn assert_finding(found: &[Value], check: &str, status: &str, text: &str) {
    let (is, said) = of(found, check);
    assert_eq!(is, status, "{check}: {said}");
    assert!(said.contains(text), "{check}: {said}");
}

/// Settings with `providers`; every provider has the model `small`.
fn with_providers(providers: &[(&str, String)], more: &str) -> String {
    let mut text =
        String::from("[admin]\naddress = '127.0.0.1:0'\n[telemetry]\naccess_log = 'none'\n");
    let mut offers = Vec::new();
    for (name, url) in providers {
        text +=
            &format!("[[provider]]\nname = '{name}'\nbase_url = '{url}'\napi_key_file = 'key'\n");
        if url.starts_with("https") {
            text += "ca_file = 'ca.pem'\n";
        }
        offers.push(format!("{{ provider = '{name}', model = 'demo-small' }}"));
    }
    text + &format!(
        "[[model]]\nid = 'small'\nproviders = [{}]\nprice = {{ input = '1', output = '2' }}\n{more}",
        offers.join(", ")
    )
}

fn provider(settings: provider::Settings) -> Provider {
    Provider::start_own_thread(settings).expect("a stand-in")
}

#[test]
fn the_fault_of_each_provider_is_named() {
    let workspace = Workspace::new();
    workspace.write("key", KEY, 0o600);
    let made = Certificate::for_localhost();
    workspace.write("ca.pem", &made.ca_pem, 0o600);
    let keyed = |key: &str| provider::Settings {
        key: Some(key.to_owned()),
        ..provider::Settings::default()
    };
    let good = provider(keyed(KEY));
    let secure = provider(provider::Settings {
        tls: Some(made),
        ..keyed(KEY)
    });
    let other_key = provider(keyed("another"));
    let other_models = provider(provider::Settings {
        models: vec!["large".to_owned()],
        ..keyed(KEY)
    });
    let unknown_authority = provider(provider::Settings {
        tls: Some(Certificate::for_localhost()),
        ..keyed(KEY)
    });
    let gone = tollgate_testing::refusing_address().expect("an address");
    let settings = with_providers(
        &[
            ("good", good.base_url()),
            ("secure", secure.base_url()),
            ("other-key", other_key.base_url()),
            ("other-models", other_models.base_url()),
            ("unknown-authority", unknown_authority.base_url()),
            ("gone", format!("http://{gone}/v1")),
            ("nameless", "http://provider.invalid/v1".to_owned()),
        ],
        "",
    );
    let (code, found) = workspace.doctor(&settings);
    assert_eq!(code, FAILURE);
    assert_finding(&found, "provider good", "ok", "200 to GET /models");
    assert_finding(&found, "provider secure", "ok", "2 models");
    assert_finding(&found, "provider other-key", "failed", "refuses the key");
    assert_finding(
        &found,
        "provider other-models",
        "warning",
        "without demo-small",
    );
    assert_finding(
        &found,
        "provider unknown-authority",
        "failed",
        "invalid peer certificate",
    );
    assert_finding(&found, "provider gone", "failed", "refused");
    assert_finding(
        &found,
        "provider nameless",
        "failed",
        "reachable from this machine",
    );
    assert_finding(&found, "name provider.invalid", "failed", "no address");
    assert_finding(&found, "name localhost", "ok", "127.0.0.1");
    assert!(!format!("{found:?}").contains(KEY), "no key is printed");
    // The only request was for the list.
    assert_eq!(good.call_count(), 1);

    let settings = with_providers(
        &[("good", good.base_url())],
        "[service]\nbase_url = 'https://api.example.invalid'",
    );
    let (code, found) = workspace.doctor(&settings);
    assert_eq!(
        code, SUCCESS,
        "a public name may resolve elsewhere: {found:#?}"
    );
    assert_finding(&found, "name api.example.invalid", "warning", "DNS record");

    let plain = settings.replace("name = 'good'", "name = 'good'\nhttp2 = true");
    let (_, found) = workspace.doctor(&plain);
    assert_finding(&found, "provider good", "ok", "200 to GET /models");
}

#[test]
fn the_database_is_measured_beside_a_gateway_and_without_one() {
    let workspace = Workspace::new();
    let (code, found) = workspace.doctor(SETTINGS);
    assert_eq!(code, FAILURE, "its provider is not there");
    assert_finding(&found, "gateway", "ok", "none runs");
    assert_finding(&found, "database", "ok", "has no store yet");
    let database = workspace.folder.path().join("tollgate.db");
    assert!(!database.exists(), "nothing was created");

    let server = workspace.serve();
    let (_, found) = workspace.doctor(SETTINGS);
    let process = format!("process {} runs", std::process::id());
    assert_finding(&found, "gateway", "ok", &process);
    assert_finding(&found, "database", "ok", "the schema of this release");
    let (_, write) = of(&found, "durable write");
    assert!(write.contains("median"), "{write}");
    let (_, limit) = of(&found, "limit of descriptors");
    assert!(limit.contains("the running gateway"), "{limit}");
    let (_, space) = of(&found, "free disk space");
    assert!(space.contains("GB free"), "{space}");
    let (status, _) = of(&found, "clock");
    assert!(["ok", "warning", "skipped"].contains(&status), "{status}");
    // The lock was not taken, and no file is left.
    workspace.good("account create");
    server.end();
    let left = std::fs::read_dir(workspace.folder.path()).expect("the folder");
    let left: Vec<_> = left
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert!(
        left.iter()
            .all(|name| name.to_string_lossy().starts_with('t')),
        "{left:?}"
    );

    std::fs::write(&database, "no database").expect("written");
    let (_, found) = workspace.doctor(SETTINGS);
    assert_finding(&found, "database", "failed", "tollgate.db");
}

#[test]
fn a_postgresql_server_is_measured_without_a_change() {
    let workspace = Workspace::new();
    let server = Postgres::shared();
    let url = server.database();
    let settings = format!("{SETTINGS}\n[store]\nurl = '{url}'\n");
    let (_, found) = workspace.doctor(&settings);
    assert_finding(&found, "durable write", "ok", "a round trip takes");
    let name = url.rsplit('/').next().expect("a database");
    let tables = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace";
    assert_eq!(server.run(name, tables).trim(), "0", "nothing was created");

    let missing = settings.replace(name, "missing");
    let (code, found) = workspace.doctor(&missing);
    assert_eq!(code, FAILURE);
    assert_finding(&found, "durable write", "failed", "`createdb");
    let (_, said) = of(&found, "durable write");
    assert!(!said.contains("start the server"), "{said}");

    let spool = format!("{settings}spool = '/proc/self/spool'\n");
    let (_, found) = workspace.doctor(&spool);
    assert_finding(&found, "spool", "failed", "`store.spool`");
}

#[test]
fn a_server_that_loses_commits_is_found() {
    let server = Postgres::start();
    server.run("postgres", "ALTER SYSTEM SET fsync = off");
    server.run("postgres", "SELECT pg_reload_conf()");
    while server.run("postgres", "SHOW fsync") != "off" {
        std::thread::yield_now();
    }
    let settings = format!("{SETTINGS}\n[store]\nurl = '{}'\n", server.database());
    let (_, found) = Workspace::new().doctor(&settings);
    assert_finding(&found, "durable write", "failed", "set `fsync = on`");
}

/// Under systemd the folder of the settings, where the socket is by default with PostgreSQL, cannot be written.
#[test]
fn a_control_socket_that_cannot_be_made_is_found_before_the_store_is_opened() {
    let workspace = Workspace::new();
    // A folder in which not even root creates a file.
    let socket = "address = '127.0.0.1:0'\nsocket = '/proc/self/control.sock'";
    let settings = SETTINGS.replacen("address = '127.0.0.1:0'", socket, 1);
    let (code, found) = workspace.doctor(&settings);
    assert_eq!(code, FAILURE);
    assert_finding(&found, "control socket", "failed", "`admin.socket`");
    let loaded = load(
        &workspace.file(),
        &Gateway::builder,
        &Environment::default(),
    );
    let error = Gateway::builder().start(loaded.expect("the settings are good"));
    let error = crate::telemetry::chain(&error.err().expect("it does not start"));
    assert!(error.contains("control.sock"), "{error}");
    assert!(error.contains("`admin.socket`"), "{error}");
    let database = workspace.folder.path().join("tollgate.db");
    assert!(!database.exists(), "no store was opened");

    let url = Postgres::shared().database();
    std::fs::write(
        workspace.file(),
        format!("{settings}\n[store]\nurl = '{url}'\n"),
    )
    .expect("written");
    let warned = workspace.good("check");
    assert!(
        warned.contains("warning: admin.socket: could not"),
        "{warned}"
    );
}

#[test]
fn the_shared_server_is_called() {
    let workspace = Workspace::new();
    let mut redis = Redis::start();
    let settings = format!("{SETTINGS}\n[shared]\nurl = '{}'\n", redis.url());
    let (_, found) = workspace.doctor(&settings);
    let (status, said) = of(&found, "shared server");
    assert!(status != "failed" && said.contains("answers in"), "{said}");
    redis.kill();
    let (code, found) = workspace.doctor(&settings);
    assert_eq!(code, FAILURE);
    assert_finding(&found, "shared server", "failed", "refused");
}

#[test]
fn each_mcp_server_is_asked_to_initialize() {
    let workspace = Workspace::new();
    let (general, android) = ("MCP server mcp.general", "MCP server mcp.android");
    let server = McpServer::start_own_thread().expect("a stand-in");
    let of_server = |url: &str| {
        format!("{SETTINGS}\n[mcp.general]\nupstream = '{url}'\nsigning_secret_file = 'secret'\n")
    };
    workspace.write("secret", "a secret of the test, 32 letters.", 0o600);
    let settings = of_server(&server.url());
    let (_, found) = workspace.doctor(&settings);
    assert_finding(&found, general, "ok", "200 to initialize");
    assert!(found.iter().all(|one| one["check"] != android));
    let calls = server.calls();
    let methods: Vec<&str> = calls.iter().map(|call| call.method.as_str()).collect();
    assert_eq!(methods, ["POST", "DELETE"], "the session is ended");
    assert_eq!(calls[1].headers["mcp-session-id"], "session-1");
    for call in &calls {
        for name in ["x-svc-owner", "x-svc-scopes", "x-request-id", "signature"] {
            assert!(call.headers.contains_key(name), "{} {name}", call.method);
        }
    }

    let redirect = format!("set `mcp.general.upstream` to `{}/`", server.url());
    let host = server.url().replace("/mcp", "");
    let elsewhere = format!("set `mcp.general.upstream` to `{host}/v2`");
    for (head, status, said) in [
        (
            "307 Temporary Redirect\r\nLocation: /mcp/?token=x#y",
            "failed",
            &*redirect,
        ),
        (
            &*format!("308 Permanent Redirect\r\nLocation: {host}/v2"),
            "failed",
            &*elsewhere,
        ),
        ("301 Moved Permanently", "failed", "301 to initialize"),
        ("401 Unauthorized", "failed", "not a credential"),
        ("403 Forbidden", "warning", "refuses the owner"),
        ("404 Not Found", "failed", "no MCP server at this path"),
        (
            "405 Method Not Allowed",
            "failed",
            "no MCP server at this path",
        ),
        ("400 Bad Request", "failed", "400 to initialize"),
        ("500 Internal Server Error", "failed", "see its log"),
        ("200 OK", "failed", "without a result"),
        ("202 Accepted", "failed", "without a result"),
        (
            "200 OK\r\nContent-Type: text/event-stream; charset=utf-8",
            "ok",
            "200 to initialize",
        ),
    ] {
        let head = format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n");
        server.play([Act::ReadBody, Act::send(&head)]);
        let (_, found) = workspace.doctor(&settings);
        assert_finding(&found, general, status, said);
    }

    let address = refusing_address().expect("an address");
    let (code, found) = workspace.doctor(&of_server(&format!("http://{address}/mcp")));
    assert_eq!(code, FAILURE);
    assert_finding(&found, general, "failed", "`mcp.general.upstream` is right");
}

#[test]
fn what_is_sold_is_compared_with_paypal_and_with_the_facilitator() {
    let workspace = Workspace::new();
    let paypal = PayPal::start_own_thread().expect("a stand-in");
    let facilitator = Facilitator::start_own_thread().expect("a stand-in");
    workspace.write("id", CLIENT_ID, 0o600);
    workspace.write("secret", CLIENT_SECRET, 0o600);
    let settings = format!(
        "{SETTINGS}\n[credits]\nusd_per_credit = '0.01'\n[payments.paypal]\nbase_url = '{}'\nclient_id_file = 'id'\n\
         client_secret_file = 'secret'\n",
        paypal.url()
    );
    std::fs::write(workspace.file(), &settings).expect("written");
    let plan = workspace.word("paypal setup", "plan_id");
    let (_, found) = workspace.doctor(&settings);
    assert_finding(&found, "PayPal", "ok", "no `plan_id` is set");
    let settings = format!("{settings}plan_id = '{plan}'\n");
    let (_, found) = workspace.doctor(&settings);
    assert_finding(&found, "PayPal", "ok", "active and charges 199.00 USD");
    paypal.change_plan(&plan, |plan| plan.cents = 100);
    let (code, found) = workspace.doctor(&settings);
    assert_eq!(code, FAILURE);
    assert_finding(&found, "PayPal", "failed", "charges 1.00 USD each month");
    workspace.write("secret", "another", 0o600);
    let (_, found) = workspace.doctor(&settings);
    assert_finding(&found, "PayPal", "failed", "client id and secret");

    let x402 = format!(
        "{SETTINGS}\n[payments.x402]\nfacilitator_url = '{}'\nrpc_url = '{}'\nnetwork = 'eip155:84532'\n\
         pay_to = '0x90F79bf6EB2c4f870365E785982E1f101E93b906'\n",
        facilitator.url(),
        facilitator.rpc_url()
    );
    let ours = x402.replace("eip155:84532", tollgate_testing::facilitator::NETWORK);
    let (_, found) = workspace.doctor(&ours);
    assert_finding(&found, "facilitator", "ok", "settles `exact`");
    assert_finding(&found, "node of the chain", "ok", "it is of");
    let theirs = match tollgate_testing::facilitator::NETWORK {
        "eip155:8453" => x402,
        _ => x402.replace("eip155:84532", "eip155:8453"),
    };
    let (_, found) = workspace.doctor(&theirs);
    assert_finding(&found, "facilitator", "failed", "without `exact`");
    assert_finding(&found, "node of the chain", "failed", "not eip155:");
    let Contract::Token {
        domain_separator, ..
    } = Contract::USDC
    else {
        panic!("a token");
    };
    for (contract, measured) in [
        (Contract::Nothing, "no contract"),
        (
            Contract::Token {
                decimals: Some(18),
                domain_separator,
            },
            "18 decimal places",
        ),
        (
            Contract::Token {
                decimals: Some(6),
                domain_separator: None,
            },
            "another EIP-712 domain",
        ),
    ] {
        facilitator.deploy(contract);
        let (_, found) = workspace.doctor(&ours);
        assert_finding(&found, "node of the chain", "failed", measured);
    }
    facilitator.deploy(Contract::USDC);
    facilitator.fault(Fault::once(Operation::Supported, Effect::Status(503)));
    let (_, found) = workspace.doctor(&ours);
    assert_finding(&found, "facilitator", "failed", "503");
}

#[test]
fn invalid_settings_are_a_finding_and_the_machine_is_checked_all_the_same() {
    let workspace = Workspace::new();
    let (code, found) = workspace.doctor("[server]\nworkers = 0\n");
    assert_eq!(code, FAILURE);
    assert_finding(&found, "settings", "failed", "server.workers");
    assert!(found.iter().any(|one| one["check"] == "clock"));

    let made = Certificate::until(&["localhost"], (2020, 1, 1));
    workspace.write("a.pem", &made.cert_pem, 0o600);
    workspace.write("key.pem", &made.key_pem, 0o600);
    let listener = "[[listener]]\naddress = '127.0.0.1:0'\ntls = [{ certificate = 'a.pem', key = 'key.pem' }]\n";
    let (_, found) = workspace.doctor(&format!("{SETTINGS}{listener}"));
    let path = workspace.folder.path().join("a.pem");
    let check = format!("certificate {}", path.display());
    assert_finding(&found, &check, "failed", "renew it");
    let text = workspace.run("doctor").expect("it runs").1;
    assert!(text.contains("\nfailed   certificate "), "{text}");

    // The certificate of the admin address, and an ACME certificate without an order by a gateway.
    let listener = "[[listener]]\naddress = '127.0.0.1:0'\ntls = [{ acme = { names = ['api.example.net'], terms_agreed = true } }]\n\
         [admin.tls]\ncertificate = 'a.pem'\nkey = 'key.pem'\n";
    let (_, found) = workspace.doctor(&format!("{SETTINGS}{listener}"));
    assert_finding(&found, &check, "failed", "renew it");
    let acme = "certificate acme:api.example.net";
    assert_finding(&found, acme, "warning", "none is stored");
    assert!(text.trim_end().ends_with("skipped"), "{text}");
}
