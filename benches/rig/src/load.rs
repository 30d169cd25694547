//! Load generator: persistent connections to one target, each sends its next request when its answer is complete and, at a given rate, not
//! before its time.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsConnector;

use crate::target::Target;
use crate::wire::{Connection, Workload, numbered, workload_body};

/// Requests in flight at once on one HTTP/2 connection.
const STREAMS_PER_CONNECTION: usize = 8;

/// The connections to one target.
pub(crate) enum Load {
    Http1(Vec<Connection>),
    /// The same request on every connection.
    Same(Vec<Connection>),
    Http2 {
        senders: Vec<SendRequest<Full<Bytes>>>,
        request: Arc<Request<String>>,
    },
}

impl Load {
    /// As many connections as keep `in_flight` requests in flight.
    pub(crate) async fn open(
        target: &Target,
        workload: Workload,
        in_flight: usize,
    ) -> Result<Self> {
        let body = workload_body(workload);
        if workload != Workload::Tls {
            let mut connections = Vec::new();
            for index in 0..in_flight {
                connections.push(Connection::open_nth(target, &body, index).await?);
            }
            return Ok(match workload {
                Workload::Hits => Self::Same(connections),
                _ => Self::Http1(connections),
            });
        }
        let mut senders = Vec::new();
        for _ in 0..in_flight.div_ceil(STREAMS_PER_CONNECTION) {
            senders.push(connect(target).await?);
        }
        let request = Request::builder()
            .method("POST")
            .version(Version::HTTP_2)
            .uri("https://localhost/v1/chat/completions")
            .header("authorization", format!("Bearer {}", target.key))
            .header("accept", "application/json")
            .header("content-type", "application/json")
            .body(body)?;
        Ok(Self::Http2 {
            senders,
            request: Arc::new(request),
        })
    }

    /// Has `requests` requests answered, numbered from `first`: as fast as they are, or so many a second.
    pub(crate) async fn run(
        &mut self,
        first: usize,
        requests: usize,
        per_sec: Option<f64>,
    ) -> Result<()> {
        let next = Arc::new(AtomicUsize::new(0));
        let began = Instant::now();
        let take = async move || {
            let nth = next.fetch_add(1, Relaxed);
            if let Some(per_sec) = per_sec {
                sleep_until(began + Duration::from_secs_f64(nth as f64 / per_sec)).await;
            }
            (nth < requests).then_some(first + nth)
        };
        let same = matches!(self, Self::Same(_));
        match self {
            Self::Http1(connections) | Self::Same(connections) => {
                let mut tasks = JoinSet::new();
                for mut connection in connections.drain(..) {
                    let take = take.clone();
                    tasks.spawn(async move {
                        while let Some(number) = take().await {
                            connection.ask(if same { 0 } else { number }).await?;
                        }
                        anyhow::Ok(connection)
                    });
                }
                while let Some(done) = tasks.join_next().await {
                    connections.push(done??);
                }
            }
            Self::Http2 { senders, request } => {
                let mut tasks = JoinSet::new();
                for sender in senders
                    .iter()
                    .flat_map(|sender| std::iter::repeat_n(sender, STREAMS_PER_CONNECTION))
                {
                    let (take, mut sender, request) =
                        (take.clone(), sender.clone(), request.clone());
                    tasks.spawn(async move {
                        while let Some(number) = take().await {
                            sender.ready().await?;
                            let request = (*request)
                                .clone()
                                .map(|body| Full::from(numbered(&body, number)));
                            let answer = sender.send_request(request).await?;
                            let status = answer.status();
                            let body = answer.into_body().collect().await?.to_bytes();
                            ensure!(status == 200, "answered {status}: {body:?}");
                        }
                        anyhow::Ok(())
                    });
                }
                while let Some(done) = tasks.join_next().await {
                    done??;
                }
            }
        }
        Ok(())
    }
}

async fn connect(target: &Target) -> Result<SendRequest<Full<Bytes>>> {
    let address = target
        .tls_address
        .with_context(|| format!("{} has no address with TLS", target.name))?;
    let ca_file = target
        .ca_file
        .as_ref()
        .with_context(|| format!("{} has no `ca_file`", target.name))?;
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(&fs::read(ca_file)?) {
        roots.add(authority?)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let socket = TcpStream::connect(address)
        .await
        .with_context(|| format!("cannot connect to {}", target.name))?;
    socket.set_nodelay(true)?;
    let stream = TlsConnector::from(Arc::new(config))
        .connect(ServerName::try_from("localhost")?, socket)
        .await?;
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender)
}
