//! HTTP/1.1 answers from a scripted provider at the other end of a pipe.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::{Connection, Error, Head, Heads, RequestHead};
use crate::upstream::transport::retry_after::RetryAfter;

fn heads() -> Heads {
    let key = HeaderValue::from_static("Bearer k");
    Heads::new("/base/v1", "provider.test:8000", Some(&key))
}

async fn send_request(
    connection: &mut Connection<DuplexStream>,
    body: &'static [u8],
) -> Result<Head, Error> {
    let heads = heads();
    let of = RequestHead {
        heads: &heads,
        path: "/chat/completions",
        stream: false,
        client: None,
        ids: None,
    };
    connection.send_request(of, &Bytes::from_static(body)).await
}

/// The result of an exchange on a new connection; the provider sends `answer` and closes.
async fn exchange(answer: Vec<u8>, piece: usize) -> Result<(Head, Vec<u8>, bool), Error> {
    let (near, mut far) = duplex(256 * 1024);
    let provider = tokio::spawn(async move {
        for piece in answer.chunks(piece) {
            far.write_all(piece).await.expect("buffer space");
            // The next piece is written only after the reader had a turn.
            tokio::task::yield_now().await;
        }
        far
    });
    let mut connection = Connection::new(near);
    let result = async {
        let head = send_request(&mut connection, b"{}").await?;
        let mut body = Vec::new();
        while let Some(piece) = connection.read().await? {
            assert!(!piece.is_empty(), "no piece is empty");
            body.extend_from_slice(&piece);
        }
        Ok((head, body))
    };
    let closed = async {
        // The close ends a body without framing.
        drop(provider.await.expect("the provider ends"));
    };
    let (result, ()) = tokio::join!(result, closed);
    result.map(|(head, body)| (head, body, connection.keep().is_some()))
}

#[tokio::test]
async fn a_request_is_one_write_without_fields_of_the_client() {
    let (near, mut far) = duplex(4096);
    let mut connection = Connection::new(near);
    let provider = async move {
        let mut seen = vec![0; 4096];
        let length = far.read(&mut seen).await.expect("a request");
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            .await
            .expect("buffer space");
        seen.truncate(length);
        (String::from_utf8(seen).expect("text"), far)
    };
    let (answer, (seen, _far)) =
        tokio::join!(send_request(&mut connection, b"{\"a\":1}"), provider);
    assert_eq!(answer.expect("answered").status, StatusCode::OK);
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        seen,
        format!(
            "POST /base/v1/chat/completions HTTP/1.1\r\nhost: provider.test:8000\r\nuser-agent: tollgate/{version}\r\n\
             accept: application/json\r\naccept-encoding: identity\r\ncontent-type: application/json\r\n\
             authorization: Bearer k\r\ncontent-length: 7\r\n\r\n{{\"a\":1}}"
        ),
        "head and body leave in one write"
    );
}

#[tokio::test]
async fn bodies_end_by_their_framing_in_chunks_of_any_size() {
    let cases: [(&str, &str, &str, bool); 9] = [
        (
            "length",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "hello",
            true,
        ),
        (
            "length twice the same",
            "HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\ncontent-length: 5\r\n\r\nhello",
            "hello",
            true,
        ),
        (
            "chunks with extension and trailer",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2;x=y\r\nhe\r\n003\r\nllo\r\n0\r\nsum: 1\r\n\r\n",
            "hello",
            true,
        ),
        (
            "until the end",
            "HTTP/1.1 200 OK\r\n\r\nhello",
            "hello",
            false,
        ),
        (
            "informational heads first",
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            "hello",
            true,
        ),
        (
            "the last of the connection",
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello",
            "hello",
            false,
        ),
        (
            "an old version",
            "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello",
            "hello",
            false,
        ),
        (
            "both framings: chunks win, once",
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "hello",
            false,
        ),
        (
            "no body at all",
            "HTTP/1.1 204 No Content\r\n\r\n",
            "",
            true,
        ),
    ];
    for (name, answer, expected, is_kept) in cases {
        for piece in 1..=answer.len() {
            let (_, body, kept) = exchange(answer.as_bytes().to_vec(), piece)
                .await
                .unwrap_or_else(|error| panic!("{name}, in pieces of {piece}: {error}"));
            assert_eq!(body, expected.as_bytes(), "{name}, in pieces of {piece}");
            assert_eq!(kept, is_kept, "{name}, in pieces of {piece}");
        }
    }
}

#[tokio::test]
async fn a_chunk_size_line_has_a_limit_in_pieces_of_any_size() {
    for (extension, fits) in [(4 * 1024 - 4, true), (4 * 1024 - 3, false)] {
        let extension = "x".repeat(extension);
        let answer = format!(
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;{extension}\r\nhello\r\n0\r\n\r\n"
        );
        for piece in [64, 1 << 16] {
            let result = exchange(answer.as_bytes().to_vec(), piece).await;
            assert_eq!(result.is_ok(), fits, "in pieces of {piece}: {result:?}");
        }
    }
}

#[tokio::test]
async fn ambiguous_framing_is_refused() {
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(70_000));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(11_000));
    let invalid = [
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 5, 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n;x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nab\r\n",
        &long,
        &many,
    ];
    for answer in invalid {
        let result = exchange(answer.as_bytes().to_vec(), 1 << 16).await;
        let start = &answer[..answer.len().min(90)];
        assert!(
            matches!(result, Err(Error::Invalid(_))),
            "{start:?} gave {result:?}"
        );
    }
    let cut = [
        "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-le",
        "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n6\r\nhello",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ];
    for answer in cut {
        let result = exchange(answer.as_bytes().to_vec(), 1 << 16).await;
        assert!(
            matches!(result, Err(Error::Cut(_))),
            "{answer:?} gave {result:?}"
        );
    }
    let result = exchange(Vec::new(), 1).await;
    assert!(matches!(result, Err(Error::Unanswered(_))), "{result:?}");
}

#[tokio::test]
async fn field_names_are_read_in_any_case() {
    let answer = "HTTP/1.1 429 Too Many\r\nRETRY-AFTER: 7\r\nContent-TYPE: Text/Event-Stream; charset=utf-8\r\n\
                  content-encoding: gzip\r\ncontent-length: 0\r\n\r\n";
    let (head, _, _) = exchange(answer.into(), 1 << 16).await.expect("an answer");
    assert_eq!(head.status, StatusCode::TOO_MANY_REQUESTS);
    let wait = RetryAfter::Wait(std::time::Duration::from_secs(7));
    assert_eq!(head.retry_after, Some(wait));
    assert!(head.is_stream && head.is_encoded);
}

#[tokio::test]
async fn a_head_may_have_many_fields() {
    let answer = format!(
        "HTTP/1.1 200 OK\r\n{}content-length: 5\r\n\r\nhello",
        "a: b\r\n".repeat(2_000)
    );
    for piece in [1000, 1 << 16] {
        let exchanged = exchange(answer.clone().into_bytes(), piece).await;
        let (_, body, kept) = exchanged.expect("an answer");
        assert!(body == b"hello" && kept, "in pieces of {piece}");
    }
}

#[tokio::test]
async fn a_content_encoding_without_a_coding_is_none() {
    for (value, is_encoded) in [
        ("", false),
        ("identity, identity", false),
        ("UTF-8", false),
        ("utf8", false),
        ("gzip", true),
        ("identity, br", true),
        ("utf-16", true),
    ] {
        let answer =
            format!("HTTP/1.1 200 OK\r\ncontent-encoding: {value}\r\ncontent-length: 0\r\n\r\n");
        let (head, _, _) = exchange(answer.into(), 1 << 16).await.expect("an answer");
        assert_eq!(head.is_encoded, is_encoded, "{value}");
    }
}

#[tokio::test]
async fn data_after_an_answer_makes_the_connection_unusable() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\n\r\n";
    let (_, body, kept) = exchange(answer.into(), 1 << 16).await.expect("an answer");
    assert_eq!(body, b"hello");
    assert!(
        !kept,
        "the next call must not read data that precedes its request"
    );
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_or_has_data_is_not_reused() {
    for data in [&b""[..], b"HTTP/1.1 408 Request Timeout\r\n\r\n"] {
        let (near, mut far) = duplex(1024);
        let mut connection = Connection::new(near);
        assert!(connection.is_reusable(), "nothing was received yet");
        far.write_all(data).await.expect("buffer space");
        drop(far);
        assert!(!connection.is_reusable());
    }
}

#[tokio::test]
async fn a_long_body_may_be_refused_before_it_is_written() {
    // The pipe takes 1 KiB of 1 MiB.
    let (near, mut far) = duplex(1024);
    let mut connection = Connection::new(near);
    let body: &'static [u8] = vec![b'x'; 1 << 20].leak();
    far.write_all(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n")
        .await
        .expect("buffer space");
    let head = send_request(&mut connection, body)
        .await
        .expect("an answer");
    assert_eq!(head.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert!(connection.read().await.expect("a body").is_none());
    assert!(
        connection.keep().is_none(),
        "half a request was written to the connection"
    );
}

#[tokio::test]
async fn a_success_before_the_request_was_written_is_invalid() {
    let (near, mut far) = duplex(1024);
    let mut connection = Connection::new(near);
    let body: &'static [u8] = vec![b'x'; 1 << 20].leak();
    far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        .await
        .expect("buffer space");
    let answer = send_request(&mut connection, body).await;
    assert!(matches!(answer, Err(Error::Invalid(_))), "{answer:?}");
}
