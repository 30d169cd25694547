//! A certificate authority that speaks ACME: Debian's `pebble`, the test server of Let's Encrypt, which validates challenges over real
//! connections. A relay in front of it can misbehave, and adds renewal information, which this version of pebble does not have.
//!
//! Every name resolves to this machine, and the ports 80 and 443 that pebble connects to are forwarded to the gateway under test.

mod dns;
mod forward;
mod relay;

use std::net::SocketAddr;
use std::process::Command;

use serde_json::json;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

use crate::Certificate;
use crate::client::Client;
use crate::guard::within;
use crate::ports::free_port;
use crate::process::Process;
use forward::Forward;
use relay::Relay;
pub use relay::{AcmeCall, Misbehaviour};

/// The id and the MAC key of the external account that an authority knows, as it gives them to operators.
pub const EXTERNAL_ACCOUNT: (&str, &str) = (
    "kid-1",
    "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W",
);

/// An authority on loopback. It ends when this is dropped.
pub struct Authority {
    relay: Relay,
    http: Forward,
    tls: Forward,
    management: String,
    ca: Certificate,
    _pebble: Process,
    _dns: AbortOnDrop,
    _folder: TempDir,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Authority {
    /// Starts an authority whose certificates are valid for so many seconds. With `external`, accounts need [`EXTERNAL_ACCOUNT`].
    ///
    /// # Panics
    ///
    /// When `pebble` is not installed (Debian's package of that name), or does not start.
    pub async fn start(validity_secs: u32, external: bool) -> Authority {
        let folder = tempfile::tempdir().expect("a folder");
        let ca = Certificate::for_localhost();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).expect("the folder takes files");
            path
        };
        let (dns_address, dns) = dns::start().await;
        let (http, tls) = (Forward::start().await, Forward::start().await);
        let ports = [free_port(), free_port()].map(|port| port.expect("a free port"));
        let [own, management] = ports.map(|port| format!("127.0.0.1:{port}"));
        let settings = json!({"pebble": {
            "listenAddress": own,
            "managementListenAddress": management,
            "certificate": file("cert.pem", &ca.cert_pem),
            "privateKey": file("key.pem", &ca.key_pem),
            "httpPort": http.port(),
            "tlsPort": tls.port(),
            "ocspResponderURL": "",
            "externalAccountBindingRequired": external,
            "externalAccountMACKeys": {EXTERNAL_ACCOUNT.0: EXTERNAL_ACCOUNT.1},
            "certificateValidityPeriod": validity_secs,
        }});
        let settings = file("pebble.json", &settings.to_string());
        let mut command = Command::new("pebble");
        command
            .args(["-strict", "-dnsserver", &dns_address.to_string(), "-config"])
            .arg(settings)
            .envs([
                ("PEBBLE_VA_NOSLEEP", "1"),
                ("PEBBLE_WFE_NONCEREJECT", "0"),
                // Each order is validated anew.
                ("PEBBLE_AUTHZREUSE", "0"),
            ]);
        let pebble =
            Process::spawn(&mut command).expect("pebble is installed (Debian's package `pebble`)");
        let started = tokio::task::spawn_blocking(move || {
            pebble.line_where("the start", |line| {
                line.contains("ACME directory available")
            });
            pebble
        });
        let mut pebble = started.await.expect("pebble starts");
        let [address, management_address] =
            [&own, &management].map(|text| text.parse::<SocketAddr>().expect("an address"));
        // It writes that line before it listens.
        for address in [address, management_address] {
            let listening = async {
                while TcpStream::connect(address).await.is_err() {
                    assert!(pebble.has_ended().is_none(), "{}", pebble.output());
                }
            };
            within("pebble", listening).await;
        }
        Authority {
            relay: Relay::start(address, &ca).await,
            http,
            tls,
            management: format!("https://localhost:{}", ports[1]),
            ca,
            _pebble: pebble,
            _dns: AbortOnDrop(dns),
            _folder: folder,
        }
    }

    /// The URL of its directory.
    pub fn directory(&self) -> String {
        format!("https://localhost:{}/dir", self.relay.port())
    }

    /// The authority of the certificate of its directory, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca.ca_pem
    }

    /// The root of the certificates that it issues, PEM.
    pub async fn root(&self) -> String {
        let client = Client::new(&self.management).with_tls(&self.ca.ca_pem);
        client.get("/roots/0").await.text().to_owned()
    }

    /// Forwards the ports 80 and 443 of every name to these addresses. Until then validations wait.
    pub fn forward_to(&self, http: SocketAddr, tls: SocketAddr) {
        self.http.set(http);
        self.tls.set(tls);
    }

    /// Misbehaves at the next calls of this kind, so many times.
    pub fn misbehave(&self, at: AcmeCall, how: Misbehaviour, times: u32) {
        self.relay.misbehave(at, how, times);
    }

    /// Calls of a kind so far.
    pub fn calls(&self, of: AcmeCall) -> u64 {
        self.relay.calls(of)
    }

    /// Waits for so many calls of a kind.
    pub async fn called(&self, of: AcmeCall, times: u64) {
        self.relay.called(of, times).await;
    }

    /// Has renewal information from now on (RFC 9773): this window, in seconds since 1970.
    pub fn suggest_renewal(&self, start: i64, end: i64) {
        self.relay.suggest_renewal(start, end);
    }

    /// The certificates that orders have replaced, by their identifiers.
    pub fn replaced(&self) -> Vec<String> {
        self.relay.replaced()
    }
}
