//! A DNS server by which every name has the address 127.0.0.1 (RFC 1035).

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::UdpSocket;
use tokio::task::AbortHandle;

/// Type of an IPv4 address.
const A: u16 = 1;

/// Starts one on a free port.
pub(super) async fn start() -> (SocketAddr, AbortHandle) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let socket = socket.expect("a free port on loopback");
    let address = socket.local_addr().expect("a bound socket has one");
    let serving = tokio::spawn(async move {
        let mut query = [0; 512];
        while let Ok((length, peer)) = socket.recv_from(&mut query).await {
            if let Some(answer) = answer(&query[..length]) {
                // A lost answer is asked for again.
                let _ = socket.send_to(&answer, peer).await;
            }
        }
    });
    (address, serving.abort_handle())
}

/// The answer to a query with one question.
fn answer(query: &[u8]) -> Option<Vec<u8>> {
    let mut end = 12;
    while let Some(length @ 1..) = query.get(end).copied() {
        end += usize::from(length) + 1;
    }
    let question = query.get(12..end + 5)?;
    let kind = u16::from_be_bytes(query.get(end + 1..end + 3)?.try_into().ok()?);
    let answers = u8::from(kind == A);
    let mut answer = query[..2].to_vec();
    // An answer, recursion available; one question, as many answers, nothing else.
    answer.extend([0x81, 0x80, 0, 1, 0, answers, 0, 0, 0, 0]);
    answer.extend(question);
    if kind == A {
        // The name of the question, class IN, ten seconds, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 10, 0, 4, 127, 0, 0, 1]);
    }
    Some(answer)
}
