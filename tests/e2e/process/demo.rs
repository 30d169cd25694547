//! The demo: output, and printed commands.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tollgate_testing::{Client, Process};

use super::installation::ended;
use crate::rig::{CHAT, SECRETS, micros};

/// Starts the demo with the arguments `words`, and returns the first line accepted by `is_it`.
async fn demo(words: &[&str], is_it: fn(&str) -> bool) -> (Process, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["demo", "--port", "0"]).args(words);
    let process = Process::spawn(&mut command).expect("the program starts");
    let waiting = tokio::task::spawn_blocking(move || {
        let line = process.line_where("what the demo announces", is_it);
        (process, line)
    });
    waiting.await.expect("the demo starts")
}

#[tokio::test]
async fn the_demo_prints_its_addresses_serves_and_removes_its_files() {
    let (mut process, line) = demo(&["--json"], |line| line.starts_with('{')).await;
    let said: Value = serde_json::from_str(&line).expect("JSON");
    let text = |name: &str| {
        said[name]
            .as_str()
            .unwrap_or_else(|| panic!("no `{name}` in {said}"))
    };
    SECRETS.used("an API key", text("api_key"));
    let ca_pem = std::fs::read_to_string(text("ca_file")).expect("the authority's certificate");
    let body = serde_json::json!({"model": text("model"), "messages": [{"role": "user", "content": "Halt!"}]});
    for (what, client, hit) in [
        ("HTTP", Client::new(text("base_url")), false),
        (
            "HTTPS",
            Client::new(text("tls_url")).with_tls(&ca_pem),
            true,
        ),
    ] {
        let answer = client.with_key(text("api_key")).post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        let body = answer.json();
        assert_eq!(body["x_svc"]["cache_hit"], hit, "{what}");
        assert_eq!(
            micros(&body["x_svc"]["credits_used"]) == 0,
            hit,
            "{what}: only what is said again costs nothing"
        );
        assert_eq!(body["x_svc"]["owner"], said["account"], "{what}");
    }
    // Discovery by a client without a token: the metadata document is named by the URL of the client's call.
    let base_url = text("base_url");
    assert_eq!(text("mcp_url"), format!("{base_url}/mcp"));
    let refused = Client::new(base_url).post("/mcp", &body).await;
    let challenge = refused.header("www-authenticate").expect("a challenge");
    let document = format!("\"{base_url}/.well-known/oauth-protected-resource/mcp\"");
    assert!(challenge.contains(&document), "{challenge}");
    let orders = Client::new(text("paypal_url"))
        .get("/_control/orders")
        .await;
    assert_eq!(orders.json()["orders"], serde_json::json!([]));
    let live = Client::new(text("admin_url")).get("/live").await;
    assert_eq!(live.status, 200);
    let folder = Path::new(text("config_file")).parent().expect("a folder");
    let mode = |path: &Path| {
        let found = std::fs::metadata(path).expect("a file of the demo");
        found.permissions().mode() & 0o777
    };
    assert_eq!(
        mode(folder),
        0o700,
        "other users of the machine stay outside"
    );
    for name in [
        "key.pem",
        "paypal-client-secret",
        "mpp-secret",
        "tollgate.toml",
    ] {
        assert_eq!(mode(&folder.join(name)), 0o600, "{name}");
    }
    process.signal("INT");
    assert_eq!(
        ended(&mut process).await.code(),
        Some(0),
        "{}",
        process.output()
    );
    assert!(!folder.exists(), "the folder is left");
}

#[tokio::test]
async fn each_command_that_the_demo_prints_works_as_printed() {
    let (mut process, _) = demo(&[], |line| line.contains("Ctrl-C")).await;
    let output = process.output();
    // A command with a backslash at the end of a line continues in the next line.
    let joined = output.replace("\\\n", " ");
    let commands: Vec<&str> = joined
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("curl "))
        .collect();
    assert_eq!(commands.len(), 4, "{output}");
    let key = joined
        .split("Bearer ")
        .nth(1)
        .and_then(|rest| rest.split('\'').next());
    SECRETS.used("an API key", key.expect("a key"));
    for (at, command) in commands.into_iter().enumerate() {
        let ran = tokio::process::Command::new("sh")
            .args(["-c", command])
            .output();
        let ran = tollgate_testing::within(command, ran)
            .await
            .expect("a shell");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(
            ran.status.success(),
            "`{command}`: {}",
            String::from_utf8_lossy(&ran.stderr)
        );
        assert!(said.contains("\"x_svc\""), "`{command}` says: {said}");
        assert_eq!(
            said.contains("\"cache_hit\":true"),
            at == 2,
            "the third asks what the first asked: {said}"
        );
    }
    process.signal("TERM");
    assert_eq!(ended(&mut process).await.code(), Some(0));
}
