//! A node without access to the changes of other nodes: the node refuses credentials rather than accept revoked credentials.

use tollgate_clock::Clock;
use tollgate_testing::{Answer, Client, DatabaseLink, Postgres, within};

use super::installation::Serving;
use super::nodes::{Cluster, FEED_AGE};

const FEED: &str = "tollgate_node_feed_age_seconds";
const LEASE: &str = "tollgate_node_lease_age_seconds";

/// A metric in seconds.
async fn seconds(node: &Serving, name: &str) -> f64 {
    let page = Client::new(&node.admin_url).get("/metrics").await;
    let mut lines = page.text().lines();
    let number = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    number.expect("the metric").parse().expect("a number")
}

/// A cluster of two nodes. The second node reaches the database through a link.
async fn linked_cluster() -> (Cluster, DatabaseLink) {
    let server = Postgres::shared();
    let database = server.database();
    let link = DatabaseLink::start(server.folder());
    let linked = link.url(database.rsplit('/').next().expect("a name"));
    let mut cluster = Cluster::stopped(&database, "", "", &[]).await;
    let first = cluster.serve("a").await;
    let mut command = cluster.command("b", &["serve"]);
    command.env("TOLLGATE__STORE__URL", linked);
    let second = cluster.installation.serve_as(command).await;
    cluster.nodes = vec![first, second];
    (cluster, link)
}

/// A request in need of a credential only.
async fn authenticated(client: &Client) -> Answer {
    client.get("/v1/models").await
}

async fn ready(node: &Serving) -> Answer {
    Client::new(&node.admin_url).get("/ready").await
}

async fn becomes_ready(node: &Serving) {
    let is_ready = async { while ready(node).await.status != 200 {} };
    within("a node that is ready", is_ready).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_cannot_read_the_changes_of_others_refuses_every_credential_after_two_seconds()
{
    let (cluster, link) = linked_cluster().await;
    // Without repeats: the refusals are counted.
    let client = Client::new(&cluster.nodes[1].url).with_key(&cluster.installation.key);
    // No charge: a commit interrupted by the stall keeps the shared rows locked until the server ends the commit.
    let is_served = async { while authenticated(&client).await.status != 200 {} };
    within("an accepted key", is_served).await;
    becomes_ready(&cluster.nodes[1]).await;
    let account = &cluster.installation.account;
    let keys = cluster
        .ask("a", &["key", "list", "--account", account])
        .await;
    let id = keys[0]["id"].as_str().expect("an id").to_owned();

    link.stall();
    let clock = Clock::system();
    let stalled = clock.elapsed();
    // During the revocation, and until well after the permitted delay of the node.
    let asking = async {
        let mut refused = 0;
        while refused < 20 {
            let began = clock.elapsed() - stalled;
            let answer = authenticated(&client).await;
            match answer.status {
                200 => assert!(began < FEED_AGE, "accepted {began:?} after the last news"),
                503 => {
                    assert_eq!(answer.json()["error"]["code"], "store_unavailable");
                    assert_eq!(answer.header("retry-after"), Some("1"));
                    refused += 1;
                }
                other => panic!("{other}: {}", answer.text()),
            }
        }
    };
    let revoke = ["key", "revoke", "--key", &id];
    let revoking = cluster.ask("a", &revoke);
    within("refusals", async { tokio::join!(asking, revoking) }).await;
    let answer = ready(&cluster.nodes[1]).await;
    assert_eq!(answer.status, 503);
    let reason = "the changes of other nodes cannot be read from the database";
    assert!(answer.text().contains(reason), "{}", answer.text());
    // The node's metrics do not wait for the database.
    assert!(seconds(&cluster.nodes[1], FEED).await >= 2.0);
    assert!(seconds(&cluster.nodes[0], FEED).await < 2.0);
    // The lease is renewed every two seconds: a greater age is significant.
    let is_late = async { while seconds(&cluster.nodes[1], LEASE).await < 2.5 {} };
    within("the age of the lease", is_late).await;
    // The first node knows the revocation at once.
    assert_eq!(authenticated(&cluster.client(0)).await.status, 401);

    link.restore();
    // The held-back answer is as old as the query: the answer makes the node current for the rest of two seconds, never for longer.
    let refused = async {
        loop {
            let began = clock.elapsed() - stalled;
            let answer = authenticated(&client).await;
            match answer.status {
                503 => {}
                401 => break,
                200 => assert!(began < FEED_AGE, "accepted {began:?} after the last news"),
                other => panic!("{other}: {}", answer.text()),
            }
        }
    };
    within("the news", refused).await;
    becomes_ready(&cluster.nodes[1]).await;
    let is_read = async { while seconds(&cluster.nodes[1], FEED).await >= 2.0 {} };
    within("the age of the feed", is_read).await;
    let is_renewed = async { while seconds(&cluster.nodes[1], LEASE).await > 2.5 {} };
    within("a renewal of the lease", is_renewed).await;
    cluster.audit();
}
