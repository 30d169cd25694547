//! Values of metrics of the store and of the process, compared with independent sources.

use tollgate_testing::{Client, within};

use super::installation::{Installation, Serving};
use super::rollback::stop;
use crate::rig::{CHAT, PRICE_OF_A_CHAT, chat};

const OWED: &str = "tollgate_owed_microcredits";
const BYTES: &str = "tollgate_store_bytes";
const SYNCS: &str = "tollgate_store_sync_seconds_count";

/// The number of a line, with the fraction.
async fn number(serving: &Serving, name: &str) -> Option<f64> {
    let page = Client::new(&serving.admin_url).get("/metrics").await;
    let mut lines = page.text().lines();
    let number = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(number.parse().expect("a number"))
}

/// The metric is read at the start, and once a minute.
#[tokio::test]
async fn owed_credit_is_the_sum_of_all_accounts() {
    let installation = Installation::new("").await;
    installation.account("500.5").await;
    let sum = 1_500_500_000;
    let serving = installation.serve().await;
    serving.metric_becomes(OWED, sum).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    stop(serving).await;
    let serving = installation.serve().await;
    let left = sum - u64::try_from(PRICE_OF_A_CHAT).expect("a price");
    serving.metric_becomes(OWED, left).await;
}

/// The size is the size of the database with the log: the first commits of a start are not in the main file yet.
#[tokio::test]
async fn the_size_of_the_store_is_that_of_its_file() {
    let installation = Installation::new("").await;
    let main = || {
        let found = std::fs::metadata(installation.database());
        found.expect("the file is there").len()
    };
    let before = main();
    let serving = installation.serve().await;
    let is_read = async {
        loop {
            if let Some(bytes) = number(&serving, BYTES).await {
                return bytes as u64;
            }
        }
    };
    let bytes = within("the size of the store", is_read).await;
    let log = installation.database().with_extension("db-wal");
    let log = std::fs::metadata(log).map_or(0, |log| log.len());
    assert!(bytes >= before, "{bytes} of at least {before}");
    assert!(bytes <= main() + log, "{bytes} of {} + {log}", main());
    assert_eq!(bytes % 4096, 0, "whole pages");
}

#[tokio::test]
async fn a_commit_is_one_wait_for_the_disk_or_more() {
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    let before = serving.metric(SYNCS).await;
    let answer = serving.client(&installation).post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let after = serving.metric(SYNCS).await;
    assert!(after > before, "{after} after {before}");
    let seconds = number(&serving, "tollgate_store_sync_seconds_sum").await;
    assert!(seconds.is_some_and(|seconds| seconds > 0.0), "{seconds:?}");
}

#[tokio::test]
async fn processor_time_grows_with_work() {
    const CPU: &str = "tollgate_cpu_seconds_total";
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    let client = serving.client(&installation);
    let start = number(&serving, CPU).await.expect("a kernel that has it");
    let grows = async {
        // Processor time is counted in ticks of ten milliseconds.
        while number(&serving, CPU).await.expect("a number") < start + 0.05 {
            client.get("/v1/models").await;
        }
    };
    within("processor time of 50 ms", grows).await;
}
