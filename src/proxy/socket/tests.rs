//! The cork before streams with short writes, blocked writes, buffers and errors.

use std::sync::Mutex;
use std::task::Waker;

use proptest::prelude::*;
use tokio::io::AsyncReadExt;

use super::*;

/// The result of a write or flush on a [`Scripted`] stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Turn {
    /// Accepts or flushes the number of bytes.
    Takes(usize),
    /// Returns pending, and wakes the task at once.
    Waits,
    /// Fails, now and forever.
    Breaks,
}

/// A stream with a script of turns. After the script, the stream repeats the last turn. Like TLS, the stream buffers accepted bytes until a
/// flush, and a flush may be pending.
#[derive(Debug)]
pub(crate) struct Scripted {
    turns: Vec<Turn>,
    next: usize,
    kept: Vec<u8>,
    sent: Sent,
}

/// The bytes sent by a [`Scripted`] stream.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent(Arc<Mutex<Vec<u8>>>);

impl Sent {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no panic").clone()
    }
}

impl Scripted {
    pub(crate) fn new(turns: &[Turn]) -> (Scripted, Sent) {
        let sent = Sent::default();
        let stream = Scripted {
            turns: turns.to_vec(),
            next: 0,
            kept: Vec::new(),
            sent: sent.clone(),
        };
        (stream, sent)
    }

    /// The number of bytes accepted by the turn.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let turn = self.turns[self.next.min(self.turns.len() - 1)];
        self.next += 1;
        match turn {
            Turn::Takes(count) => Poll::Ready(Ok(count)),
            Turn::Waits => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Turn::Breaks => {
                self.turns = vec![Turn::Breaks];
                Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
            }
        }
    }
}

/// The stream never yields data to read.
impl AsyncRead for Scripted {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for Scripted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let room = ready!(self.turn(cx))?;
        let bytes = pieces.iter().flat_map(|piece| piece.iter()).take(room);
        let before = self.kept.len();
        self.kept.extend(bytes);
        Poll::Ready(Ok(self.kept.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.kept.is_empty() {
            let count = ready!(self.turn(cx))?.min(self.kept.len());
            let gone: Vec<u8> = self.kept.drain(..count).collect();
            self.sent.0.lock().expect("no panic").extend(gone);
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(cx)
    }
}

/// `length` bytes, without two equal parts.
pub(crate) fn pattern(length: usize) -> Vec<u8> {
    let bytes = (0..length).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 16) as u8);
    bytes.collect()
}

fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(future)
}

#[tokio::test]
async fn small_writes_are_joined_at_the_flush() {
    let (inner, mut far) = tokio::io::duplex(1024);
    let mut corked = Corked::new(inner);
    let cork = corked.handle();
    cork.set(true);
    corked.write_all(b"head ").await.expect("buffered");
    corked.flush().await.expect("held back");
    let mut seen = [0; 32];
    let early = tokio::select! {
        biased;
        read = far.read(&mut seen) => read.expect("readable"),
        () = std::future::ready(()) => 0,
    };
    assert_eq!(early, 0, "a corked flush writes nothing");
    cork.set(false);
    corked.write_all(b"body").await.expect("buffered");
    corked.flush().await.expect("written");
    let read = far.read(&mut seen).await.expect("readable");
    assert_eq!(&seen[..read], b"head body", "one write carries both");
}

#[tokio::test]
async fn a_large_write_follows_the_buffered_data() {
    let (inner, mut far) = tokio::io::duplex(1 << 20);
    let mut corked = Corked::new(inner);
    let large = vec![b'x'; CORK_BYTES_MAX + 1];
    corked.write_all(b"head ").await.expect("buffered");
    corked.write_all(&large).await.expect("written");
    corked.flush().await.expect("written");
    drop(corked);
    let mut all = Vec::new();
    far.read_to_end(&mut all).await.expect("readable");
    assert!(all.starts_with(b"head xxx"));
    assert_eq!(all.len(), 5 + large.len());
}

/// TLS accepts more bytes than the socket, and must be flushed again: a task without a second wake source would wait forever.
#[test]
fn unsent_bytes_are_sent_by_the_next_flush() {
    let mut cx = Context::from_waker(Waker::noop());
    for length in [5, CORK_BYTES_MAX, CORK_BYTES_MAX + 1] {
        let bytes = pattern(length);
        let turns = [
            Turn::Takes(length),
            Turn::Takes(length / 2),
            Turn::Waits,
            Turn::Takes(length),
        ];
        let (inner, sent) = Scripted::new(&turns);
        let mut corked = Corked::new(inner);
        corked.handle().set(true);
        let taken = Pin::new(&mut corked).poll_write(&mut cx, &bytes);
        assert!(matches!(taken, Poll::Ready(Ok(all)) if all == length));
        assert!(Pin::new(&mut corked).poll_flush(&mut cx).is_ready());
        assert_eq!(sent.bytes(), b"", "a corked flush sends nothing");
        assert!(corked.poll_send(&mut cx).is_pending(), "{length}: half");
        assert_eq!(sent.bytes().len(), length / 2);
        assert!(corked.poll_send(&mut cx).is_ready(), "{length}: the rest");
        assert_eq!(sent.bytes(), bytes);
    }
}

#[test]
fn a_broken_stream_fails_and_the_sent_bytes_are_a_prefix() {
    // Buffered; past the buffer at once; a mix of buffered and unbuffered.
    for lengths in [[10, 20], [CORK_BYTES_MAX + 1, 20], [20, CORK_BYTES_MAX + 1]] {
        let all = pattern(lengths.iter().sum());
        for before in 0..12 {
            let mut turns = vec![Turn::Takes(3); before];
            turns.insert(before / 2, Turn::Waits);
            turns.push(Turn::Breaks);
            let (inner, sent) = Scripted::new(&turns);
            let mut corked = Corked::new(inner);
            let written = wait(async {
                let (first, second) = all.split_at(lengths[0]);
                corked.write_all(first).await?;
                corked.write_all(second).await?;
                corked.flush().await
            });
            let what = format!("{lengths:?}, broken after {before}");
            let error = written.expect_err(&what);
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe, "{what}");
            assert!(all.starts_with(&sent.bytes()), "{what}");
        }
    }
}

#[test]
fn a_write_of_zero_bytes_is_an_error() {
    let (inner, _) = Scripted::new(&[Turn::Takes(2), Turn::Takes(0)]);
    let mut corked = Corked::new(inner);
    let written = wait(async {
        corked.write_all(b"hello").await?;
        corked.flush().await
    });
    let error = written.expect_err("it takes nothing");
    assert_eq!(error.kind(), io::ErrorKind::WriteZero);
}

#[derive(Clone, Debug)]
enum Do {
    Write(usize),
    /// Pieces of the lengths in a single call.
    Join(Vec<usize>),
    Flush,
    Cork(bool),
    /// A send by the gatherer, whenever the connection is pending.
    Send,
}

fn doing() -> impl Strategy<Value = Do> {
    let length = || {
        prop_oneof![
            4 => 0..200usize,
            1 => CORK_BYTES_MAX - 2..CORK_BYTES_MAX + 3,
            1 => 0..3 * CORK_BYTES_MAX,
        ]
    };
    prop_oneof![
        2 => length().prop_map(Do::Write),
        2 => proptest::collection::vec(length(), 0..4).prop_map(Do::Join),
        1 => Just(Do::Flush),
        1 => any::<bool>().prop_map(Do::Cork),
        1 => Just(Do::Send),
    ]
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        2 => (1..100usize).prop_map(Turn::Takes),
        2 => (100..40_000usize).prop_map(Turn::Takes),
        1 => Just(Turn::Waits),
    ]
}

async fn write_joined(corked: &mut Corked<Scripted>, bytes: &[u8], lengths: &[usize]) {
    let mut rest = bytes;
    let mut pieces: Vec<io::IoSlice<'_>> = lengths
        .iter()
        .map(|length| {
            let (piece, others) = rest.split_at(*length);
            rest = others;
            io::IoSlice::new(piece)
        })
        .collect();
    let mut pieces = &mut pieces[..];
    io::IoSlice::advance_slices(&mut pieces, 0);
    while !pieces.is_empty() {
        let taken = corked.write_vectored(pieces).await.expect("it is taken");
        assert!(taken > 0, "some of it");
        io::IoSlice::advance_slices(&mut pieces, taken);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// For every sequence of writes, vectored writes, flushes and corks: the received bytes are the written bytes, in order. An
    /// unsuppressed flush, or an explicit send, leaves the buffer empty.
    #[test]
    fn written_bytes_arrive_complete_and_in_order(
        turns in proptest::collection::vec(turn(), 0..40),
        doings in proptest::collection::vec(doing(), 0..12),
        shuts_down in any::<bool>(),
    ) {
        // At the end the stream accepts everything.
        let turns = [turns, vec![Turn::Takes(usize::MAX)]].concat();
        let (inner, sent) = Scripted::new(&turns);
        let mut corked = Corked::new(inner);
        let cork = corked.handle();
        let lengths = doings.iter().map(|one| match one {
            Do::Write(length) => *length,
            Do::Join(lengths) => lengths.iter().sum(),
            _ => 0,
        });
        let all = pattern(lengths.sum());
        let (mut written, mut is_corked) = (0, false);
        wait(async {
            for one in &doings {
                match one {
                    Do::Write(length) => {
                        let bytes = &all[written..][..*length];
                        corked.write_all(bytes).await.expect("it is taken");
                        written += length;
                    }
                    Do::Join(lengths) => {
                        let length = lengths.iter().sum::<usize>();
                        let bytes = &all[written..][..length];
                        write_joined(&mut corked, bytes, lengths).await;
                        written += length;
                    }
                    Do::Cork(set) => {
                        cork.set(*set);
                        is_corked = *set;
                    }
                    Do::Flush => corked.flush().await.expect("it is flushed"),
                    Do::Send => {
                        let send = std::future::poll_fn(|cx| corked.poll_send(cx));
                        send.await.expect("it is sent");
                    }
                }
                let sent = sent.bytes();
                assert!(all[..written].starts_with(&sent), "{one:?} mixes things up");
                let is_out = matches!(one, Do::Send) || matches!(one, Do::Flush) && !is_corked;
                assert!(!is_out || sent.len() == written, "{one:?} leaves some behind");
            }
            cork.set(false);
            match shuts_down {
                true => AsyncWriteExt::shutdown(&mut corked).await.expect("it is shut down"),
                false => corked.flush().await.expect("it is flushed"),
            }
        });
        prop_assert_eq!(sent.bytes(), all);
    }
}
