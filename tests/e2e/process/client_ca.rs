//! Authorities of clients' certificates, replaced by a reload.

use std::net::SocketAddr;

use tollgate_testing::{Certificate, Client, Script};
use toml::{Table, Value};

use super::installation::{Installation, ended};
use super::reload::{edit, element, toml_of};
use crate::rig::{CHAT, chat};

/// The status of a request; `None` for a failed handshake.
async fn status(client: &Client) -> Option<u16> {
    let request = client.request("GET", "/v1/models", Default::default());
    let answer = client.try_send(request).await;
    answer.ok().map(|answer| answer.status)
}

async fn output(installation: &Installation, words: &[&str]) -> (Option<i32>, String) {
    let mut process = installation.spawn(installation.command(words));
    let status = ended(&mut process).await;
    (status.code(), process.output())
}

#[tokio::test]
async fn client_certificates_are_verified_against_the_authorities_of_the_last_reload() {
    let installation = Installation::new("").await;
    let file = installation.folder.path().join("clients.pem");
    let write = |text: &str| std::fs::write(&file, text).expect("the folder takes files");
    let (old, new) = (Certificate::for_localhost(), Certificate::for_localhost());
    write(&old.ca_pem);
    edit(&installation, |table| {
        element(table, "listener", 1).insert("client_ca".into(), "clients.pem".into());
    });
    let serving = installation.serve().await;
    let client = || Client::new(&serving.tls_url).with_key(&installation.key);
    let by = |own: &Certificate| client().with_tls_as(&installation.ca_pem, own);
    // A client has the TLS sessions of earlier connections, and offers a resumption.
    let (by_old, by_new) = (by(&old), by(&new));
    assert_eq!(status(&by_old).await, Some(200));
    assert_eq!(status(&by_new).await, None);
    let open = by(&old).with_http2();
    assert_eq!(status(&open).await, Some(200));
    installation.provider.script(Script::pace("piece").once());
    installation.provider.gate("piece").release(1);
    let mut stream = by_old.stream(CHAT, &chat(true)).await;
    assert_eq!(stream.status, 200);

    write("no certificate");
    let (code, refused) = output(&installation, &["reload"]).await;
    assert_eq!(code, Some(1));
    assert!(refused.contains("clients.pem"), "{refused}");
    assert!(refused.contains("listener.1.client_ca"), "{refused}");
    assert_eq!(status(&by_old).await, Some(200), "the earlier ones stay");
    assert_eq!(status(&by_new).await, None);

    write(&new.ca_pem);
    let (code, listed) = output(&installation, &["settings", "diff"]).await;
    assert_eq!(code, Some(0), "none needs a new process: {listed}");
    assert!(
        listed.contains("listener[127.0.0.1:0].client_ca: changed\n"),
        "{listed}"
    );
    installation.run(&["reload"]).await;
    assert_eq!(status(&by_old).await, None, "no session is resumed either");
    assert_eq!(status(&by_new).await, Some(200));
    assert_eq!(status(&open).await, Some(200), "open connections stay");
    installation.provider.gate("piece").open();
    let (events, end) = stream.rest().await;
    assert!(events.last().expect("events").is_done(), "{end:?}");

    // Two authorities, for the time of a change at the clients. Next no certificate is requested, and at last a single authority.
    write(&format!("{}{}", old.ca_pem, new.ca_pem));
    installation.run(&["reload"]).await;
    assert_eq!(status(&by_old).await, Some(200));
    assert_eq!(status(&by_new).await, Some(200));
    edit(&installation, |table| {
        element(table, "listener", 1).remove("client_ca");
    });
    installation.run(&["reload"]).await;
    let anyone = client().with_tls(&installation.ca_pem);
    assert_eq!(status(&anyone).await, Some(200));
    edit(&installation, |table| {
        element(table, "listener", 1).insert("client_ca".into(), "clients.pem".into());
    });
    installation.run(&["reload"]).await;
    assert_eq!(status(&anyone).await, None, "no session is resumed either");
    assert_eq!(status(&by_old).await, Some(200));
}

/// Listeners are recognized by their addresses: a listener without authorities must not get the place of a listener with authorities.
#[tokio::test]
async fn listeners_that_change_places_in_the_file_keep_certificates_and_authorities() {
    let installation = Installation::new("").await;
    let folder = installation.folder.path();
    let own = Certificate::for_names(&["127.0.0.2"]);
    for (name, text) in [
        ("second.pem", &own.cert_pem),
        ("second-key.pem", &own.key_pem),
        ("clients.pem", &own.ca_pem),
    ] {
        std::fs::write(folder.join(name), text).expect("the folder takes files");
    }
    let listeners = |change: &dyn Fn(&mut Vec<Value>)| {
        edit(&installation, |table: &mut Table| {
            change(table["listener"].as_array_mut().expect("a list"));
        });
    };
    listeners(&|list| {
        list.push(toml_of(
            "address = '127.0.0.2:0'\nclient_ca = 'clients.pem'\n\
             tls = [{ certificate = 'second.pem', key = 'second-key.pem' }]",
        ));
    });
    let serving = installation.serve().await;
    let log = serving.process.output();
    let address = log
        .split("listening address=")
        .find(|rest| rest.starts_with("127.0.0.2:"));
    let address = address.and_then(|rest| rest.split(' ').next());
    let address: SocketAddr = address.and_then(|text| text.parse().ok()).expect("its own");
    let second = Client::new(&format!("https://{address}")).with_key(&installation.key);
    let second = second.with_tls(&own.ca_pem);
    let first = Client::new(&serving.tls_url).with_key(&installation.key);
    let first = first.with_tls(&installation.ca_pem);
    assert_eq!(status(&first).await, Some(200));
    assert_eq!(status(&second).await, None, "it asks for a certificate");

    listeners(&|list| list.swap(1, 2));
    let reloaded = installation.ask(&["reload"]).await;
    assert_eq!(reloaded["changes"].as_array().map(Vec::len), Some(0));
    assert_eq!(status(&first).await, Some(200));
    assert_eq!(status(&second).await, None, "it asks for one still");
    let known = Client::new(&format!("https://{address}")).with_key(&installation.key);
    let known = known.with_tls_as(&own.ca_pem, &own);
    assert_eq!(status(&known).await, Some(200));
}
