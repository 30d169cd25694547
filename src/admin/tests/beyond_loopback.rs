//! An admin address beyond loopback: TLS, and the requests in need of a token or a certificate. The socket itself is on loopback.

use tollgate_identity::Digest;
use tollgate_testing::{Certificate, Client};

use super::*;
use crate::config::{AdminRole, AdminTls, AdminToken};

const MONITOR: &str = "9d1b7f0a5c3e48d2a6b4c8e0f1a2b3c4";
const READ: &str = "2f6c1e6c9a5f4b8e93d07c1ab54e6f70";
const OPERATE: &str = "c0a1b2d3e4f5061728394a5b6c7d8e9f";

struct Beyond {
    admin: Admin,
    own: Certificate,
    _folder: tempfile::TempDir,
}

impl Beyond {
    /// Starts with the authorities of client certificates.
    fn start(authorities: Option<&Certificate>) -> Beyond {
        let folder = tempfile::tempdir().expect("a folder");
        let own = Certificate::for_localhost();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("the folder takes files");
            path
        };
        let mut tls = format!(
            "[admin.tls]\ncertificate = '{}'\nkey = '{}'\n",
            write("certificate.pem", &own.cert_pem).display(),
            write("key.pem", &own.key_pem).display()
        );
        if let Some(authorities) = authorities {
            let file = write("clients.pem", &authorities.ca_pem);
            tls += &format!("client_ca = '{}'\n", file.display());
        }
        let settings = config::load_text(
            Path::new("t.toml"),
            &tls,
            &Environment::default(),
            &Declarations::default(),
        );
        let tls: Option<AdminTls> = settings.expect("good settings").admin.tls;
        let token = |name: &str, role, token: &str| AdminToken {
            name: Arc::from(name),
            role,
            digest: Digest::of(token.as_bytes()),
        };
        let socket = folder.path().join("t.db.sock");
        let admin = start_with(&socket, Arc::default(), Stuck::default(), |settings| {
            settings.address = "192.0.2.1:9090".parse().expect("an address");
            settings.tls = tls;
            settings.tokens = vec![
                token("monitoring", AdminRole::Monitor, MONITOR),
                token("support", AdminRole::Read, READ),
                token("ops", AdminRole::Operate, OPERATE),
            ];
        });
        Beyond {
            admin: admin.expect("it starts"),
            own,
            _folder: folder,
        }
    }

    fn client(&self) -> Client {
        Client::new(&format!(
            "https://localhost:{}",
            self.admin.address().port()
        ))
    }

    /// The status of a request.
    async fn status(&self, client: Client, line: (&str, &str)) -> Result<u16, ()> {
        let request = client.request(line.0, line.1, Default::default());
        let answer = client.try_send(request).await;
        answer.map(|answer| answer.status).map_err(|_| ())
    }
}

#[tokio::test]
async fn without_a_token_only_the_status_is_shown() {
    let beyond = Beyond::start(None);
    let anonymous = || beyond.client().with_tls(&beyond.own.ca_pem);
    let holder = |token: &str| anonymous().with_key(token);
    for (line, expected) in [
        (("GET", "/live"), [200, 200, 200, 200]),
        (("GET", "/ready"), [503, 503, 503, 503]),
        (("GET", "/metrics"), [401, 200, 200, 200]),
        (("GET", "/providers"), [401, 200, 200, 200]),
        (("GET", "/cache"), [401, 403, 200, 200]),
        (("DELETE", "/cache?all"), [401, 403, 403, 200]),
        (("GET", "/other"), [401, 404, 404, 404]),
    ] {
        let clients = [anonymous(), holder(MONITOR), holder(READ), holder(OPERATE)];
        for (client, expected) in clients.into_iter().zip(expected) {
            assert_eq!(beyond.status(client, line).await, Ok(expected), "{line:?}");
        }
    }
    let reasons = holder(MONITOR).get("/ready").await.json()["reasons"].clone();
    assert_eq!(reasons, serde_json::json!(["draining"]));
    let ready = anonymous().get("/ready").await;
    assert_eq!(
        ready.json(),
        serde_json::json!({ "ready": false }),
        "no reasons"
    );
    let guess = anonymous().with_key("guess");
    let ready = guess.get("/ready").await;
    assert_eq!(ready.json(), serde_json::json!({ "ready": false }));
    assert_eq!(beyond.status(guess, ("GET", "/metrics")).await, Ok(401));
    // Plain text is answered by no response.
    let plain = Client::new(&format!("http://{}", beyond.admin.address()));
    assert_eq!(beyond.status(plain, ("GET", "/live")).await, Err(()));
}

#[tokio::test]
async fn with_authorities_a_client_needs_a_certificate_and_for_changes_a_token() {
    let (ours, other) = (Certificate::for_localhost(), Certificate::for_localhost());
    let beyond = Beyond::start(Some(&ours));
    let known = || beyond.client().with_tls_as(&beyond.own.ca_pem, &ours);
    for client in [
        beyond.client().with_tls(&beyond.own.ca_pem),
        beyond.client().with_tls_as(&beyond.own.ca_pem, &other),
    ] {
        let client = client.with_key(OPERATE);
        assert_eq!(beyond.status(client, ("GET", "/live")).await, Err(()));
    }
    for (line, expected) in [
        (("GET", "/live"), 200),
        (("GET", "/metrics"), 200),
        (("GET", "/providers"), 200),
        (("DELETE", "/cache?all"), 401),
    ] {
        assert_eq!(beyond.status(known(), line).await, Ok(expected), "{line:?}");
    }
    let ready = known().get("/ready").await.json();
    assert_eq!(ready["reasons"], serde_json::json!(["draining"]));
    let client = known().with_key(OPERATE);
    assert_eq!(
        beyond.status(client, ("DELETE", "/cache?all")).await,
        Ok(200)
    );
}

#[tokio::test]
async fn a_client_that_does_not_finish_its_handshake_keeps_no_place() {
    let beyond = Beyond::start(None);
    let waiting: Vec<TcpStream> =
        std::iter::repeat_with(|| TcpStream::connect(beyond.admin.address()).expect("it listens"))
            .take(64)
            .collect();
    // Their places are free again after the time limit of a handshake.
    let client = beyond.client().with_tls(&beyond.own.ca_pem);
    assert_eq!(beyond.status(client, ("GET", "/live")).await, Ok(200));
    drop(waiting);
}
