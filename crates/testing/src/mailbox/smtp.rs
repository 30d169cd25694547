//! The mail server: the part of RFC 5321 that a client sending one message needs.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufStream};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::{Delivery, Received, Shared, Tls};

trait Wire: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Wire for T {}

pub(super) async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    while let Ok((socket, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            let implicit = match &shared.settings.tls {
                Some((certificate, Tls::Implicit)) => {
                    Some(TlsAcceptor::from(certificate.server_config(&[])))
                }
                _ => None,
            };
            let wire: Box<dyn Wire> = match implicit {
                Some(acceptor) => match acceptor.accept(socket).await {
                    Ok(wire) => Box::new(wire),
                    Err(_) => return,
                },
                None => Box::new(socket),
            };
            let tls = shared.settings.tls.as_ref().map(|(_, when)| *when) == Some(Tls::Implicit);
            // A client that disconnects in the middle is no error here.
            let _ = serve_session(wire, tls, &shared).await;
        });
    }
}

async fn serve_session(wire: Box<dyn Wire>, mut tls: bool, shared: &Shared) -> io::Result<()> {
    let mut wire = BufStream::new(wire);
    say(&mut wire, "220 mailbox.example ready").await?;
    let mut from = String::new();
    let mut to = Vec::new();
    let mut known = shared.settings.login.is_none();
    loop {
        let Some(line) = read_line(&mut wire).await? else {
            return Ok(());
        };
        let verb = line.get(..4).unwrap_or(&line).to_ascii_uppercase();
        match verb.as_str() {
            "EHLO" | "HELO" => {
                let mut offers = vec!["250-mailbox.example", "250-8BITMIME", "250-SMTPUTF8"];
                if !tls && shared.settings.tls.is_some() {
                    offers.push("250-STARTTLS");
                }
                if shared.settings.login.is_some() {
                    offers.push("250-AUTH PLAIN");
                }
                offers.push("250 SIZE 1000000");
                say(&mut wire, &offers.join("\r\n")).await?;
            }
            "STAR" if !tls && shared.settings.tls.is_some() => {
                say(&mut wire, "220 go on").await?;
                let Some((certificate, _)) = &shared.settings.tls else {
                    return Ok(());
                };
                let acceptor = TlsAcceptor::from(certificate.server_config(&[]));
                let guarded = acceptor.accept(wire.into_inner()).await?;
                wire = BufStream::new(Box::new(guarded));
                tls = true;
            }
            "AUTH" => {
                let wanted = shared.settings.login.as_ref();
                known = wanted.is_some_and(|(user, password)| {
                    let plain = format!("\0{user}\0{password}");
                    line.split(' ').nth(2) == Some(&base64(plain.as_bytes()))
                });
                let answer = if known {
                    "235 welcome"
                } else {
                    "535 who are you"
                };
                say(&mut wire, answer).await?;
            }
            "MAIL" if !known => say(&mut wire, "530 say who you are first").await?,
            "MAIL" => {
                from = address(&line);
                to.clear();
                say(&mut wire, "250 fine").await?;
            }
            "RCPT" => {
                to.push(address(&line));
                say(&mut wire, "250 fine").await?;
            }
            "DATA" => {
                say(&mut wire, "354 go on").await?;
                let Some(text) = read_message(&mut wire).await? else {
                    return Ok(());
                };
                let (delivery, lag_ms) = shared.delivery();
                if matches!(delivery, Delivery::Take | Delivery::Drop) {
                    for to in &to {
                        shared.keep(received(&text, &from, to, tls));
                    }
                }
                tokio::time::sleep(Duration::from_millis(lag_ms)).await;
                match delivery {
                    Delivery::Take => say(&mut wire, "250 taken").await?,
                    Delivery::Refuse => say(&mut wire, "451 not now").await?,
                    Delivery::Reject => say(&mut wire, "550 no such mailbox").await?,
                    Delivery::Drop => return Ok(()),
                }
            }
            "QUIT" => return say(&mut wire, "221 bye").await,
            "RSET" | "NOOP" => say(&mut wire, "250 fine").await?,
            _ => say(&mut wire, "502 what?").await?,
        }
    }
}

async fn say(wire: &mut BufStream<Box<dyn Wire>>, text: &str) -> io::Result<()> {
    wire.write_all(text.as_bytes()).await?;
    wire.write_all(b"\r\n").await?;
    wire.flush().await
}

async fn read_line(wire: &mut BufStream<Box<dyn Wire>>) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    if wire.read_until(b'\n', &mut line).await? == 0 {
        return Ok(None);
    }
    let text = String::from_utf8_lossy(&line);
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

/// The lines up to the one with a dot alone, with dot-stuffing removed (RFC 5321 section 4.5.2).
async fn read_message(wire: &mut BufStream<Box<dyn Wire>>) -> io::Result<Option<String>> {
    let mut text = String::new();
    loop {
        match read_line(wire).await? {
            None => return Ok(None),
            Some(line) if line == "." => return Ok(Some(text)),
            Some(line) => {
                text.push_str(line.strip_prefix('.').unwrap_or(&line));
                text.push('\n');
            }
        }
    }
}

/// The text between angle brackets.
fn address(line: &str) -> String {
    let inside = line
        .split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'));
    inside.map_or(String::new(), |(address, _)| address.to_owned())
}

fn received(message: &str, from: &str, to: &str, tls: bool) -> Received {
    let (head, text) = message.split_once("\n\n").unwrap_or((message, ""));
    let field = |name: &str| {
        let line = head.lines().find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then_some(value.trim())
        });
        line.unwrap_or("").to_owned()
    };
    Received {
        kind: "mail",
        to: to.to_owned(),
        from: from.to_owned(),
        subject: field("subject"),
        text: text.to_owned(),
        id: field("message-id"),
        copies: 1,
        tls,
    }
}

/// Base64 with padding (RFC 4648 section 4).
pub(super) fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let number = u32::from_be_bytes(group);
        for place in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * place)) as usize & 63];
            text.push(if place <= chunk.len() {
                char::from(letter)
            } else {
                '='
            });
        }
    }
    text
}
