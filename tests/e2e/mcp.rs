//! The MCP resources: authorization, and relays to the servers behind the resources, from and to the client.

mod connections;
mod endings;
mod fields;
mod matrix;
mod refusals;
mod sessions;
mod streams;

use std::ops::Deref;

use serde_json::json;
use tollgate_testing::{Client, McpServer, RawClient};

use crate::rig::{Rig, Setup, Token};

const MCP: &str = "/mcp";

/// A gateway with an MCP server behind the general resource, and a token for the resource.
struct McpRig {
    rig: Rig,
    server: McpServer,
    token: String,
}

impl McpRig {
    async fn start() -> McpRig {
        McpRig::with("").await
    }

    /// A rig with `settings` in `[mcp.general]`; further sections may follow in `settings`.
    async fn with(settings: &str) -> McpRig {
        McpRig::of(Setup::default(), settings, McpServer::start().await).await
    }

    async fn of(setup: Setup, settings: &str, server: McpServer) -> McpRig {
        let settings = format!("[mcp.general]\nupstream = \"{}\"\n{settings}", server.url());
        let rig = Setup { settings, ..setup }.start().await;
        let (_, token) = rig.new_token(rig.account, Token::MCP).await;
        McpRig { rig, server, token }
    }

    /// A client with the token.
    fn client(&self) -> Client {
        Client::new(&self.rig.url()).with_key(&self.token)
    }

    /// A connection with a begun request of `method`, and with `lines` in the head.
    async fn begin(&self, method: &str, lines: &str) -> RawClient {
        let mut raw = self.rig.raw().await;
        raw.send(self.head(method, lines)).await;
        raw
    }

    fn head(&self, method: &str, lines: &str) -> String {
        let token = &self.token;
        format!(
            "{method} {MCP} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n{lines}\r\n"
        )
    }
}

impl Deref for McpRig {
    type Target = Rig;

    fn deref(&self) -> &Rig {
        &self.rig
    }
}

/// A call of the tool `echo`, for servers whose answer is played.
fn call() -> serde_json::Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo", "arguments": {"text": "hi"}}})
}
