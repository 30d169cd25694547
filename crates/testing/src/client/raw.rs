//! A raw client that sends exact bytes and reads a controlled amount.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use bytes::{Bytes, BytesMut};
use rustls_pki_types::ServerName;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::event::{self, Event, StreamEnd};
use crate::certificate::client_config;
use crate::guard::within;
use crate::head::{Framing, Head};
use crate::wire::{Behind, Wire};

/// The system allocates about twice as many.
const NARROW_BYTES: u32 = 4096;

/// One HTTP/1.1 connection with full control: half a head, two lengths, nothing at all.
///
/// It reads only on request, so a stalled client is one whose test stops reading. All methods that read panic when nothing arrives for a
/// minute.
pub struct RawClient {
    wire: Wire,
    events: BytesMut,
}

impl RawClient {
    /// A connection to `address`.
    ///
    /// # Panics
    ///
    /// When it is refused.
    pub async fn connect(address: SocketAddr) -> Self {
        let socket = within("a connection", TcpStream::connect(address)).await;
        let socket =
            socket.unwrap_or_else(|problem| panic!("cannot connect to {address}: {problem}"));
        // Small writes have to be sent one by one.
        let _ = socket.set_nodelay(true);
        Self::over(Wire::new(Box::new(socket)))
    }

    /// A connection to `address` from another local one.
    ///
    /// # Errors
    ///
    /// When the connection fails.
    pub async fn connect_from(local: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.bind((local, 0).into())?;
        let socket = within("a connection", socket.connect(address)).await?;
        let _ = socket.set_nodelay(true);
        Ok(Self::over(Wire::new(Box::new(socket))))
    }

    /// A connection to the Unix socket at `path`.
    ///
    /// # Errors
    ///
    /// When the connection fails.
    pub async fn connect_unix(path: &Path) -> io::Result<Self> {
        let socket = within("a connection", UnixStream::connect(path)).await?;
        Ok(Self::over(Wire::new(Box::new(socket))))
    }

    /// A connection to `address` with TLS, for a server whose certificate for `localhost` the authority in `ca_pem` signed.
    ///
    /// # Errors
    ///
    /// When the connection or the handshake fails.
    pub async fn connect_tls(address: SocketAddr, ca_pem: &str) -> io::Result<Self> {
        let socket = within("a connection", TcpStream::connect(address)).await?;
        let _ = socket.set_nodelay(true);
        let connector = TlsConnector::from(client_config(ca_pem, &["http/1.1"], None));
        let name = ServerName::try_from("localhost").expect("a DNS name");
        let stream = within("a TLS handshake", connector.connect(name, socket)).await?;
        Ok(Self::over(Wire::new(Box::new(stream))))
    }

    /// A connection to `address` with TLS, on which `header` and the first bytes of the handshake are one write.
    ///
    /// # Errors
    ///
    /// When the connection or the handshake fails.
    pub async fn connect_tls_behind(
        address: SocketAddr,
        ca_pem: &str,
        header: &[u8],
    ) -> io::Result<Self> {
        let socket = within("a connection", TcpStream::connect(address)).await?;
        let connector = TlsConnector::from(client_config(ca_pem, &["http/1.1"], None));
        let name = ServerName::try_from("localhost").expect("a DNS name");
        let behind = Behind {
            socket,
            header: header.to_vec(),
        };
        let stream = within("a TLS handshake", connector.connect(name, behind)).await?;
        Ok(Self::over(Wire::new(Box::new(stream))))
    }

    /// A connection to `address` with a small receive buffer: what the peer sends beyond a few thousand bytes waits until they are read.
    /// With an authority to trust and the one protocol to speak it is over TLS.
    ///
    /// # Errors
    ///
    /// When the connection or the handshake fails.
    pub async fn connect_narrow(
        address: SocketAddr,
        tls: Option<(&str, &str)>,
    ) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(NARROW_BYTES)?;
        let socket = within("a connection", socket.connect(address)).await?;
        let _ = socket.set_nodelay(true);
        let Some((ca_pem, protocol)) = tls else {
            return Ok(Self::over(Wire::new(Box::new(socket))));
        };
        let connector = TlsConnector::from(client_config(ca_pem, &[protocol], None));
        let name = ServerName::try_from("localhost").expect("a DNS name");
        let stream = within("a TLS handshake", connector.connect(name, socket)).await?;
        Ok(Self::over(Wire::new(Box::new(stream))))
    }

    fn over(wire: Wire) -> Self {
        Self {
            wire,
            events: BytesMut::new(),
        }
    }

    /// Sends `bytes`.
    ///
    /// # Errors
    ///
    /// When the connection is broken, or the peer accepts nothing for a minute.
    pub async fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        let bytes = bytes.as_ref();
        let sent = tokio::time::timeout(crate::guard::HANG, self.wire.send(bytes)).await;
        sent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }

    /// Sends `bytes`.
    ///
    /// # Panics
    ///
    /// When the connection is broken.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes)
            .await
            .expect("the connection takes what is sent");
    }

    /// Sends a complete, valid POST of a JSON body to `path`, with `key` as the bearer.
    pub async fn post(&mut self, path: &str, key: &str, body: &str) {
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        );
        self.send(head + body).await;
    }

    /// Reads the next head, interim heads (1xx) too; `None` when the peer closed before the next response started.
    ///
    /// # Errors
    ///
    /// When the connection is reset or closed within the head, or the head is invalid.
    pub async fn try_read_head(&mut self) -> io::Result<Option<Head>> {
        within("the head of an answer", self.wire.head()).await
    }

    /// Reads the next head, interim heads (1xx) too.
    ///
    /// # Panics
    ///
    /// When none arrives.
    pub async fn read_head(&mut self) -> Head {
        let head = self.try_read_head().await.expect("the head of an answer");
        head.expect("an answer before the connection is closed")
    }

    /// Reads the whole body after `head`.
    ///
    /// # Errors
    ///
    /// When the connection ends before the body does, or the framing is wrong.
    pub async fn try_read_body(&mut self, head: &Head) -> io::Result<Bytes> {
        let framing = head.framing(false).map_err(crate::wire::invalid)?;
        within("the body of an answer", self.wire.body(framing)).await
    }

    /// Reads the whole body after `head`.
    ///
    /// # Panics
    ///
    /// When it does not arrive in full.
    pub async fn read_body(&mut self, head: &Head) -> Bytes {
        self.try_read_body(head)
            .await
            .expect("the whole body of an answer")
    }

    /// Reads a whole response.
    ///
    /// # Panics
    ///
    /// When it does not arrive in full.
    pub async fn read_answer(&mut self) -> (Head, Bytes) {
        let head = self.read_head().await;
        let body = self.read_body(&head).await;
        (head, body)
    }

    /// Reads the next chunk of a chunked body; `None` after the last.
    ///
    /// # Errors
    ///
    /// When the connection ends before that, or the chunk is invalid.
    pub async fn try_read_chunk(&mut self) -> io::Result<Option<Bytes>> {
        within("a chunk", self.wire.chunk()).await
    }

    /// Reads the next event of the chunked stream after `head`.
    ///
    /// # Errors
    ///
    /// How the stream ended, when there is no further event.
    ///
    /// # Panics
    ///
    /// When the head declares another framing: a stream of unknown length over HTTP/1.1 is chunked.
    pub async fn next_event(&mut self, head: &Head) -> Result<Event, StreamEnd> {
        assert_eq!(
            head.framing(false),
            Ok(Framing::Chunked),
            "the framing of a stream"
        );
        loop {
            if let Some(event) = event::take(&mut self.events) {
                return Ok(event);
            }
            match self.try_read_chunk().await {
                Ok(Some(chunk)) => self.events.extend_from_slice(&chunk),
                Ok(None) => return Err(event::end(&self.events)),
                Err(problem) => return Err(StreamEnd::Cut(problem.to_string())),
            }
        }
    }

    /// Reads the remaining events, and how the stream ended.
    pub async fn rest_of_events(&mut self, head: &Head) -> (Vec<Event>, StreamEnd) {
        let mut events = Vec::new();
        loop {
            match self.next_event(head).await {
                Ok(event) => events.push(event),
                Err(end) => return (events, end),
            }
        }
    }

    /// Reads the next bytes; none when the peer has closed.
    ///
    /// # Errors
    ///
    /// When the connection is reset.
    pub async fn try_read_some(&mut self) -> io::Result<Bytes> {
        if self.wire.inbox.is_empty() {
            within("more bytes", self.wire.fill()).await?;
        }
        Ok(self.wire.inbox.split().freeze())
    }

    /// Reads everything until the peer closes.
    ///
    /// # Errors
    ///
    /// When the connection is reset instead.
    pub async fn read_to_end(&mut self) -> io::Result<Bytes> {
        within(
            "the end of a connection",
            self.wire.body(Framing::UntilClose),
        )
        .await
    }

    /// Closes the sending side and continues reading.
    pub async fn half_close(&mut self) {
        // Fails when the peer has closed already; then there is nothing to close.
        let _ = self.wire.io.shutdown().await;
    }

    /// Resets the connection (RST). Dropping the client closes it in order.
    pub fn reset(self) {
        self.wire.io.reset_on_close();
    }
}
