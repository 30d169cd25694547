//! Session ids of MCP servers: valid for the account with the session, and for no other account.

use bytes::Bytes;
use serde_json::{Value, json};
use tollgate_testing::{Answer, Client};

use super::{MCP, McpRig, call};
use crate::rig::{CREDITS, Token};

/// Sends a message with session fields, like an MCP client.
async fn send(
    client: &Client,
    method: &str,
    body: &Value,
    session: &[(&'static str, &str)],
) -> Answer {
    let mut request = client.request(method, MCP, Bytes::from(body.to_string()));
    let fields = request.headers_mut();
    let accept = "application/json, text/event-stream";
    fields.insert("accept", accept.parse().expect("a value"));
    for (name, value) in session {
        fields.append(*name, value.parse().expect("a value"));
    }
    client.send(request).await
}

/// A session id seen in a log or a screenshot let another account continue the session: the server trusts the id alone.
#[tokio::test]
async fn a_session_is_continued_by_the_account_that_began_it_and_by_no_other() {
    let rig = McpRig::start().await;
    let other = rig.new_account("pro", CREDITS).await;
    let (_, token) = rig.new_token(other, Token::MCP).await;
    let (owner, other) = (rig.client(), Client::new(&rig.url()).with_key(&token));
    let initialize = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}});
    let begun = send(&owner, "POST", &initialize, &[]).await;
    assert_eq!(begun.status, 200, "{}", begun.text());
    let id = begun
        .header("mcp-session-id")
        .expect("a session")
        .to_owned();
    let own = [("mcp-session-id", &*id)];
    let seen = || rig.server.calls().len();
    let echoed = send(&owner, "POST", &call(), &own).await;
    assert_eq!(echoed.status, 200, "{}", echoed.text());
    let calls = rig.server.calls();
    assert_eq!(
        calls.last().expect("a call").headers["mcp-session-id"],
        "session-1",
        "the server's own id"
    );

    let before = seen();
    for (what, client, session, status) in [
        ("another account", &other, &own[..], 404),
        (
            "the server's id",
            &other,
            &[("mcp-session-id", "session-1")],
            404,
        ),
        (
            "the server's id, by its owner",
            &owner,
            &[("mcp-session-id", "session-1")],
            404,
        ),
        (
            "two ids",
            &owner,
            &[own[0], ("mcp-session-id", "session-1")],
            400,
        ),
    ] {
        for method in ["POST", "GET", "DELETE"] {
            let answer = send(client, method, &call(), session).await;
            assert_eq!(answer.status, status, "{what}: {method}: {}", answer.text());
            let code = if status == 404 {
                "session_gone"
            } else {
                "invalid_request"
            };
            assert_eq!(answer.json()["error"]["code"], code, "{what}: {method}");
        }
    }
    assert_eq!(seen(), before, "none of these reached the server");
    // Spellings read as the field by some servers are not passed on.
    let spelled = send(&other, "POST", &call(), &[("mcp_session_id", "session-1")]).await;
    assert_eq!(spelled.status, 400, "a request without a session");
    let calls = rig.server.calls();
    assert!(
        !calls
            .last()
            .expect("a call")
            .headers
            .contains_key("mcp_session_id")
    );

    assert_eq!(send(&owner, "POST", &call(), &own).await.status, 200);
    assert_eq!(send(&owner, "DELETE", &Value::Null, &own).await.status, 200);
    rig.rig.finish().await;
}
