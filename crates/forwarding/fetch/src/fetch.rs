//! Fetcher of documents from untrusted URLs, protected against SSRF: public addresses only, no redirects, no proxy.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, StatusCode, header};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::{Client, redirect, retry};
use tollgate_clock::Clock;

use crate::address::DocumentUrl;
use crate::public::is_public;
use crate::slots::Slots;

/// Timeout of a fetch: DNS lookup, connection, TLS and answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Bounds of the freshness lifetime, seconds, whatever the answer says.
const FRESH: std::ops::RangeInclusive<u64> = 300..=86_400;

/// Resolves names to addresses that may be connected to.
type Lookup = Arc<dyn Fn(String) -> LookupFuture + Send + Sync>;
type LookupFuture =
    std::pin::Pin<Box<dyn std::future::Future<Output = std::io::Result<Vec<IpAddr>>> + Send>>;

/// Fetches documents, with bounded concurrency.
pub struct Fetcher {
    client: Client,
    bytes_max: usize,
    slots: Slots,
    clock: Clock,
}

/// A document and its freshness lifetime.
#[derive(Debug)]
pub struct Fetched {
    /// Its bytes.
    pub body: Vec<u8>,
    /// The lifetime, from now on.
    pub fresh: Duration,
}

/// Why a fetcher could not be created.
#[derive(Debug, thiserror::Error)]
#[error("could not set up the document fetcher")]
pub struct SetupError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Why a fetch failed.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The concurrency limit is reached, or a slow fetch lost its slot to other fetches.
    #[error("too many concurrent document fetches")]
    TooMany,
    /// No connection, no TLS, no answer, or a host that is not public.
    #[error("the host could not be reached at a public address")]
    Call(#[source] reqwest::Error),
    /// A status other than 200, redirects included.
    #[error("the host answered with status {0}")]
    Status(StatusCode),
    /// A media type other than JSON.
    #[error("the document is not JSON")]
    MediaType,
    /// The document exceeds the size limit.
    #[error("the document has more than {0} bytes")]
    Large(usize),
}

impl Fetcher {
    /// A fetcher from the public internet, for documents of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize, clock: Clock) -> Result<Fetcher, SetupError> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        let lookup: Lookup = Arc::new(|name| Box::pin(public_addresses(name)));
        Fetcher::over(roots, lookup, bytes_max, clock)
    }

    /// A fetcher with connections to the result of `lookup`. Only [`Fetcher::new`] is reachable from settings.
    fn over(
        roots: rustls::RootCertStore,
        lookup: Lookup,
        bytes_max: usize,
        clock: Clock,
    ) -> Result<Fetcher, SetupError> {
        let failed = |error: Box<dyn std::error::Error + Send + Sync>| SetupError(error);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.into()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .https_only(true)
            .http1_only()
            .redirect(redirect::Policy::none())
            .retry(retry::never())
            // A proxy would resolve the name again by itself.
            .no_proxy()
            .dns_resolver(Arc::new(PublicResolver(lookup)))
            .timeout(TIMEOUT)
            .pool_max_idle_per_host(0)
            .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| failed(error.into()))?;
        Ok(Fetcher {
            client,
            bytes_max,
            slots: Slots::default(),
            clock,
        })
    }

    /// Fetches a document that a request from the address `requester` needs; no retry.
    pub async fn fetch(
        &self,
        url: &DocumentUrl,
        requester: Option<IpAddr>,
    ) -> Result<Fetched, FetchError> {
        let slot = self.slots.take(requester, self.clock.elapsed());
        let slot = slot.ok_or(FetchError::TooMany)?;
        tokio::select! {
            fetched = self.fetch_document(url) => fetched,
            () = slot.cancelled() => Err(FetchError::TooMany),
        }
    }

    async fn fetch_document(&self, url: &DocumentUrl) -> Result<Fetched, FetchError> {
        let request = self
            .client
            .get(url.url().clone())
            .header(header::ACCEPT, "application/json");
        let mut answer = request.send().await.map_err(FetchError::Call)?;
        if answer.status() != StatusCode::OK {
            return Err(FetchError::Status(answer.status()));
        }
        if !is_json(answer.headers()) {
            return Err(FetchError::MediaType);
        }
        let fresh = freshness(answer.headers());
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(FetchError::Call)? {
            if body.len() + piece.len() > self.bytes_max {
                return Err(FetchError::Large(self.bytes_max));
            }
            body.extend_from_slice(&piece);
        }
        Ok(Fetched { body, fresh })
    }
}

/// DNS resolver that pins the connection to the checked addresses: a changed record (DNS rebinding) has no effect.
struct PublicResolver(Lookup);

impl Resolve for PublicResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let found = (self.0)(name.as_str().to_owned());
        Box::pin(async move {
            let addresses = found.await?;
            // The client fills in the port of the URL.
            let addresses = addresses
                .into_iter()
                .map(|address| SocketAddr::new(address, 0));
            let addresses: Addrs = Box::new(addresses);
            Ok(addresses)
        })
    }
}

/// The addresses of a name; an error unless all are public. A name with mixed addresses would be retried until a private address is used.
async fn public_addresses(name: String) -> std::io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((name, 443)).await?;
    all_public(found.map(|address| address.ip()).collect())
}

fn all_public(addresses: Vec<IpAddr>) -> std::io::Result<Vec<IpAddr>> {
    match addresses.iter().all(|&address| is_public(address)) {
        true => Ok(addresses),
        false => Err(std::io::Error::other(
            "the name resolves to an address that is not public",
        )),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim();
    let essence = essence.to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

/// Freshness lifetime of an answer (`max-age` less `Age`, RFC 9111 section 4.2), within our bounds.
fn freshness(headers: &HeaderMap) -> Duration {
    let number = |text: &str| text.trim().trim_matches('"').parse::<u64>().ok();
    let directives = headers
        .get_all(header::CACHE_CONTROL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|directive| directive.trim().to_ascii_lowercase());
    let mut max_age = None;
    let mut never = false;
    for directive in directives {
        never |= directive == "no-store" || directive == "no-cache";
        if let Some(secs) = directive.strip_prefix("max-age=").and_then(number) {
            max_age.get_or_insert(secs);
        }
    }
    let age = headers.get(header::AGE);
    let age = age.and_then(|age| age.to_str().ok()).and_then(number);
    let secs = match never {
        true => 0,
        false => max_age.unwrap_or(0).saturating_sub(age.unwrap_or(0)),
    };
    Duration::from_secs(secs.clamp(*FRESH.start(), *FRESH.end()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use http::HeaderValue;
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tollgate_testing::Certificate;

    use super::*;

    /// Size limit in these tests.
    const BYTES_MAX: usize = 5 * 1024;

    #[test]
    fn rfc9111_4_2_a_document_is_fresh_for_as_long_as_it_says_within_bounds() {
        for (fields, secs) in [
            (vec![], 300),
            (vec![("cache-control", "max-age=3600")], 3600),
            (
                vec![("cache-control", "public, MAX-AGE=3600"), ("age", "600")],
                3000,
            ),
            (vec![("cache-control", "max-age=10")], 300),
            (vec![("cache-control", "max-age=99999999")], 86_400),
            (vec![("cache-control", "max-age=3600, no-store")], 300),
            (vec![("cache-control", "max-age=x")], 300),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in &fields {
                let name: http::HeaderName = name.parse().expect("a name");
                headers.append(name, HeaderValue::from_static(value));
            }
            assert_eq!(freshness(&headers).as_secs(), secs, "{fields:?}");
        }
    }

    #[test]
    fn a_name_that_also_means_a_special_address_is_not_connected_to() {
        let of = |texts: &[&str]| {
            let addresses = texts.iter().map(|text| text.parse().expect("an address"));
            all_public(addresses.collect())
        };
        assert!(of(&["1.1.1.1", "2606:4700:4700::1111"]).is_ok());
        for special in ["127.0.0.1", "169.254.169.254", "::1", "10.0.0.1"] {
            assert!(of(&[special]).is_err(), "{special}");
            assert!(
                of(&["1.1.1.1", special]).is_err(),
                "{special} with a public one"
            );
        }
    }

    /// Answers one request on each connection with these bytes, over TLS.
    async fn serve(answer: String) -> (Fetcher, u16) {
        serve_over(answer, |_| {
            Box::pin(async { Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]) })
        })
        .await
    }

    async fn serve_over(answer: String, lookup: fn(String) -> LookupFuture) -> (Fetcher, u16) {
        let certificate = Certificate::for_names(&["app.example"]);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let acceptor = tokio_rustls::TlsAcceptor::from(certificate.server_config(&[]));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, answer) = (acceptor.clone(), answer.clone());
                tokio::spawn(async move {
                    let Ok(mut stream) = acceptor.accept(stream).await else {
                        return;
                    };
                    let mut head = [0; 1024];
                    let _ = stream.read(&mut head).await;
                    let _ = stream.write_all(answer.as_bytes()).await;
                    let _ = stream.shutdown().await;
                });
            }
        });
        let mut roots = rustls::RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(certificate.ca_pem.as_bytes());
        roots.add(root.expect("PEM")).expect("a root");
        let fetcher = Fetcher::over(roots, Arc::new(lookup), BYTES_MAX, Clock::system());
        (fetcher.expect("a fetcher"), port)
    }

    async fn fetch(answer: &str) -> Result<Fetched, FetchError> {
        let (fetcher, port) = serve(answer.to_owned()).await;
        let url = format!("https://app.example:{port}/client.json");
        fetcher.fetch(&url.parse().expect("an address"), None).await
    }

    fn answer(status: &str, fields: &str, body: &str) -> String {
        let length = body.len();
        format!(
            "HTTP/1.1 {status}\r\n{fields}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
        )
    }

    const JSON: &str = "content-type: application/json\r\n";

    #[tokio::test]
    async fn a_document_is_fetched_whole_or_not_at_all() {
        let sound = fetch(&answer(
            "200 OK",
            "content-type: application/client+json\r\ncache-control: max-age=600\r\n",
            "{}",
        ))
        .await;
        let sound = sound.expect("a document");
        assert_eq!((&*sound.body, sound.fresh.as_secs()), (&b"{}"[..], 600));
        let most = "x".repeat(BYTES_MAX);
        let most = fetch(&answer("200 OK", JSON, &most))
            .await
            .expect("just fits");
        assert_eq!(most.body.len(), BYTES_MAX);

        let moved = answer("302 Found", "location: https://app.example/other\r\n", "");
        assert!(
            matches!(fetch(&moved).await, Err(FetchError::Status(_))),
            "redirections are not followed"
        );
        let missing = answer("404 Not Found", JSON, "{}");
        assert!(matches!(fetch(&missing).await, Err(FetchError::Status(_))));
        let partial = answer("206 Partial Content", JSON, "{}");
        assert!(matches!(fetch(&partial).await, Err(FetchError::Status(_))));
        let page = answer("200 OK", "content-type: text/html\r\n", "{}");
        assert!(matches!(fetch(&page).await, Err(FetchError::MediaType)));
        let large = answer("200 OK", JSON, &"x".repeat(BYTES_MAX + 1));
        assert!(matches!(
            fetch(&large).await,
            Err(FetchError::Large(BYTES_MAX))
        ));
        // Without a length, and without an end.
        let endless = format!(
            "HTTP/1.1 200 OK\r\n{JSON}connection: close\r\n\r\n{}",
            "x".repeat(100_000)
        );
        assert!(matches!(
            fetch(&endless).await,
            Err(FetchError::Large(BYTES_MAX))
        ));
        let cut = format!("HTTP/1.1 200 OK\r\n{JSON}content-length: 100\r\n\r\n{{}}");
        assert!(matches!(fetch(&cut).await, Err(FetchError::Call(_))));
    }

    #[tokio::test]
    async fn a_host_that_cannot_prove_its_name_is_not_believed() {
        let (fetcher, port) = serve(answer("200 OK", JSON, "{}")).await;
        let url = format!("https://other.example:{port}/client.json");
        let refused = fetcher.fetch(&url.parse().expect("an address"), None).await;
        assert!(matches!(refused, Err(FetchError::Call(_))));
    }

    #[tokio::test]
    async fn what_settings_can_reach_never_connects_to_this_computer() {
        let own = public_addresses(String::from("localhost")).await;
        assert!(own.is_err(), "{own:?}");
        // Certificate and port would be accepted: only the guarded lookup refuses it.
        let (fetcher, port) = serve(answer("200 OK", JSON, "{}")).await;
        let url: DocumentUrl = format!("https://app.example:{port}/client.json")
            .parse()
            .expect("an address");
        assert!(fetcher.fetch(&url, None).await.is_ok());
        let (guarded, _) = serve_over(answer("200 OK", JSON, "{}"), |_| {
            Box::pin(public_addresses(String::from("localhost")))
        })
        .await;
        let refused = guarded.fetch(&url, None).await;
        assert!(matches!(refused, Err(FetchError::Call(_))), "{refused:?}");
    }
}
