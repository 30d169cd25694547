//! Settings of listeners: client certificates, and the probes of a load balancer.

use std::sync::atomic::Ordering::Relaxed;

use tollgate_testing::{Certificate, Client};

use crate::rig::{CHAT, Rig, chat};

#[tokio::test]
async fn with_client_ca_only_clients_with_a_certificate_of_it_are_served() {
    let folder = tollgate_testing::tempdir().expect("a folder");
    let file = folder.path().join("clients.pem");
    let (ours, other) = (Certificate::for_localhost(), Certificate::for_localhost());
    std::fs::write(&file, &ours.ca_pem).expect("the folder takes files");
    let settings = format!(
        "[[listener]]\n[[listener]]\nclient_ca = '{}'",
        file.display()
    );
    let rig = Rig::with(&settings).await;
    let url = format!("https://localhost:{}", rig.tls.port());
    let client = || Client::new(&url).with_key(&rig.key);
    for client in [client(), client().with_http2()] {
        let answer = client
            .with_tls_as(&rig.ca_pem, &ours)
            .post(CHAT, &chat(false))
            .await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.record_charge(&answer.json());
    }
    for client in [
        client().with_tls(&rig.ca_pem),
        client().with_tls_as(&rig.ca_pem, &other),
    ] {
        let refused = client.try_send(client.request("GET", "/v1/models", Default::default()));
        refused.await.expect_err("the handshake fails");
    }
    let keyless = Client::new(&url).with_tls_as(&rig.ca_pem, &ours);
    assert_eq!(
        keyless.get("/v1/models").await.status,
        401,
        "it needs a key"
    );
    let plain = rig.client().get("/v1/models").await;
    assert_eq!(plain.status, 200, "the other listener is as before");
    rig.finish().await;
}

#[tokio::test]
async fn a_listener_with_health_answers_probes_without_reasons() {
    let rig = Rig::with("[[listener]]\nhealth = true\n[store]\ndurability = \"process\"").await;
    let [(_, http1), (_, http2), (_, tls), _] = rig.clients();
    for client in [http1, http2] {
        for (path, word) in [("/live", "live\n"), ("/ready", "ready\n")] {
            let answer = client.get(path).await;
            assert_eq!((answer.status, answer.text()), (200, word));
            assert_eq!(answer.header("cache-control"), Some("no-store"));
        }
        assert_eq!(client.get("/ready/").await.status, 404);
    }
    assert_eq!(tls.get("/ready").await.status, 404, "a listener without it");
    rig.finish().await;

    // Without the gateway's own check of the disk: the test reports a full disk.
    let rig = Rig::with("[[listener]]\nhealth = true\n[store]\nfree_bytes_min = 0").await;
    let client = rig.client();
    assert_eq!(client.get("/ready").await.status, 200);
    let is_disk_low = &rig.books.store.gauges().is_disk_low;
    is_disk_low.store(true, Relaxed);
    let answer = client.get("/ready").await;
    assert_eq!(
        (answer.status, answer.text()),
        (503, "not ready\n"),
        "the reasons are for operators"
    );
    assert_eq!(client.get("/live").await.status, 200);
    is_disk_low.store(false, Relaxed);
    rig.finish().await;
}
