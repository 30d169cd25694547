//! Downstream sessions: a Pingora session as the driver's downstream, with the time limits of reads and writes.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method, Version, header};
use pingora_core::protocols::http::v2::server::HttpSession as Http2Session;
use pingora_core::protocols::http::{ServerSession, v2};
use pingora_core::{Error, ErrorType};
use pingora_http::{RequestHeader, ResponseHeader};
use tokio::time::Sleep;
use tollgate_chain::{BodyError, BodyLength, Downstream, Gone, Head};
use tollgate_filter::Request;
use tollgate_memory::{COPIES, MemoryUse, REQUEST_BYTES, RequestMemory};
use tollgate_money::OperationId;

use super::lifecycle::LifecycleHeaders;
use super::socket::CorkHandle;
use crate::config::ConnectionLimits;
use crate::telemetry::hex;
use crate::upstream::{Elapsed, within};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The longest unused body read in order to keep the connection: the size of most requests, and of a socket buffer.
const DISCARDED_BYTES_MAX: usize = 64 << 10;

/// A write without progress for this long ends when the memory of the client's address is short.
const STALLED: Duration = Duration::from_secs(1);

/// A whole answer, or an event, is written in pieces of this size. The write limit applies to a piece, since each piece is progress.
const PIECE_BYTES: usize = 64 << 10;

const HSTS: HeaderValue = HeaderValue::from_static("max-age=31536000");

/// A request's session and limits.
pub(super) struct DownstreamSession {
    /// Boxed: two kilobytes, passed through several futures.
    session: Box<ServerSession>,
    /// Present on HTTP/1 only.
    cork: Option<CorkHandle>,
    limits: ConnectionLimits,
    /// The memory of the request, from the head on.
    memory: RequestMemory,
    /// The id of the request.
    id: OperationId,
    tls: bool,
    is_head: bool,
    /// The response was sent to its end.
    finished: bool,
    /// Some bytes of the response were sent.
    started: bool,
    /// The progress of a body read in chunks.
    progress: Option<BodyProgress>,
    /// The lifecycle headers of its route.
    lifecycle: Option<Arc<LifecycleHeaders>>,
}

/// The progress of a body read in chunks.
struct BodyProgress {
    /// The deadline of the whole body.
    timer: Pin<Box<Sleep>>,
    /// Whether no byte was received.
    is_empty: bool,
}

impl DownstreamSession {
    pub(super) fn new(
        session: Box<ServerSession>,
        cork: Option<CorkHandle>,
        limits: ConnectionLimits,
        memory: RequestMemory,
        request: &Request,
    ) -> DownstreamSession {
        DownstreamSession {
            session,
            cork,
            limits,
            memory,
            id: request.id,
            tls: request.tls,
            is_head: request.method == Method::HEAD,
            finished: false,
            started: false,
            progress: None,
            lifecycle: None,
        }
    }

    /// Adds the lifecycle headers of its route to the answer.
    pub(super) fn set_lifecycle(&mut self, lifecycle: Option<Arc<LifecycleHeaders>>) {
        self.lifecycle = lifecycle;
    }

    /// The session, if the whole answer was sent, and the memory of its request: the session still has the head.
    pub(super) fn into_finished(self) -> Option<(Box<ServerSession>, RequestMemory)> {
        self.finished.then_some((self.session, self.memory))
    }

    /// Whether any of the response was sent.
    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    fn response(&mut self, head: Head) -> Box<ResponseHeader> {
        if head.close {
            self.session.set_keepalive(None);
        }
        let (mut parts, ()) = http::Response::new(()).into_parts();
        parts.status = head.status;
        parts.headers = head.headers;
        // Last: no field of the answer overrides these fields.
        parts.headers.insert(X_REQUEST_ID, id_field(self.id));
        if self.tls {
            // An operator's own filter may have set a longer time.
            let field = parts.headers.entry(header::STRICT_TRANSPORT_SECURITY);
            field.or_insert(HSTS);
        }
        if let Some(lifecycle) = &self.lifecycle {
            lifecycle.add_to(&mut parts.headers);
        }
        Box::new(ResponseHeader::from(parts))
    }

    /// Reads an arrived short body without use in the answer: after a refusal by the head alone, the connection can carry another request.
    /// The read does not wait; a longer body, or a body in chunks, ends the connection after the answer.
    fn discard_arrived_body(&mut self) {
        let session = &mut self.session;
        if session.is_http2() || session.is_body_done() {
            return;
        }
        let length = session.req_header().headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: usize| length <= DISCARDED_BYTES_MAX) {
            let arrived = |session: &mut ServerSession| session.read_request_body().now_or_never();
            while !session.is_body_done() && matches!(arrived(session), Some(Ok(Some(_)))) {}
        }
    }

    /// One write of a stream, ended early without progress.
    async fn bounded<T>(
        limit: Duration,
        memory: &RequestMemory,
        work: impl Future<Output = pingora_core::Result<T>>,
    ) -> Result<T, Gone> {
        let mut work = pin!(work);
        Self::limited(limit, pin!(progressing(memory, work.as_mut()))).await
    }

    /// Writes an event over HTTP/2.
    async fn write_pieces(
        session: &mut ServerSession,
        limit: Duration,
        memory: &RequestMemory,
        event: &mut BytesMut,
        is_last: bool,
    ) -> Result<(), Gone> {
        let mut event = event.split().freeze();
        loop {
            let piece = event.split_to(event.len().min(PIECE_BYTES));
            let is_end = event.is_empty();
            let write = session.write_response_body(piece, is_last && is_end);
            Self::bounded(limit, memory, write).await?;
            if is_end {
                return Ok(());
            }
        }
    }

    async fn limited<T>(
        limit: Duration,
        work: impl Future<Output = pingora_core::Result<T>>,
    ) -> Result<T, Gone> {
        match within(limit, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                tracing::debug!(%error, "writing response failed");
                Err(Gone)
            }
            Err(Elapsed) => {
                tracing::debug!(?limit, "writing response failed: the client does not read");
                Err(Gone)
            }
        }
    }

    fn cork(&self, corked: bool) {
        if let Some(cork) = &self.cork {
            cork.set(corked);
        }
    }
}

impl Downstream for DownstreamSession {
    async fn read_body(
        &mut self,
        bytes_max: usize,
        memory: &mut MemoryUse,
    ) -> Result<Bytes, BodyError> {
        let head = self.session.req_header();
        let length = head
            .headers
            .get(header::CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.parse::<u64>().ok());
        let chunked = head.headers.contains_key(header::TRANSFER_ENCODING);
        if length.is_some_and(|length| length > bytes_max as u64) {
            return Err(BodyError::TooLarge { bytes_max });
        }
        if let Some(length) = length {
            // Before the client is asked to send the body.
            memory.grow(COPIES * length as usize)?;
        }
        if head.version == Version::HTTP_11 && head.headers.contains_key(header::EXPECT) {
            // The client waits for the interim response: Pingora sends none when a body is read here (RFC 9110 section 10.1.1).
            let limit = self.limits.write;
            let written = self.session.write_continue_response();
            Self::bounded(limit, &self.memory, written)
                .await
                .map_err(|Gone| BodyError::Gone)?;
        }
        let session = &mut self.session;
        let read = pin!(async {
            let mut first = Bytes::new();
            let mut all = BytesMut::new();
            loop {
                let piece = match session.read_request_body().await {
                    Ok(Some(piece)) => piece,
                    Ok(None) => break,
                    Err(error) => return Err(body_error(&error)),
                };
                if length.is_none() {
                    memory.grow(COPIES * piece.len())?;
                }
                if first.is_empty() && all.is_empty() {
                    // Most bodies arrive in one piece, which needs no copy.
                    first = piece;
                } else {
                    if all.is_empty() {
                        all.reserve(length.map_or(0, |length| length as usize));
                        all.extend_from_slice(&first);
                    }
                    all.extend_from_slice(&piece);
                }
                if first.len().max(all.len()) > bytes_max {
                    return Err(BodyError::TooLarge { bytes_max });
                }
            }
            if chunked && first.is_empty() {
                // The session takes a line without a size for the last chunk; the data after it must not be taken for a request.
                return Err(BodyError::Malformed);
            }
            Ok(if all.is_empty() { first } else { all.freeze() })
        });
        match within(self.limits.body, read).await {
            Ok(body) => body,
            Err(Elapsed) => Err(BodyError::Timeout),
        }
    }

    fn body_length(&mut self) -> BodyLength {
        if self.session.is_body_empty() {
            return BodyLength::Nothing;
        }
        let length = self
            .session
            .req_header()
            .headers
            .get(header::CONTENT_LENGTH);
        let length = length.and_then(|value| value.to_str().ok()?.parse().ok());
        length.map_or(BodyLength::Unknown, BodyLength::Bytes)
    }

    async fn read_piece(&mut self) -> Result<Option<Bytes>, BodyError> {
        let is_first = self.progress.is_none();
        let progress = self.progress.get_or_insert_with(|| BodyProgress {
            timer: Box::pin(tokio::time::sleep(self.limits.body)),
            is_empty: true,
        });
        let head = self.session.req_header();
        let is_chunked = head.headers.contains_key(header::TRANSFER_ENCODING);
        let waits = head.version == Version::HTTP_11 && head.headers.contains_key(header::EXPECT);
        if is_first && waits {
            // Written before any read, and short: sent at once.
            let written = self.session.write_continue_response().await;
            written.map_err(|_| BodyError::Gone)?;
        }
        let read = tokio::select! {
            biased;
            read = self.session.read_request_body() => read,
            () = progress.timer.as_mut() => return Err(BodyError::Timeout),
        };
        let piece = read.map_err(|error| body_error(&error))?;
        if piece.is_none() && progress.is_empty && is_chunked {
            // As for a whole body: the subsequent data must not be taken for a request.
            return Err(BodyError::Malformed);
        }
        progress.is_empty &= piece.is_none();
        Ok(piece)
    }

    async fn send(&mut self, mut head: Head, body: Bytes) -> Result<(), Gone> {
        self.started = true;
        if head.status != http::StatusCode::NO_CONTENT {
            // From a number `HeaderValue` makes a growable buffer, with two allocations.
            let length = HeaderValue::from_str(itoa::Buffer::new().format(body.len()));
            let length = length.expect("digits are ASCII");
            head.headers.insert(header::CONTENT_LENGTH, length);
        }
        if !head.close {
            self.discard_arrived_body();
        }
        let head = self.response(head);
        let empty = self.is_head || body.is_empty();
        let (session, memory) = (&mut self.session, &mut self.memory);
        let write = pin!(async {
            match &mut **session {
                ServerSession::H2(h2) => {
                    h2.write_response_header(head, empty)?;
                    if !empty {
                        send_http2(h2, memory, body).await?;
                    }
                }
                other => {
                    other.write_response_header(head).await?;
                    let mut body = if empty { Bytes::new() } else { body };
                    loop {
                        let piece = body.split_to(body.len().min(PIECE_BYTES));
                        let is_last = body.is_empty();
                        let write = pin!(other.write_response_body(piece, is_last));
                        progressing(memory, write).await?;
                        if is_last {
                            break;
                        }
                    }
                }
            }
            Ok(())
        });
        Self::limited(self.limits.write, write).await?;
        self.finished = true;
        Ok(())
    }

    async fn start(&mut self, mut head: Head, first: &mut BytesMut) -> Result<(), Gone> {
        self.started = true;
        let h2 = self.session.is_http2();
        if !h2 {
            head.headers.insert(
                header::TRANSFER_ENCODING,
                HeaderValue::from_static("chunked"),
            );
        }
        let old = self.session.req_header().version == Version::HTTP_10;
        if old {
            // HTTP/1.0 has no chunks: the end of the connection ends the body.
            head.headers.remove(header::TRANSFER_ENCODING);
            head.close = true;
        }
        let head = self.response(head);
        // The session flushes the head of a stream at once; the cork sends head and first event together, if the event is available.
        let joined = !first.is_empty();
        self.cork(joined);
        let write = self.session.write_response_header(head);
        let written = Self::bounded(self.limits.write, &self.memory, write).await;
        self.cork(false);
        written?;
        match joined {
            true => self.write(first).await,
            // An empty chunk would be the end.
            false => Ok(()),
        }
    }

    async fn write(&mut self, piece: &mut BytesMut) -> Result<(), Gone> {
        let (limit, memory) = (self.limits.write, &self.memory);
        match &mut *self.session {
            ServerSession::H1(h1) => {
                let mut written = Ok(());
                for part in piece.chunks(PIECE_BYTES) {
                    written = Self::bounded(limit, memory, pin!(h1.write_body(part)))
                        .await
                        .map(|_| ());
                    if written.is_err() {
                        break;
                    }
                }
                piece.clear();
                written
            }
            other => Self::write_pieces(other, limit, memory, piece, false).await,
        }
    }

    async fn finish(&mut self, last: &mut BytesMut) -> Result<(), Gone> {
        let (limit, memory) = (self.limits.write, &self.memory);
        match &mut *self.session {
            ServerSession::H1(h1) => {
                let cork = self.cork.clone();
                while last.len() > PIECE_BYTES {
                    let part = last.split_to(PIECE_BYTES);
                    Self::bounded(limit, memory, pin!(h1.write_body(&part))).await?;
                }
                let write = async {
                    if !last.is_empty() {
                        // The last chunk is sent with the last event.
                        if let Some(cork) = &cork {
                            cork.set(true);
                        }
                        let written = h1.write_body(last).await;
                        if let Some(cork) = &cork {
                            cork.set(false);
                        }
                        written?;
                    }
                    h1.finish_body().await
                };
                let written = Self::bounded(limit, memory, write).await;
                last.clear();
                written?;
            }
            other => Self::write_pieces(other, limit, memory, last, true).await?,
        }
        self.finished = true;
        Ok(())
    }

    async fn gone(&mut self) {
        loop {
            // An error means that the client has disconnected; bytes are the start of the next request and no end.
            if self.session.read_body_or_idle(true).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Sends the body of a whole answer. Where it has to wait for the client's window the head of the request is freed first.
async fn send_http2(
    session: &mut Http2Session,
    memory: &mut RequestMemory,
    mut body: Bytes,
) -> pingora_core::Result<()> {
    let Some(mut writer) = session.take_response_body_writer() else {
        return Err(Error::explain(ErrorType::WriteError, "no head was sent"));
    };
    loop {
        let piece = body.split_to(body.len().min(PIECE_BYTES));
        let (length, is_last) = (piece.len(), body.is_empty());
        let mut write = pin!(v2::write_body(&mut writer, piece, is_last, None));
        match futures_util::poll!(write.as_mut()) {
            Poll::Ready(written) => written?,
            Poll::Pending => {
                free_head(session.req_header_mut());
                memory.set(REQUEST_BYTES + length + body.len());
                Box::pin(stalled(memory, write)).await?;
            }
        }
        if is_last {
            return Ok(());
        }
    }
}

/// Frees the unused head of a request.
pub(super) fn free_head(head: &mut RequestHeader) {
    if let Ok(empty) = RequestHeader::build_no_case(Method::GET, b"/", Some(0)) {
        *head = empty;
    }
}

/// Awaits a write. The write fails without progress while the memory of the client's address is short.
async fn progressing<T>(
    memory: &RequestMemory,
    mut write: Pin<&mut impl Future<Output = pingora_core::Result<T>>>,
) -> pingora_core::Result<T> {
    match futures_util::poll!(write.as_mut()) {
        Poll::Ready(written) => written,
        // Boxed, as a rare case: a task is as large as its largest branch.
        Poll::Pending => Box::pin(stalled(memory, write)).await,
    }
}

async fn stalled<T>(
    memory: &RequestMemory,
    write: Pin<&mut impl Future<Output = pingora_core::Result<T>>>,
) -> pingora_core::Result<T> {
    let short = async {
        tokio::time::sleep(STALLED).await;
        memory.short().await;
    };
    tokio::select! {
        biased;
        written = write => written,
        () = short => Err(Error::explain(
            ErrorType::WriteTimedout,
            "the client does not read, and the memory of its address is short",
        )),
    }
}

/// A request's id as a field. Each id is unique, so HTTP/2 does not index the field (RFC 7541 section 7.1.3).
fn id_field(id: OperationId) -> HeaderValue {
    let mut text = Vec::with_capacity(OperationId::PREFIX.len() + 32);
    text.extend_from_slice(OperationId::PREFIX.as_bytes());
    hex(&mut text, id.as_bytes());
    let field = HeaderValue::from_maybe_shared(Bytes::from(text));
    let mut field = field.expect("an id is visible ASCII");
    field.set_sensitive(true);
    field
}

fn body_error(error: &pingora_core::Error) -> BodyError {
    use pingora_core::ErrorType::{ConnectionClosed, H2Error, ReadError, ReadTimedout};
    match error.etype() {
        ConnectionClosed | ReadError | H2Error => BodyError::Gone,
        ReadTimedout => BodyError::Timeout,
        _ => BodyError::Malformed,
    }
}
