//! A corpus of hostile bodies and header fields at every endpoint for programs: a response is machine-readable, names the request, and is
//! never an internal error.

mod bodies;
mod fields;

use std::time::Duration;

use serde_json::Value;
use tollgate::config::Environment;
use tollgate_testing::facilitator::MERCHANT;
use tollgate_testing::paypal::{Operation as Asked, PayPal};
use tollgate_testing::{Facilitator, Head, within};

use crate::pay::mpp;
use crate::rig::{PROVIDER_KEY, Rig, Setup, micros};

/// Operations missing in the OpenAPI document, with the media type of their bodies.
const BESIDES: [(&str, &str, &str); 9] = [
    ("POST", "/webhooks/paypal", JSON),
    ("POST", "/mcp", JSON),
    ("POST", "/mcp/android", JSON),
    ("POST", "/sign-in", FORM),
    ("POST", "/ucp/2026-04-08/checkout-sessions", JSON),
    ("GET", "/ucp/2026-04-08/checkout-sessions/unknown", JSON),
    ("PUT", "/ucp/2026-04-08/checkout-sessions/unknown", JSON),
    (
        "POST",
        "/ucp/2026-04-08/checkout-sessions/unknown/complete",
        JSON,
    ),
    (
        "POST",
        "/ucp/2026-04-08/checkout-sessions/unknown/cancel",
        JSON,
    ),
];

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// Rate limits high enough for the corpus.
const NO_LIMITS: &str = r#"
    [limits.failed_credentials]
    window_secs = 60
    quota = 1000000
    [limits.classes.anonymous]
    quota = 1000000
    window_secs = 60
    [limits.classes.oauth]
    quota = 1000000
    window_secs = 60
    [limits.classes.register]
    quota = 1000000
    window_secs = 60
    [limits.classes.authorize]
    quota = 1000000
    window_secs = 60
    [limits.classes.webhooks]
    quota = 1000000
    window_secs = 60
    [limits.classes.mcp]
    quota = 1000000
    window_secs = 60
"#;

/// A gateway with every payment route, and the stand-ins of the payment providers.
struct CorpusRig {
    rig: Rig,
    facilitator: Facilitator,
    paypal: PayPal,
}

impl CorpusRig {
    async fn open() -> CorpusRig {
        let facilitator = Facilitator::start().await;
        let paypal = PayPal::start().await;
        let folder = tollgate_testing::tempdir().expect("a folder");
        let ca = folder.path().join("paypal-ca.pem");
        std::fs::write(&ca, paypal.ca_pem()).expect("the folder takes files");
        let url = facilitator.url();
        let x402 = format!(
            "[payments.x402]\nfacilitator_url = \"{url}\"\nrpc_url = \"{url}/rpc\"\npay_to = \"{MERCHANT}\"\n"
        );
        let settings = format!("{NO_LIMITS}\n{x402}\n{}", mpp::selling(&paypal, &ca));
        let [id, secret, mpp] = mpp::secrets();
        let rig = Setup {
            environment: Environment::of([("PROVIDER_KEY", PROVIDER_KEY), id, secret, mpp]),
            ..Setup::with(&settings)
        }
        .start()
        .await;
        let mut often = tokio::time::interval(Duration::from_millis(5));
        let open = async {
            while rig.metric("tollgate_x402_up").await != 1 || paypal.calls(Asked::Plan) == 0 {
                often.tick().await;
            }
        };
        within("the first word of those who are paid through", open).await;
        CorpusRig {
            rig,
            facilitator,
            paypal,
        }
    }

    /// No request has made a payment.
    async fn close(self) {
        assert!(self.facilitator.transfers().is_empty(), "nothing was paid");
        let agreed = self.paypal.subscriptions();
        assert!(
            agreed.iter().all(|one| one.status == "APPROVAL_PENDING"),
            "no mandate was approved"
        );
        self.rig.finish().await;
    }
}

/// An address and a method.
struct Operation {
    method: String,
    path: String,
    media_type: &'static str,
    /// A valid body, if the description has an example.
    example: Option<Value>,
    /// The described members of a body.
    members: Vec<String>,
}

/// Every operation of the description, and the operations of [`BESIDES`].
async fn operations(rig: &Rig) -> Vec<Operation> {
    let document = rig.client().get("/openapi.json").await.json();
    let mut operations = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, described) in methods.as_object().expect("methods") {
            if method == "parameters" {
                continue;
            }
            let media = &described["requestBody"]["content"][JSON];
            let schema = match media["schema"]["$ref"].as_str() {
                Some(reference) => document.pointer(reference.trim_start_matches('#')),
                None => Some(&media["schema"]),
            };
            let members = schema.and_then(|schema| schema["properties"].as_object());
            operations.push(Operation {
                method: method.to_ascii_uppercase(),
                // An unknown id in place of a path parameter.
                path: path
                    .replace("{id}", "unknown")
                    .replace("{session}", "unknown"),
                media_type: match &described["requestBody"]["content"][FORM] {
                    Value::Null => JSON,
                    _ => FORM,
                },
                example: media.get("example").cloned(),
                members: members.map_or_else(Vec::new, |members| members.keys().cloned().collect()),
            });
        }
    }
    operations.extend(BESIDES.map(|(method, path, media_type)| Operation {
        method: method.to_owned(),
        path: path.to_owned(),
        media_type,
        example: path.starts_with("/ucp/").then(
            || serde_json::json!({"line_items": [{"item": {"id": "svc-pro-monthly"}, "quantity": 1}]}),
        ),
        members: match path.starts_with("/ucp/") {
            true => ["line_items", "buyer", "context", "payment", "ucp"]
                .map(str::to_owned)
                .to_vec(),
            false => Vec::new(),
        },
    }));
    operations
}

/// Sends a request with a literal head and returns the problem with the answer, if any.
async fn problem(rig: &Rig, head: &[u8], body: &[u8]) -> Option<String> {
    let mut raw = rig.raw().await;
    // The refusal may arrive while the rest is still being sent.
    let _ = raw.try_send([head, body].concat()).await;
    let answered = match raw.try_read_head().await {
        Ok(Some(answered)) => answered,
        other => return Some(format!("no answer but {other:?}")),
    };
    if answered.status() == 304 || answered.status() == 204 {
        return None;
    }
    let forged = head.starts_with(b"POST /webhooks/") && answered.status() == 400;
    if forged && answered.header("content-length") == Some("0") {
        // Forged webhook events get no details.
        return None;
    }
    let answer = match raw.try_read_body(&answered).await {
        Ok(answer) => answer,
        Err(error) => return Some(format!("{} and no body: {error}", answered.start_line)),
    };
    // A replayed response is not charged again.
    if answered.header("idempotent-replayed").is_none() {
        record_charge_in(rig, &answer);
    }
    fault(&answered, &answer)
        .map(|fault| format!("{}: {fault}: {:?}", answered.start_line, short(&answer)))
}

fn short(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(300)]).into_owned()
}

/// The fault of a response: an internal error, or a body unreadable for a program.
fn fault(head: &Head, body: &[u8]) -> Option<String> {
    let id = head.header("x-request-id").unwrap_or_default();
    if !id.starts_with("req_") {
        return Some(format!("x-request-id is `{id}`"));
    }
    let status = head.status();
    let media_type = head.header("content-type").unwrap_or_default();
    if status < 400 {
        return None;
    }
    // Pages are for people, and have their own tests.
    if media_type.starts_with("text/html") {
        return (status >= 500).then(|| String::from("a failure"));
    }
    if !matches!(media_type, "application/json" | "application/problem+json") {
        return Some(format!("the media type is `{media_type}`"));
    }
    let Ok(body) = serde_json::from_slice::<Value>(body) else {
        return Some(String::from("no JSON"));
    };
    let error = &body["error"];
    let is_envelope = ["message", "type"]
        .iter()
        .all(|name| error[*name].is_string())
        && ["param", "code"]
            .iter()
            .all(|name| error.get(*name).is_some());
    // RFC 6749 section 5.2.
    let is_oauth = error.is_string() && body["error_description"].is_string();
    // A missing session, in the words of the protocol. The protocol has no error for a missing session.
    let is_ucp = body["ucp"]["status"] == "error" && body["messages"].is_array();
    if !(is_envelope || is_oauth || is_ucp) {
        return Some(String::from(
            "neither the envelope nor a shape that is known",
        ));
    }
    if is_envelope && body.get("title").is_some() && body["status"] != status {
        return Some(String::from("the problem names another status"));
    }
    // An unconfigured or unreachable part has a code of its own. Every other 5xx is a bug of the gateway.
    let is_known = matches!(
        error["code"].as_str(),
        Some("payment_route_unavailable" | "mcp_unavailable" | "not_implemented")
    );
    (status >= 500 && !is_known).then(|| String::from("a failure"))
}

/// Records the charge of a response: a hostile request may be served.
fn record_charge_in(rig: &Rig, answer: &[u8]) {
    let text = String::from_utf8_lossy(answer);
    for line in text.lines() {
        let line = line.strip_prefix("data: ").unwrap_or(line);
        if let Ok(Value::Object(object)) = serde_json::from_str::<Value>(line)
            && let Some(cost) = object
                .get("x_svc")
                .and_then(|x_svc| x_svc.get("credits_used"))
        {
            rig.add_expected_charge(micros(cost));
        }
    }
}

/// A head with `fields` besides the fields of every request.
fn head(rig: &Rig, operation: &Operation, length: usize, fields: &[(&str, &[u8])]) -> Vec<u8> {
    let names = |name: &str| {
        fields
            .iter()
            .any(|(other, _)| other.eq_ignore_ascii_case(name))
    };
    let mut head = format!(
        "{} {} HTTP/1.1\r\nHost: localhost\r\n",
        operation.method, operation.path
    );
    if !names("authorization") {
        head.push_str(&format!("Authorization: Bearer {}\r\n", rig.key));
    }
    if length > 0 || operation.method == "POST" {
        head.push_str(&format!("Content-Length: {length}\r\n"));
    }
    if !names("content-type") && length > 0 {
        head.push_str(&format!("Content-Type: {}\r\n", operation.media_type));
    }
    let mut head = head.into_bytes();
    for (name, value) in fields {
        head.extend_from_slice(name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    head
}

#[tokio::test]
async fn no_request_body_causes_an_internal_error() {
    let fixture = CorpusRig::open().await;
    let rig = &fixture.rig;
    let mut problems = Vec::new();
    let mut sent = 0;
    for operation in &operations(rig).await {
        for (what, body) in bodies::for_operation(operation) {
            let head = head(rig, operation, body.len(), &[]);
            sent += 1;
            if let Some(problem) = problem(rig, &head, &body).await {
                let Operation { method, path, .. } = operation;
                problems.push(format!("{method} {path}: {what}: {problem}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(sent > 500, "{sent} bodies are no corpus");
    fixture.close().await;
}

#[tokio::test]
async fn no_header_field_causes_an_internal_error() {
    let fixture = CorpusRig::open().await;
    let rig = &fixture.rig;
    let mut problems = Vec::new();
    let mut sent = 0;
    for operation in &operations(rig).await {
        let body = operation.example.as_ref().map(ToString::to_string);
        let body = body.unwrap_or_default();
        for (what, sample) in fields::for_path(&operation.path, &rig.key) {
            let fields: Vec<(&str, &[u8])> = sample
                .iter()
                .map(|(name, value)| (*name, value.as_slice()))
                .collect();
            let head = head(rig, operation, body.len(), &fields);
            sent += 1;
            if let Some(problem) = problem(rig, &head, body.as_bytes()).await {
                let Operation { method, path, .. } = operation;
                problems.push(format!("{method} {path}: {what}: {problem}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(sent > 1000, "{sent} fields are no corpus");
    fixture.close().await;
}
