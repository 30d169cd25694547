//! Syncs with a failure after the data has reached the disk: the answers to clients, and the charges found by the next start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use tollgate_testing::{RawClient, Script};

use super::installation::{Installation, Serving, ended};
use crate::rig::{CHAT, audited, chat, micros};

/// The program on a disk whose syncs can be made to fail.
struct FailingSync {
    installation: Installation,
    serving: Serving,
    /// The syncs fail while the file exists.
    fails: PathBuf,
}

impl FailingSync {
    async fn serve() -> FailingSync {
        let installation = Installation::new("[telemetry]\naccess_log = \"none\"").await;
        let folder = installation.folder.path();
        let (library, fails) = (folder.join("failing_sync.so"), folder.join("sync-fails"));
        let source = tollgate_testing::package_folder().join("tests/e2e/process/failing_sync.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]);
        compiler.arg(&library).arg(source).arg("-ldl");
        let compiled = compiler.status().expect("a C compiler");
        assert!(compiled.success(), "{compiled}");
        let mut command = installation.command(&["serve"]);
        command
            .env("LD_PRELOAD", &library)
            .env("SYNC_FAILS", &fails);
        let serving = installation.serve_as(command).await;
        FailingSync {
            installation,
            serving,
            fails,
        }
    }

    fn fail(&self) {
        std::fs::write(&self.fails, "").expect("written");
    }

    /// The charges according to the next start, on a working disk.
    async fn charged(mut self) -> i64 {
        assert_eq!(ended(&mut self.serving.process).await.code(), Some(1));
        let output = self.serving.process.output();
        assert!(output.contains("store failed"), "{output}");
        let mut serving = self.installation.serve().await;
        assert_eq!(serving.metric("tollgate_open_holds").await, 0);
        serving.process.signal("TERM");
        assert_eq!(ended(&mut serving.process).await.code(), Some(0));
        let report = audited(&self.installation.database());
        report.sums.spent.get()
    }
}

/// The disk may have taken a charge with a failed sync: the answer is refused, and the next start finds the charge.
#[tokio::test]
async fn a_whole_answer_whose_charge_may_be_on_the_disk_is_refused_and_the_next_one_is_not_begun() {
    let disk = FailingSync::serve().await;
    let client = disk.serving.client(&disk.installation);
    let answer = client.post(CHAT, &chat(false)).await;
    let price = micros(&answer.json()["x_svc"]["credits_used"]);
    assert!(price > 0);
    // A request under way, whose hold is to be placed when the store has failed.
    let address: SocketAddr = disk.serving.url["http://".len()..]
        .parse()
        .expect("an address");
    let mut late = RawClient::connect(address).await;
    let (key, body) = (&disk.installation.key, chat(false).to_string());
    let (most, last) = body.split_at(body.len() - 1);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    late.send(head + most).await;
    disk.fail();
    let refused = client.post(CHAT, &chat(false)).await;
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert_eq!(refused.json()["error"]["code"], "store_unavailable");
    late.send(last).await;
    let (head, body) = late.read_answer().await;
    let body = String::from_utf8_lossy(&body);
    assert_eq!(head.status(), 503, "{body}");
    assert!(body.contains("store_unavailable"), "{body}");
    assert_eq!(disk.installation.provider.calls().len(), 2, "{body}");
    assert_eq!(disk.charged().await, 2 * price);
}

#[tokio::test]
async fn a_stream_whose_charge_may_be_on_the_disk_ends_with_an_error() {
    let disk = FailingSync::serve().await;
    let client = disk.serving.client(&disk.installation);
    let (events, _) = client.stream(CHAT, &chat(true)).await.rest().await;
    let [.., last, done] = &events[..] else {
        panic!("a stream of {} events", events.len());
    };
    assert!(done.is_done());
    let price = micros(&last.json()["x_svc"]["credits_used"]);
    let provider = &disk.installation.provider;
    provider.script(Script::hold(9, "middle"));
    let mut stream = client.stream(CHAT, &chat(true)).await;
    stream.next_event().await.expect("the role");
    provider.gate("middle").reached_by(1).await;
    disk.fail();
    provider.gate("middle").open();
    let (events, _) = stream.rest().await;
    let last = events.last().expect("events").data();
    assert!(last.contains("store_unavailable"), "{last}");
    assert_eq!(disk.charged().await, 2 * price);
}
