//! The protocol of a small MCP server: sessions, a few tools, and a stream for server-initiated messages.
//!
//! | Tool | Answer |
//! |---|---|
//! | `echo` | its argument `text`, as JSON |
//! | `count` | a stream with a progress message for each number up to `to`, then the result |
//! | `whoami` | the identity fields set by a gateway, as JSON |

use std::collections::HashSet;

use serde_json::{Value, json};

use super::McpCall;

/// The protocol revisions it supports.
const REVISIONS: [&str; 3] = ["2025-03-26", "2025-06-18", "2025-11-25"];

/// The open sessions.
#[derive(Debug, Default)]
pub struct Sessions {
    open: HashSet<String>,
    begun: u64,
}

/// A response.
#[derive(Debug)]
pub enum Answer {
    /// A whole response.
    Whole {
        /// The status.
        status: u16,
        /// Fields.
        fields: Vec<(&'static str, String)>,
        /// The body.
        body: String,
    },
    /// A stream of events that ends.
    Events(Vec<String>),
    /// An event stream that continues until the client disconnects.
    Listen(Vec<String>),
}

/// The response to a complete request.
pub fn answer(call: &McpCall, sessions: &mut Sessions) -> Answer {
    let field = |name: &str| {
        let value = call.headers.get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let accept = field("accept");
    let session = field("mcp-session-id");
    match call.method.as_str() {
        "POST" => {}
        "GET" if !accept.contains("text/event-stream") => return status(406, "Not Acceptable"),
        "GET" if !sessions.open.contains(&session) => return status(404, "Session not found"),
        "GET" => {
            let after = field("last-event-id");
            let note = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {
                "level": "info", "data": format!("listening after `{after}`")}});
            return Answer::Listen(vec![event(1, &note)]);
        }
        "DELETE" if sessions.open.remove(&session) => return status(200, ""),
        "DELETE" => return status(404, "Session not found"),
        _ => return status(405, "Method Not Allowed"),
    }
    if !(accept.contains("application/json") && accept.contains("text/event-stream")) {
        return status(406, "Not Acceptable");
    }
    let Ok(message) = serde_json::from_slice::<Value>(&call.body) else {
        return status(400, "Parse error");
    };
    let id = message["id"].clone();
    if message["method"] == "initialize" {
        sessions.begun += 1;
        let session = format!("session-{}", sessions.begun);
        sessions.open.insert(session.clone());
        let asked = message["params"]["protocolVersion"].as_str();
        let revision = asked.filter(|asked| REVISIONS.contains(asked));
        let result = json!({
            "protocolVersion": revision.unwrap_or(REVISIONS[2]),
            "capabilities": {"tools": {}, "logging": {}},
            "serverInfo": {"name": "stand-in", "version": "1.0.0"},
        });
        let Answer::Whole {
            status,
            mut fields,
            body,
        } = result_of(&id, result)
        else {
            unreachable!("results are whole")
        };
        fields.push(("Mcp-Session-Id", session));
        return Answer::Whole {
            status,
            fields,
            body,
        };
    }
    if !sessions.open.contains(&session) {
        return status(
            if session.is_empty() { 400 } else { 404 },
            "Session not found",
        );
    }
    if id.is_null() {
        // A notification, or a response without a request.
        return status(202, "");
    }
    match message["method"].as_str() {
        // Required of a server with the capability `logging`; the MCP Inspector sends it when it connects.
        Some("ping" | "logging/setLevel") => result_of(&id, json!({})),
        Some("tools/list") => result_of(&id, json!({"tools": tools()})),
        Some("tools/call") => tool(call, &id, &message["params"]),
        _ => {
            let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "Method not found"}});
            json_answer(error)
        }
    }
}

fn tools() -> Value {
    let schema = |properties: Value| json!({"type": "object", "properties": properties});
    json!([
        {"name": "echo", "description": "Says it again", "inputSchema": schema(json!({"text": {"type": "string"}}))},
        {"name": "count", "description": "Counts in a stream", "inputSchema": schema(json!({"to": {"type": "integer"}}))},
        {"name": "whoami", "description": "Tells who the gateway says is asking", "inputSchema": schema(json!({}))},
    ])
}

fn tool(call: &McpCall, id: &Value, params: &Value) -> Answer {
    let arguments = &params["arguments"];
    let text_result = |text: String| json!({"content": [{"type": "text", "text": text}]});
    match params["name"].as_str() {
        Some("echo") => {
            let text = arguments["text"].as_str().unwrap_or_default();
            result_of(id, text_result(text.to_owned()))
        }
        Some("count") => {
            let to = arguments["to"].as_u64().unwrap_or(3).min(1000);
            let token = &params["_meta"]["progressToken"];
            let mut events: Vec<String> = (1..=to)
                .filter(|_| !token.is_null())
                .map(|number| {
                    let note = json!({"jsonrpc": "2.0", "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": number, "total": to}});
                    event(number, &note)
                })
                .collect();
            let result = text_result(format!("counted to {to}"));
            let result = json!({"jsonrpc": "2.0", "id": id, "result": result});
            events.push(event(to + 1, &result));
            Answer::Events(events)
        }
        Some("whoami") => {
            let identity = call.headers.iter().filter(|(name, _)| {
                let name = name.as_str();
                name.ends_with("-owner") || name.ends_with("-scopes") || name == "x-request-id"
            });
            let identity: serde_json::Map<String, Value> = identity
                .map(|(name, value)| {
                    let value = value.to_str().unwrap_or_default();
                    (name.as_str().to_owned(), Value::from(value))
                })
                .collect();
            result_of(id, text_result(Value::from(identity).to_string()))
        }
        _ => {
            let error = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32602, "message": "Unknown tool"}});
            json_answer(error)
        }
    }
}

fn event(id: u64, message: &Value) -> String {
    format!("id: {id}\nevent: message\ndata: {message}\n\n")
}

fn result_of(id: &Value, result: Value) -> Answer {
    json_answer(json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn json_answer(message: Value) -> Answer {
    Answer::Whole {
        status: 200,
        fields: vec![("Content-Type", "application/json".to_owned())],
        body: message.to_string(),
    }
}

fn status(status: u16, message: &str) -> Answer {
    let body = match message {
        "" => String::new(),
        message => {
            json!({"jsonrpc": "2.0", "id": null, "error": {"code": -32000, "message": message}})
                .to_string()
        }
    };
    let fields = match message {
        "" => Vec::new(),
        _ => vec![("Content-Type", "application/json".to_owned())],
    };
    Answer::Whole {
        status,
        fields,
        body,
    }
}
