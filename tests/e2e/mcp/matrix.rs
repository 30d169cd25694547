//! Authorization matrix: every kind of credential at every resource, with status and challenge.
//!
//! The rows follow the table of audiences: a credential works at the credential's own resource only, and is no credential at a different
//! resource.

use std::fmt::Write as _;

use tollgate_filter::{Resource, Scope};
use tollgate_identity::revoke_key;
use tollgate_testing::{McpServer, RawClient};

use crate::rig::{Rig, Token};

/// An operation, with the resource and the sufficient scopes.
struct Operation {
    line: &'static str,
    resource: Resource,
    scopes: &'static [Scope],
    /// The address of the document in the operation's challenges, after the service's address.
    document: &'static str,
}

const OPERATIONS: [Operation; 7] = [
    Operation {
        line: "POST /v1/chat/completions",
        resource: Resource::Api,
        scopes: &[Scope::ApiChat],
        document: "/v1",
    },
    Operation {
        line: "POST /v1/completions",
        resource: Resource::Api,
        scopes: &[Scope::ApiCompletions],
        document: "/v1",
    },
    Operation {
        line: "GET /v1/models",
        resource: Resource::Api,
        scopes: &[Scope::ApiModels],
        document: "/v1",
    },
    Operation {
        line: "POST /mcp",
        resource: Resource::Mcp,
        scopes: &[Scope::McpChat, Scope::McpProjects, Scope::McpDevices],
        document: "/mcp",
    },
    Operation {
        line: "POST /mcp/",
        resource: Resource::Mcp,
        scopes: &[Scope::McpChat, Scope::McpProjects, Scope::McpDevices],
        document: "/mcp/",
    },
    Operation {
        line: "POST /mcp/android",
        resource: Resource::McpAndroid,
        scopes: &[Scope::McpAndroid],
        document: "/mcp/android",
    },
    Operation {
        line: "POST /mcp/android/",
        resource: Resource::McpAndroid,
        scopes: &[Scope::McpAndroid],
        document: "/mcp/android/",
    },
];

const BASE: &str = "https://api.example.test";

/// What is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    LetIn,
    /// 401 without an error: no credential was sent.
    Missing,
    /// 401: no credential at the resource.
    Invalid,
    /// 403 with the sufficient scopes.
    Scope,
    /// 403: a key has no scopes to request.
    Key,
    /// 400: unreadable.
    Unreadable,
}

impl Operation {
    /// Status and challenge, to the byte.
    fn answer(&self, base: &str, verdict: Verdict) -> (u16, Option<String>) {
        let names: Vec<&str> = self.scopes.iter().map(|scope| scope.name()).collect();
        let scope = names.join(" ");
        let document = format!(
            "resource_metadata=\"{base}/.well-known/oauth-protected-resource{}\"",
            self.document
        );
        let challenge = |parameters: String| Some(format!("Bearer {parameters}"));
        match verdict {
            Verdict::LetIn => (200, None),
            Verdict::Missing => (401, challenge(format!("{document}, scope=\"{scope}\""))),
            Verdict::Invalid => (
                401,
                challenge(format!("error=\"invalid_token\", {document}")),
            ),
            Verdict::Scope => (
                403,
                challenge(format!(
                    "error=\"insufficient_scope\", scope=\"{scope}\", {document}"
                )),
            ),
            Verdict::Key => (403, None),
            Verdict::Unreadable => (
                400,
                challenge(format!("error=\"invalid_request\", {document}")),
            ),
        }
    }

    /// The verdict on an otherwise valid token with `resource` and `scopes`.
    fn of_token(&self, resource: Resource, scopes: &[Scope]) -> Verdict {
        match (
            resource == self.resource,
            self.scopes.iter().any(|one| scopes.contains(one)),
        ) {
            (false, _) => Verdict::Invalid,
            (true, true) => Verdict::LetIn,
            (true, false) => Verdict::Scope,
        }
    }
}

struct Bench {
    rig: Rig,
    _servers: [McpServer; 2],
    /// The service's address.
    base: &'static str,
}

impl Bench {
    async fn start() -> Bench {
        let servers = [McpServer::start().await, McpServer::start().await];
        let settings = format!(
            "[service]\nbase_url = \"{BASE}\"\n[mcp.general]\nupstream = \"{}\"\n[mcp.android]\nupstream = \"{}\"\n\
             [limits.failed_credentials]\nquota = 1000000\nwindow_secs = 60\n[limits.classes.mcp]\nquota = 1000000\nwindow_secs = 60\n",
            servers[0].url(),
            servers[1].url()
        );
        Bench {
            rig: Rig::with(&settings).await,
            _servers: servers,
            base: BASE,
        }
    }

    async fn token(&self, resource: Resource, scopes: &[Scope], secs: i64) -> String {
        let token = Token {
            resource,
            scopes,
            secs,
        };
        self.rig.new_token(self.rig.account, token).await.1
    }

    /// Sends an operation with `lines` in the head, and checks the answer.
    async fn check(&self, operation: &Operation, query: &str, lines: &str, verdict: Verdict) {
        let (method, path) = operation.line.split_once(' ').expect("a method and a path");
        let body = match (method, operation.resource) {
            ("GET", _) => "",
            (_, Resource::Api) if path.contains("chat") => {
                r#"{"model":"small","messages":[{"role":"user","content":"Halt!"}]}"#
            }
            (_, Resource::Api) => r#"{"model":"small","prompt":"Halt!"}"#,
            _ => {
                r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}"#
            }
        };
        let mut head = format!("{method} {path}{query} HTTP/1.1\r\nHost: elsewhere.example\r\n");
        write!(
            head,
            "Accept: application/json, text/event-stream\r\n{lines}"
        )
        .expect("text");
        if !body.is_empty() {
            write!(
                head,
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            )
            .expect("text");
        }
        let mut raw = RawClient::connect(self.rig.plain).await;
        raw.send(format!("{head}\r\n{body}")).await;
        let (head, said) = raw.read_answer().await;
        let said = String::from_utf8_lossy(&said);
        let case = format!("{} with {lines:?}{query}", operation.line);
        let (status, challenge) = operation.answer(self.base, verdict);
        assert_eq!(head.status(), status, "{case}: {said}");
        let sent = head.header("www-authenticate").map(str::to_owned);
        assert_eq!(sent, challenge, "{case}: {said}");
        if status == 200 {
            if path != "/v1/models" && operation.resource == Resource::Api {
                let body: serde_json::Value = serde_json::from_str(&said).expect("JSON");
                self.rig.record_charge(&body);
            }
        } else {
            assert_eq!(head.header("cache-control"), Some("no-store"), "{case}");
        }
    }
}

fn bearer(credential: &str) -> String {
    format!("Authorization: Bearer {credential}\r\n")
}

#[tokio::test]
async fn a_token_works_at_its_own_resource_and_with_its_own_scopes_only() {
    let bench = Bench::start().await;
    for resource in [Resource::Api, Resource::Mcp, Resource::McpAndroid] {
        for scope in Scope::ALL {
            // Tokens of the operation's resource and of other resources. The scopes of a token are compared with the required scopes, and
            // no scope implies another scope.
            let token = bench.token(resource, &[scope], 3600).await;
            for operation in &OPERATIONS {
                let verdict = operation.of_token(resource, &[scope]);
                bench.check(operation, "", &bearer(&token), verdict).await;
            }
        }
        let token = bench.token(resource, &Scope::ALL, 3600).await;
        for operation in &OPERATIONS {
            let verdict = operation.of_token(resource, &Scope::ALL);
            bench.check(operation, "", &bearer(&token), verdict).await;
        }
    }
    bench.rig.finish().await;
}

#[tokio::test]
async fn credentials_of_other_resources_are_invalid() {
    let bench = Bench::start().await;
    let key = bench.rig.key.clone();
    let account = bench.rig.account;
    let (_, narrow) = bench.rig.new_key(account, |key| key.scopes = 0b1000).await;
    for operation in &OPERATIONS {
        let is_api = operation.resource == Resource::Api;
        let own = operation.scopes;
        let good = bench.token(operation.resource, own, 3600).await;
        let expired = bench.token(operation.resource, own, -1).await;
        let made_up = good.replace("svc_at_", "svc_at_x");
        let cookie = format!("Cookie: __Host-session={good}; session={key}\r\n");
        let other_header = format!("X-Svc-Authorization: Bearer {good}\r\nX-Api-Key: {good}\r\n");
        let twice = format!("{}{}", bearer(&good), bearer(&good));
        let mixed = format!("{}{}", bearer(&good), bearer(&key));
        let basic = format!("Authorization: Basic {good}\r\n");
        let payment = format!("Authorization: Payment x\r\nX-Svc-Authorization: Bearer {good}\r\n");
        let quoted = format!("Authorization: Bearer \"{good}\"\r\n");
        use Verdict::{Invalid, Key, LetIn, Missing, Unreadable};
        for (lines, verdict) in [
            ("", Missing),
            (&*basic, Missing),
            ("Authorization: Bearer\r\n", Missing),
            (&*cookie, Missing),
            (&*other_header, Missing),
            (&*payment, Missing),
            (&*twice, Unreadable),
            (&*mixed, Unreadable),
            (&*quoted, Unreadable),
            (&*bearer(&good), LetIn),
            (&*bearer(&expired), Invalid),
            (&*bearer(&made_up), Invalid),
            (&*bearer("abc"), Invalid),
            (&*bearer(&key), if is_api { LetIn } else { Invalid }),
            (&*bearer(&narrow), if is_api { Key } else { Invalid }),
        ] {
            bench.check(operation, "", lines, verdict).await;
        }
        for query in [format!("?access_token={good}"), format!("?key={key}")] {
            bench.check(operation, &query, "", Missing).await;
            bench
                .check(operation, &query, &bearer(&good), Unreadable)
                .await;
        }
    }
    bench.rig.finish().await;
}

#[tokio::test]
async fn a_revoked_token_is_refused_by_the_next_request() {
    let bench = Bench::start().await;
    for operation in &OPERATIONS {
        let token = Token {
            resource: operation.resource,
            scopes: operation.scopes,
            secs: 3600,
        };
        let (id, token) = bench.rig.new_token(bench.rig.account, token).await;
        bench
            .check(operation, "", &bearer(&token), Verdict::LetIn)
            .await;
        let now = tollgate_clock::Clock::system().now();
        let revoked = revoke_key(&*bench.rig.books.store, id, now).await;
        revoked.expect("written");
        bench
            .check(operation, "", &bearer(&token), Verdict::Invalid)
            .await;
    }
    bench.rig.finish().await;
}

#[tokio::test]
async fn a_token_for_any_alias_of_a_resource_works_only_there() {
    use crate::oauth::support::{App, BASE, ROOT, setup};

    let servers = [McpServer::start().await, McpServer::start().await];
    let settings = format!(
        "[mcp.general]\nupstream = \"{}\"\n[mcp.android]\nupstream = \"{}\"\n\
         [limits.failed_credentials]\nquota = 1000000\nwindow_secs = 60\n[limits.classes.mcp]\nquota = 1000000\nwindow_secs = 60\n",
        servers[0].url(),
        servers[1].url()
    );
    let rig = setup(&settings).start().await;
    let mut tokens = Vec::new();
    {
        let mut app = App::at(&rig, "https://app.example/cb").await;
        for (name, resource) in [
            (format!("{BASE}/v1"), Resource::Api),
            (format!("{BASE}/v1/"), Resource::Api),
            (String::from(BASE), Resource::Api),
            (format!("{BASE}/"), Resource::Api),
            (String::from(ROOT), Resource::Api),
            (format!("{ROOT}/"), Resource::Api),
            // A request without a resource is for the API, and never for an MCP resource.
            (String::new(), Resource::Api),
            (format!("{BASE}/mcp"), Resource::Mcp),
            (format!("{BASE}/mcp/"), Resource::Mcp),
            (format!("{BASE}/mcp/android"), Resource::McpAndroid),
            (format!("{BASE}/mcp/android/"), Resource::McpAndroid),
        ] {
            let scopes: Vec<Scope> = OPERATIONS
                .iter()
                .filter(|operation| operation.resource == resource)
                .flat_map(|operation| operation.scopes.iter().copied())
                .collect();
            let asked: Vec<&str> = scopes.iter().map(|scope| scope.name()).collect();
            let asked = asked.join(" ");
            let mut changes = vec![("scope", asked.as_str())];
            if !name.is_empty() {
                changes.push(("resource", &name));
            }
            let token = app.token(&changes).await;
            let token = token["access_token"].as_str().expect("a token").to_owned();
            tokens.push((resource, scopes, token));
        }
    }
    let bench = Bench {
        rig,
        _servers: servers,
        base: BASE,
    };
    for (resource, scopes, token) in tokens {
        for operation in &OPERATIONS {
            let verdict = operation.of_token(resource, &scopes);
            bench.check(operation, "", &bearer(&token), verdict).await;
        }
    }
    bench.rig.finish().await;
}
