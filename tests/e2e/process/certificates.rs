//! Certificates in files: read again after a change, without a reload.

use tollgate_testing::{Certificate, Client};

use super::installation::{Installation, Serving};
use super::reload::{edit, element};

const NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
const VERSION: &str = "tollgate_settings_version";

/// Waits for a line of the log with `words`, without blocking the stand-ins.
async fn logged(serving: Serving, words: &'static [&'static str]) -> Serving {
    let read = tokio::task::spawn_blocking(move || {
        let is_it = |line: &str| words.iter().all(|word| line.contains(word));
        serving.process.line_where("the certificates", is_it);
        serving
    });
    read.await.expect("the line comes")
}

/// Whether a handshake succeeds for a client with trust in the authority alone.
async fn is_served(serving: &Serving, installation: &Installation, ca_pem: &str) -> bool {
    let client = Client::new(&serving.tls_url).with_key(&installation.key);
    let client = client.with_tls(ca_pem);
    let request = client.request("GET", "/v1/models", Default::default());
    client.try_send(request).await.is_ok()
}

fn put(installation: &Installation, name: &str, pem: &str) {
    std::fs::write(installation.folder.path().join(name), pem).expect("the folder takes files");
}

/// Replaces the certificate in the usual order of a renewal by hand, and asserts the used certificate, the log and the metrics.
async fn renewed(installation: &Installation, serving: Serving) -> Serving {
    let new = Certificate::until(&NAMES, (2300, 1, 1));
    assert!(is_served(&serving, installation, &installation.ca_pem).await);

    // The chain is written, the key not yet.
    put(installation, "certificate.pem", &new.cert_pem);
    let words = &[
        "ERROR",
        "reloading certificate failed",
        "key.pem` is the key of another certificate",
    ];
    let serving = logged(serving, words).await;
    assert!(is_served(&serving, installation, &installation.ca_pem).await);
    assert!(!is_served(&serving, installation, &new.ca_pem).await);

    put(installation, "key.pem", &new.key_pem);
    let serving = logged(serving, &["INFO", "reloaded certificate", "2300-01-01"]).await;
    assert!(is_served(&serving, installation, &new.ca_pem).await);
    assert!(!is_served(&serving, installation, &installation.ca_pem).await);
    let file = installation.folder.path().join("certificate.pem");
    let expiry = format!(
        "tollgate_certificate_expiry_timestamp_seconds{{certificate=\"{}\"}}",
        file.display()
    );
    // The start of 2300.
    assert_eq!(serving.metric(&expiry).await, 10_413_792_000);
    let failures = serving.process.output();
    let failures = failures.matches("reloading certificate failed").count();
    assert_eq!(failures, 1, "one line for the pair that did not match");
    serving
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_reload_and_without_other_changes() {
    let installation = Installation::new("").await;
    let serving = installation.serve().await;
    edit(&installation, |table| {
        let price = element(table, "model", 0)["price"].as_table_mut();
        price
            .expect("a price")
            .insert("output".into(), "700".into());
    });
    let serving = renewed(&installation, serving).await;
    assert_eq!(serving.metric(VERSION).await, 1, "the price waits");
    let diff = installation.run(&["settings", "diff"]).await;
    assert!(diff.contains("price.output"), "{diff}");
    assert!(!diff.contains(".tls["), "it is in force: {diff}");
}

#[tokio::test]
async fn a_renewed_certificate_is_used_where_the_settings_are_watched() {
    let installation = Installation::new("[server]\nwatch_settings = true").await;
    let serving = installation.serve().await;
    let serving = renewed(&installation, serving).await;
    let reloads = "tollgate_settings_reloads_total{result=\"failed\"}";
    assert_eq!(serving.metric(reloads).await, 0);
    assert_eq!(serving.metric(VERSION).await, 1, "the settings stay");
}

/// The admin address has a separate certificate, and a file missing for a moment is no certificate.
#[tokio::test]
async fn a_renewed_certificate_of_the_admin_address_is_used_without_a_reload() {
    let installation = Installation::new("").await;
    let old = Certificate::for_localhost();
    put(&installation, "admin.pem", &old.cert_pem);
    put(&installation, "admin-key.pem", &old.key_pem);
    edit(&installation, |table| {
        let tls = "certificate = 'admin.pem'\nkey = 'admin-key.pem'";
        let admin = table["admin"].as_table_mut().expect("a table");
        admin.insert("tls".into(), super::reload::toml_of(tls));
    });
    let serving = installation.serve().await;
    let address = serving.admin_url.rsplit(':').next().expect("a port");
    let admin_url = format!("https://localhost:{address}");
    let is_live = async |ca_pem: &str| {
        let client = Client::new(&admin_url).with_tls(ca_pem);
        let request = client.request("GET", "/live", Default::default());
        client.try_send(request).await.is_ok()
    };
    assert!(is_live(&old.ca_pem).await);
    let new = Certificate::for_localhost();
    let chain = installation.folder.path().join("admin.pem");
    std::fs::remove_file(&chain).expect("it was there");
    let words = &["reloading certificate failed", "admin.pem` cannot be read"];
    let serving = logged(serving, words).await;
    assert!(is_live(&old.ca_pem).await);
    put(&installation, "admin-key.pem", &new.key_pem);
    put(&installation, "admin.pem", &new.cert_pem);
    let _serving = logged(serving, &["reloaded certificate", "admin.pem"]).await;
    assert!(is_live(&new.ca_pem).await);
    assert!(!is_live(&old.ca_pem).await);
}
