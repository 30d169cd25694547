//! The HTTP/1.1 server of a stand-in on loopback: in the caller's runtime, or on its own thread.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// A complete request.
pub(crate) struct Arrived {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) query: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Arrived {
    /// The value of a header field.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The value of a query parameter, as sent.
    pub(crate) fn parameter(&self, name: &str) -> Option<&str> {
        let mut pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    }
}

/// A response; `None` cuts the connection instead.
pub(crate) type Answer = Option<Response<Full<Bytes>>>;

/// What responds to the requests of a server.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(self: Arc<Self>, request: Arrived) -> impl Future<Output = Answer> + Send;
}

/// A running server. It stops, and drops its connections, when this is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    task: Option<AbortHandle>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts one on a free port, on the caller's runtime; `make` gets its address.
    ///
    /// # Panics
    ///
    /// When this machine has no free port.
    pub(crate) async fn start<H: Handler>(make: impl FnOnce(SocketAddr) -> H) -> (Server, Arc<H>) {
        let listener = bind().await.expect("a free port on loopback");
        let address = listener.local_addr().expect("a bound socket has one");
        let handler = Arc::new(make(address));
        let serving = tokio::spawn(serve(listener, handler.clone()));
        let server = Server {
            address,
            task: Some(serving.abort_handle()),
            stop: None,
            thread: None,
        };
        (server, handler)
    }

    /// The same on its own thread with this name, for a program without a runtime.
    ///
    /// # Errors
    ///
    /// When no port or no thread is available.
    pub(crate) fn start_own_thread<H: Handler>(
        name: &str,
        make: impl FnOnce(SocketAddr) -> H,
    ) -> io::Result<(Server, Arc<H>)> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = runtime.block_on(bind())?;
        let address = listener.local_addr()?;
        let handler = Arc::new(make(address));
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = serve(listener, handler.clone());
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serving => {}
                        _ = stopped => {}
                    }
                });
            })?;
        let server = Server {
            address,
            task: None,
            stop: Some(stop),
            thread: Some(thread),
        };
        Ok((server, handler))
    }

    /// Its address as a URL without a path.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been printed by it.
            let _ = thread.join();
        }
    }
}

async fn bind() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await
}

async fn serve<H: Handler>(listener: TcpListener, handler: Arc<H>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((socket, _)) = accepted else { continue };
                let handler = handler.clone();
                let answer = service_fn(move |request| respond(request, handler.clone()));
                connections.spawn(async move {
                    let io = TokioIo::new(socket);
                    // A deliberately cut connection ends in an error.
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, answer).await;
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn respond<H: Handler>(
    request: Request<Incoming>,
    handler: Arc<H>,
) -> io::Result<Response<Full<Bytes>>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let arrived = Arrived {
        method: head.method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: head.headers,
        body,
    };
    let answer = handler.handle(arrived).await;
    answer.ok_or_else(|| io::Error::other("cut"))
}
