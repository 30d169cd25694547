//! Requests refused before the MCP server, and statuses without a relay.

use tollgate_testing::{Act, Client};

use super::{MCP, McpRig, call};
use crate::rig::{Rig, Token};

#[tokio::test]
async fn without_a_server_authorized_requests_get_503() {
    let rig = Rig::start().await;
    let (_, token) = rig.new_token(rig.account, Token::MCP).await;
    let anonymous = Client::new(&rig.url());
    let ask = async |client: &Client| client.post(MCP, &call()).await;
    assert_eq!(ask(&anonymous).await.status, 401);
    let elsewhere = Token {
        scopes: &[tollgate_filter::Scope::ApiChat],
        ..Token::MCP
    };
    let (_, scopeless) = rig.new_token(rig.account, elsewhere).await;
    let scopeless = Client::new(&rig.url()).with_key(&scopeless);
    assert_eq!(ask(&scopeless).await.status, 403);
    let answer = ask(&anonymous.with_key(&token)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.json()["error"]["code"], "mcp_unavailable");
    assert_eq!(answer.json()["error"]["type"], "unavailable_error");
    rig.finish().await;
}

#[tokio::test]
async fn only_the_methods_of_the_transport_are_answered() {
    let rig = McpRig::start().await;
    for (method, status) in [
        ("HEAD", 405),
        ("PUT", 405),
        ("PATCH", 405),
        ("TRACE", 405),
        ("BREW", 501),
    ] {
        let mut raw = rig.begin(method, "").await;
        let head = raw.read_head().await;
        assert_eq!(head.status(), status, "{method}");
        if status == 405 {
            let allow = head.header("allow").expect("what is allowed");
            assert!(
                ["POST", "GET", "DELETE"]
                    .iter()
                    .all(|method| allow.contains(method)),
                "{allow}"
            );
        }
    }
    assert!(rig.server.calls().is_empty());
    rig.rig.finish().await;
}

#[tokio::test]
async fn a_401_of_the_server_is_not_relayed() {
    let rig = McpRig::start().await;
    for status in ["401 Unauthorized", "407 Proxy Authentication Required"] {
        rig.server.play([
            Act::ReadBody,
            Act::send(&format!(
                "HTTP/1.1 {status}\r\nWWW-Authenticate: Bearer\r\nContent-Length: 0\r\n\r\n"
            )),
        ]);
        let answer = rig.client().post(MCP, &call()).await;
        assert_eq!(answer.status, 502, "{status}");
        assert_eq!(answer.json()["error"]["code"], "upstream_error");
        assert_eq!(answer.header("www-authenticate"), None);
    }
    rig.rig.finish().await;
}

/// FastMCP redirects `/mcp` to `/mcp/`, at an address reachable only for the gateway.
#[tokio::test]
async fn a_redirect_of_the_server_is_502() {
    let rig = McpRig::start().await;
    for status in [
        "301 Moved Permanently",
        "302 Found",
        "303 See Other",
        "307 Temporary Redirect",
        "308 Permanent Redirect",
    ] {
        for location in ["http://inner.example/mcp/", "/mcp/"] {
            rig.server.play([
                Act::ReadBody,
                Act::send(&format!(
                    "HTTP/1.1 {status}\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n"
                )),
            ]);
            let answer = rig.client().post(MCP, &call()).await;
            assert_eq!(answer.status, 502, "{status}");
            assert_eq!(answer.json()["error"]["code"], "upstream_error");
            assert_eq!(answer.header("location"), None);
            assert!(
                !answer.text().contains("inner.example"),
                "{}",
                answer.text()
            );
        }
    }
    rig.rig.finish().await;
}

#[tokio::test]
async fn requests_are_counted_by_the_class_of_the_resource() {
    let rig = McpRig::with("[limits.classes.mcp]\nquota = 2\nwindow_secs = 60\n").await;
    let accepted = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
    for (status, left) in [(202, "1"), (202, "0"), (429, "0")] {
        rig.server.play([Act::ReadBody, Act::send(accepted)]);
        let answer = rig.client().post(MCP, &call()).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.header("ratelimit-remaining"), Some(left));
        assert_eq!(answer.header("ratelimit-limit"), Some("2"));
    }
    assert_eq!(rig.server.calls().len(), 2);
    let after = rig.rig.finish().await;
    assert_eq!(after.each("class"), ["mcp"; 3]);
}
