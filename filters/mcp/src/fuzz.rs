//! Entry point of fuzzing: requests to an MCP resource, with any bytes.

use http::{HeaderMap, HeaderValue, Method};
use tollgate_filter::{ClientAddress, Protocol, RelayedHead as _, Request};
use tollgate_money::{AccountId, OperationId};

use crate::filter::holds_credential;
use crate::session::{BoundSessions, SESSION_ID, SessionKey};

/// `Mcp-Session-Id`, with a line of the input for each field, in the direction of a client and of a server; and the first line as a query.
pub fn request(input: &[u8]) {
    let key = SessionKey::derive(&[7; 32]);
    let sessions = BoundSessions::of(&key, &"mcp.general".into(), AccountId::from_bytes([1; 16]));
    let lines = input.split(|byte| *byte == b'\n');
    let values: Vec<HeaderValue> = lines
        .filter_map(|line| HeaderValue::from_bytes(line).ok())
        .collect();
    let mut request = Request {
        id: OperationId::from_parts(1, [0; 10]),
        method: Method::POST,
        path: "/mcp/general".into(),
        query: None,
        headers: values.iter().map(|id| (SESSION_ID, id.clone())).collect(),
        body: Default::default(),
        client: ClientAddress::direct([192, 0, 2, 1].into()),
        tls: false,
        protocol: Protocol::Http11,
    };
    assert!(
        !matches!(sessions.of_request(&request), Ok(Some(_))),
        "an id that was not given out is refused"
    );
    if let [id] = &values[..] {
        let mut given = HeaderMap::from_iter([(SESSION_ID, id.clone())]);
        sessions.edit(&mut given);
        request.headers = given;
        assert_eq!(sessions.of_request(&request), Ok(Some(id.clone())));
    }
    if let Some(line) = input.split(|byte| *byte == b'\n').next()
        && let Ok(query) = std::str::from_utf8(line)
    {
        let prefixes = [Box::from("sk-"), Box::from("tg_at_")];
        let plain = query.contains("sk-") || query.contains("tg_at_");
        // A decoded escape removes no other byte.
        assert!(!plain || holds_credential(query, &prefixes), "`{query}`");
    }
}
