//! Kept connections to MCP servers: after a close by the server, a request is sent again, once.

use tollgate_testing::{Act, Certificate, McpCall, McpServer};

use super::McpRig;
use crate::rig::Setup;

/// Twice the longest body kept for a repeat.
const LONG: usize = 32 * 1024;

fn accepted() -> Vec<Act> {
    let accepted = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n";
    vec![Act::ReadBody, Act::send(accepted)]
}

impl McpRig {
    /// Leaves an idle connection to the server, and returns the number of requests until then.
    async fn keep_a_connection(&self) -> usize {
        self.server.play(accepted());
        let mut raw = self.begin("POST", "Content-Length: 2\r\n\r\n{}").await;
        assert_eq!(raw.read_answer().await.0.status(), 202);
        self.server.calls().len()
    }
}

#[tokio::test]
async fn a_request_on_a_connection_that_the_server_has_just_closed_is_sent_again_once() {
    let certificate = Certificate::for_localhost();
    let folder = tollgate_testing::tempdir().expect("a folder");
    let file = folder.path().join("mcp-ca.pem");
    std::fs::write(&file, &certificate.ca_pem).expect("the folder takes files");
    let ca_file = format!("ca_file = \"{}\"\n", file.display());
    for (settings, certificate) in [("", None), (&*ca_file, Some(certificate))] {
        let server = McpServer::start_with(certificate).await;
        let rig = McpRig::of(Setup::default(), settings, server).await;
        let mut sent = 0;
        for reset in [false, true] {
            for (method, rest) in [
                ("POST", "Content-Length: 2\r\n\r\n{}"),
                ("GET", ""),
                ("DELETE", ""),
            ] {
                let what = format!("{settings}{method}, reset {reset}");
                let before = rig.keep_a_connection().await;
                rig.server.play([Act::Cut { reset }]);
                rig.server.play(accepted());
                let mut raw = rig.begin(method, rest).await;
                assert_eq!(raw.read_answer().await.0.status(), 202, "{what}");
                let calls = &rig.server.calls()[before - 1..];
                assert_eq!(calls.len(), 3, "{what}: once");
                let (kept, first, second) = (&calls[0], &calls[1], &calls[2]);
                assert_eq!(first.connection, kept.connection, "{what}");
                assert_ne!(second.connection, first.connection, "{what}");
                assert_eq!(second.headers, first.headers, "{what}");
                assert_eq!(second.method, method);
                assert!(second.is_whole, "{what}");
                assert_eq!(
                    second.body,
                    rest.trim_start_matches(|c| c != '{').as_bytes()
                );
                sent += 3;
            }
        }
        let after = rig.rig.finish().await;
        let calls = after
            .log
            .iter()
            .filter_map(|line| line["upstream_calls"].as_u64());
        assert_eq!(calls.sum::<u64>(), sent, "{settings}: each is logged");
    }
}

#[tokio::test]
async fn a_body_that_is_still_arriving_is_sent_again_from_its_beginning() {
    let rig = McpRig::start().await;
    let before = rig.keep_a_connection().await;
    rig.server.play([Act::Cut { reset: true }]);
    rig.server.play(accepted());
    let mut raw = rig.begin("POST", "Content-Length: 6\r\n").await;
    raw.send("abc").await;
    let has_start = |call: &McpCall| call.body == b"abc";
    let wait = |calls: &[McpCall]| calls.len() == before + 2 && has_start(&calls[before + 1]);
    rig.server.when("the start, again", wait).await;
    raw.send("def").await;
    assert_eq!(raw.read_answer().await.0.status(), 202);
    assert_eq!(rig.server.calls()[before + 1].body, b"abcdef");
    // The connection is kept like ordinary connections.
    let again = rig.keep_a_connection().await;
    let calls = rig.server.calls();
    assert_eq!(calls[again - 1].connection, calls[again - 2].connection);
    rig.rig.finish().await;
}

#[tokio::test]
async fn a_request_is_sent_again_only_before_an_answer_and_only_once() {
    let rig = McpRig::start().await;
    for (what, acts, sent) in [
        (
            "both connections close",
            vec![vec![Act::Cut { reset: false }]; 2],
            2,
        ),
        (
            "within the head of an answer",
            vec![vec![Act::send("HTTP/1.1 2"), Act::Cut { reset: false }]],
            1,
        ),
        (
            "after an interim answer",
            vec![vec![
                Act::send("HTTP/1.1 103 Early Hints\r\n\r\n"),
                Act::Cut { reset: false },
            ]],
            1,
        ),
    ] {
        let before = rig.keep_a_connection().await;
        for acts in acts {
            rig.server.play(acts);
        }
        let mut raw = rig.begin("POST", "Content-Length: 2\r\n\r\n{}").await;
        let (head, _) = raw.read_answer().await;
        assert_eq!(head.status(), 502, "{what}");
        assert_eq!(rig.server.calls().len(), before + sent, "{what}");
    }
    rig.rig.finish().await;
}

/// A request that cannot be repeated has a new connection: the server has had no time for a close.
#[tokio::test]
async fn a_long_body_and_one_of_unknown_length_have_a_new_connection() {
    let rig = McpRig::start().await;
    let long = "x".repeat(LONG);
    for rest in [
        format!("Content-Length: {LONG}\r\n\r\n{long}"),
        "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n".to_owned(),
    ] {
        let before = rig.keep_a_connection().await;
        rig.server.play(accepted());
        let mut raw = rig.begin("POST", &rest).await;
        assert_eq!(raw.read_answer().await.0.status(), 202);
        let calls = rig.server.calls();
        assert_ne!(calls[before].connection, calls[before - 1].connection);
    }
    rig.rig.finish().await;
}
