//! Header fields between client, gateway and MCP server: the gateway's own fields cannot be forged.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use sha2::Sha256;
use tollgate::config::Environment;
use tollgate_filter::{Resource, Scope};
use tollgate_testing::{Act, Client, McpServer};

use super::{MCP, McpRig, call};
use crate::rig::{PROVIDER_KEY, SECRETS, Setup, Token};

const SECRET: &str = "a secret of the test, 32 letters.";

const ACCEPTED: &str = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";

/// Fields of a server with the server's own address.
const INNER: &str = "Location: http://inner.example/mcp/\r\nContent-Location: http://inner.example/mcp/1\r\n\
    Link: <http://inner.example/docs>; rel=\"service-doc\"\r\nRefresh: 0; url=http://inner.example/\r\n\
    Via: 1.1 inner.example\r\nWWW-Authenticate: Bearer error=\"insufficient_scope\", \
    resource_metadata=\"http://inner.example/.well-known/oauth-protected-resource/mcp\"\r\n";

fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all: Vec<_> = headers.get_all(name).iter().collect();
    assert!(all.len() < 2, "{name}: {all:?}");
    all.first().map(|value| value.to_str().expect("ASCII"))
}

#[tokio::test]
async fn the_server_receives_owner_scopes_and_request_id_and_no_credential() {
    let rig = McpRig::start().await;
    let token = Token {
        scopes: &[Scope::McpChat, Scope::McpDevices],
        ..Token::MCP
    };
    let (_, token) = rig.new_token(rig.account, token).await;
    for (protocol, via, client) in [
        ("HTTP/1.1", "1.1 svc", Client::new(&rig.url())),
        ("h2c", "2 svc", Client::new(&rig.url()).with_http2()),
    ] {
        rig.server.play([Act::ReadBody, Act::send(ACCEPTED)]);
        let answer = client.with_key(&token).post(MCP, &call()).await;
        assert_eq!(answer.status, 202, "{protocol}");
        let calls = rig.server.calls();
        let received = &calls.last().expect("a call").headers;
        assert_eq!(
            one(received, "x-svc-owner"),
            Some(&*rig.account.to_string())
        );
        assert_eq!(one(received, "x-svc-scopes"), Some("mcp:chat mcp:devices"));
        assert_eq!(one(received, "x-request-id"), answer.header("x-request-id"));
        assert_eq!(one(received, "via"), Some(via));
        assert_eq!(one(received, "host"), rig.server.url().split('/').nth(2));
        assert_eq!(one(received, "content-type"), Some("application/json"));
        for name in ["authorization", "signature", "signature-input"] {
            assert_eq!(one(received, name), None, "{protocol}: {name}");
        }
        let shown = format!("{received:?}");
        assert!(!shown.contains(&token), "{protocol}: {shown}");
    }
    rig.rig.finish().await;
}

#[tokio::test]
async fn the_gateways_fields_cannot_be_forged_by_a_client() {
    let rig = McpRig::start().await;
    let owner = rig.account.to_string();
    for forged in [
        "X-Svc-Owner: acct_forged\r\n",
        "x-svc-owner: acct_forged\r\nX-SVC-OWNER: acct_forged\r\n",
        "X_Svc_Owner: acct_forged\r\n",
        "X-Svc_Owner: acct_forged\r\nX_SVC-OWNER: acct_forged\r\n",
        "X.Svc.Owner: acct_forged\r\n",
        "X-Svc-Scopes: mcp:devices acct_forged\r\nX-Svc-Admin: acct_forged\r\n",
        "X-Svc-Authorization: Bearer acct_forged\r\n",
        "Payment-Authorization: Payment acct_forged\r\nPayment-Signature: acct_forged\r\n",
        "X-Request-Id: acct_forged\r\nx_request_id: acct_forged\r\n",
        "Connection: X-Svc-Owner, X-Svc-Scopes, X-Request-Id\r\n",
        "Connection: keep-alive, acct-forged\r\nAcct-Forged: acct_forged\r\n",
        "Cookie: acct_forged=1\r\nX-Api-Key: acct_forged\r\nProxy-Authorization: Basic acct_forged\r\n",
        "X-Forwarded-For: acct_forged\r\nForwarded: for=acct_forged\r\nX-Real-IP: acct_forged\r\n",
        "Signature: acct_forged\r\nSignature-Input: acct_forged\r\n",
        "TE: acct_forged\r\nUpgrade: acct_forged\r\nTrailer: acct_forged\r\n",
    ] {
        rig.server.play([Act::ReadBody, Act::send(ACCEPTED)]);
        let lines = format!("{forged}Content-Length: 2\r\n\r\n{{}}");
        let (head, _) = rig.begin("POST", &lines).await.read_answer().await;
        assert_eq!(head.status(), 202, "{forged}");
        let calls = rig.server.calls();
        let received = &calls.last().expect("a call").headers;
        assert_eq!(one(received, "x-svc-owner"), Some(&*owner), "{forged}");
        assert_eq!(one(received, "x-svc-scopes"), Some("mcp:chat"), "{forged}");
        assert_eq!(one(received, "x-request-id"), head.header("x-request-id"));
        let shown = format!("{received:?}");
        assert!(!shown.contains("acct_forged"), "{forged}: {shown}");
    }
    rig.rig.finish().await;
}

#[tokio::test]
async fn mcp_fields_statuses_and_bodies_are_relayed_unchanged() {
    let rig = McpRig::start().await;
    let asked = [
        ("mcp-protocol-version", "2025-11-25"),
        ("last-event-id", "41"),
        ("accept", "application/json, text/event-stream"),
        ("user-agent", "client/1"),
    ];
    let lines: String = asked
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    for (method, status, fields, body) in [
        (
            "POST",
            "200 OK",
            "Content-Type: application/json\r\n",
            "{\"a\":1}",
        ),
        ("POST", "202 Accepted", "", ""),
        (
            "POST",
            "406 Not Acceptable",
            "Content-Type: text/plain\r\n",
            "no",
        ),
        ("GET", "405 Method Not Allowed", "Allow: POST\r\n", ""),
        ("DELETE", "204 No Content", "", ""),
        (
            "DELETE",
            "404 Not Found",
            "Content-Type: application/problem+json\r\n",
            "{}",
        ),
        ("POST", "403 Forbidden", "Content-Language: en\r\n", "x"),
        (
            "POST",
            "429 Too Many Requests",
            "Retry-After: 7\r\n",
            "later",
        ),
        ("POST", "503 Service Unavailable", "", "down"),
    ] {
        let length = match status.starts_with("204") {
            true => String::new(),
            false => format!("Content-Length: {}\r\n", body.len()),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\n{fields}{length}Connection: x-private\r\nX-Private: 1\r\nSet-Cookie: a=b\r\n\
             Access-Control-Allow-Origin: https://evil.example\r\nX-Request-Id: theirs\r\nRateLimit: theirs\r\n\
             Alt-Svc: theirs\r\nPayment-Receipt: theirs\r\nWWW-Authenticate: Payment id=\"theirs\"\r\n{INNER}\r\n{body}"
        );
        rig.server.play([Act::ReadBody, Act::send(&answer)]);
        let body_of_request = if method == "POST" {
            "Content-Length: 2\r\n\r\n{}"
        } else {
            ""
        };
        let mut raw = rig
            .begin(method, &format!("{lines}{body_of_request}"))
            .await;
        let (head, passed) = raw.read_answer().await;
        assert!(status.starts_with(&head.status().to_string()), "{status}");
        assert_eq!(&passed[..], body.as_bytes(), "{status}");
        for line in fields.lines() {
            let (name, value) = line.split_once(": ").expect("a field");
            assert_eq!(head.header(name), Some(value), "{status}");
        }
        for name in [
            "x-private",
            "set-cookie",
            "access-control-allow-origin",
            "alt-svc",
            "payment-receipt",
            "www-authenticate",
        ] {
            assert_eq!(head.header(name), None, "{status}: {name}");
        }
        let shown = String::from_utf8_lossy(&head.raw);
        assert!(!shown.contains("inner.example"), "{status}: {shown}");
        assert_eq!(head.header("via"), Some("1.1 svc"), "{status}");
        assert!(
            head.header("x-request-id")
                .is_some_and(|id| id.starts_with("req_"))
        );
        assert!(
            head.header("ratelimit")
                .is_some_and(|value| value.contains("r="))
        );
        let calls = rig.server.calls();
        let call = calls.last().expect("a call");
        assert_eq!(call.method, method);
        for (name, value) in asked {
            assert_eq!(one(&call.headers, name), Some(value), "{status}");
        }
        let framed = one(&call.headers, "content-length");
        assert_eq!(framed, (method == "POST").then_some("2"), "{status}");
        assert_eq!(one(&call.headers, "transfer-encoding"), None);
    }
    rig.rig.finish().await;
}

#[tokio::test]
async fn the_query_is_relayed_without_credentials() {
    let rig = McpRig::start().await;
    rig.server.play([Act::ReadBody, Act::send(ACCEPTED)]);
    let path = format!("{MCP}?profile=a%20b&x=1");
    assert_eq!(rig.client().post(&path, &call()).await.status, 202);
    assert_eq!(rig.server.calls()[0].target, "/mcp?profile=a%20b&x=1");

    let hidden = rig.token.replace('_', "%5F");
    for token in [&rig.token, &hidden] {
        let path = format!("{MCP}?access_token={token}");
        let answer = rig.client().post(&path, &call()).await;
        assert_eq!(answer.status, 400, "{path}");
        assert_eq!(answer.json()["error"]["code"], "invalid_request");
    }
    assert_eq!(rig.server.calls().len(), 1);
    rig.rig.finish().await;
}

#[tokio::test]
async fn the_gateways_fields_are_signed_with_the_shared_secret() {
    let environment = Environment::of([("PROVIDER_KEY", PROVIDER_KEY), ("MCP_SECRET", SECRET)]);
    SECRETS.used("the MCP server's secret", SECRET);
    let setup = Setup {
        environment,
        ..Setup::default()
    };
    let settings = "signing_secret_env = \"MCP_SECRET\"\n";
    let rig = McpRig::of(setup, settings, McpServer::start().await).await;
    rig.server.play([Act::ReadBody, Act::send(ACCEPTED)]);
    let lines =
        "Signature: svc=:Zm9yZ2Vk:\r\nSignature-Input: svc=()\r\nContent-Length: 2\r\n\r\n{}";
    let (head, _) = rig.begin("POST", lines).await.read_answer().await;
    assert_eq!(head.status(), 202);

    let calls = rig.server.calls();
    let received = &calls[0].headers;
    let input = one(received, "signature-input").expect("what was signed");
    assert!(input.contains("keyid=\"mcp.general\""), "{input}");
    assert!(is_signed(received, SECRET));
    rig.rig.finish().await;
}

/// Whether the gateway's fields of a request are signed with `secret`.
fn is_signed(received: &HeaderMap, secret: &str) -> bool {
    let field = |name: &str| one(received, name).expect("a field");
    let input = field("signature-input");
    let parameters = input.strip_prefix("svc=").expect("the service's word");
    let base = format!(
        "\"@method\": POST\n\"@path\": /mcp\n\"@query\": ?\n\"x-svc-owner\": {}\n\"x-svc-scopes\": {}\n\
         \"x-request-id\": {}\n\"@signature-params\": {parameters}",
        field("x-svc-owner"),
        field("x-svc-scopes"),
        field("x-request-id")
    );
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("any length");
    mac.update(base.as_bytes());
    let wanted = STANDARD.encode(mac.finalize().into_bytes());
    field("signature") == format!("svc=:{wanted}:")
}

#[tokio::test]
async fn a_reload_rotates_the_secret_and_changes_the_origins_and_the_server() {
    const NEXT: &str = "5f0c7a1e-another-secret-of-the-server-9b3d";
    SECRETS.used("the MCP server's next secret", NEXT);
    let folder = tollgate_testing::tempdir().expect("a folder");
    let file = folder.path().join("secret");
    std::fs::write(&file, SECRET).expect("the folder takes files");
    let settings = format!("signing_secret_file = '{}'\n", file.display());
    let rig = McpRig::with(&settings).await;
    let lines = "Origin: https://app.example\r\nContent-Length: 2\r\n\r\n{}";
    let call_of = async |server: &McpServer| {
        server.play([Act::ReadBody, Act::send(ACCEPTED)]);
        let (head, _) = rig.begin("POST", lines).await.read_answer().await;
        assert_eq!(head.status(), 202);
        server.calls().pop().expect("a call").headers
    };
    let call = async || call_of(&rig.server).await;
    assert!(is_signed(&call().await, SECRET));
    std::fs::write(&file, NEXT).expect("the folder takes files");
    let changes = rig.reload().await.expect("it is reloaded");
    assert_eq!(changes, ["mcp.general.signing_secret_file"]);
    assert!(is_signed(&call().await, NEXT));

    let set = |key: &str, value: toml::Value| {
        rig.edit(|table| {
            let general = table["mcp"]["general"].as_table_mut().expect("a table");
            general.insert(key.to_owned(), value);
        });
    };
    let other = McpServer::start().await;
    let calls = rig.server.calls().len();
    set("upstream", other.url().into());
    rig.reload().await.expect("it is reloaded");
    assert!(is_signed(&call_of(&other).await, NEXT));
    assert_eq!(
        rig.server.calls().len(),
        calls,
        "on no connection that was kept"
    );

    rig.edit(|table| {
        let general = table["mcp"]["general"].as_table_mut().expect("a table");
        general.remove("upstream");
    });
    let refused = rig
        .reload()
        .await
        .expect_err("documents offer the resource");
    assert!(
        refused.contains("mcp.general.upstream: removed") && refused.contains("`tollgate upgrade`"),
        "{refused}"
    );
    set("upstream", other.url().into());
    set("origins", vec!["https://other.example"].into());
    rig.reload().await.expect("it is reloaded");
    let (head, _) = rig.begin("POST", lines).await.read_answer().await;
    assert_eq!(head.status(), 403);
    rig.rig.finish().await;
}

#[tokio::test]
async fn pages_may_call_and_read_unless_their_origin_is_not_allowed() {
    let rig = McpRig::with("origins = [\"https://app.example.com\"]\n").await;
    let ask = async |origins: &str| {
        rig.server.play([Act::ReadBody, Act::send(ACCEPTED)]);
        let lines = format!("{origins}Content-Length: 2\r\n\r\n{{}}");
        let (head, _) = rig.begin("POST", &lines).await.read_answer().await;
        head
    };
    let app = "Origin: https://app.example.com\r\n";
    for (origins, status) in [
        ("", 202),
        (app, 202),
        ("Origin: https://evil.example\r\n", 403),
        ("Origin: https://app.example.com.evil.example\r\n", 403),
        ("Origin: http://app.example.com\r\n", 403),
        ("Origin: null\r\n", 403),
        (
            "Origin: https://app.example.com\r\nOrigin: https://evil.example\r\n",
            403,
        ),
    ] {
        let head = ask(origins).await;
        assert_eq!(head.status(), status, "{origins}");
        let read = head.header("access-control-expose-headers");
        assert_eq!(read.is_some(), !origins.is_empty());
        assert!(read.is_none_or(|names| names.contains("MCP-Session-Id")));
    }
    let passed = rig.server.calls();
    assert_eq!(passed.len(), 2, "and what is refused is not passed on");
    assert!(
        passed
            .iter()
            .all(|call| !call.headers.contains_key("origin"))
    );

    let mut raw = rig.raw().await;
    raw.send(
        "OPTIONS /mcp HTTP/1.1\r\nHost: localhost\r\nOrigin: https://app.example.com\r\n\
         Access-Control-Request-Method: DELETE\r\n\
         Access-Control-Request-Headers: authorization, mcp-session-id, mcp-protocol-version, last-event-id\r\n\r\n",
    )
    .await;
    let (head, _) = raw.read_answer().await;
    assert_eq!(head.status(), 204);
    assert_eq!(
        head.header("access-control-allow-headers"),
        Some("authorization, mcp-session-id, mcp-protocol-version, last-event-id")
    );
    let methods = head
        .header("access-control-allow-methods")
        .expect("methods");
    assert!(
        ["POST", "GET", "DELETE"]
            .iter()
            .all(|method| methods.contains(method))
    );
    rig.rig.finish().await;
}

#[tokio::test]
async fn each_resource_has_its_own_server() {
    let android = McpServer::start().await;
    let settings = format!("[mcp.android]\nupstream = \"{}\"\n", android.url());
    let rig = McpRig::with(&settings).await;
    let token = Token {
        resource: Resource::McpAndroid,
        scopes: &[Scope::McpAndroid],
        ..Token::MCP
    };
    let (_, token) = rig.new_token(rig.account, token).await;
    android.play([Act::ReadBody, Act::send(ACCEPTED)]);
    let client = Client::new(&rig.url()).with_key(&token);
    assert_eq!(client.post("/mcp/android", &call()).await.status, 202);
    assert_eq!(
        one(&android.calls()[0].headers, "x-svc-scopes"),
        Some("mcp:android")
    );
    assert!(rig.server.calls().is_empty());
    rig.rig.finish().await;
}
