//! PROXY protocol, versions 1 and 2: parses the header with a layer 4 proxy's report of the client's address.
//!
//! The header precedes all other data on a connection, TLS included. Parsed here rather than by a library: only one address is needed, and
//! a library leaves the exact part (amount of reading, remainder for TLS) to the caller.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::socket::ClientSocket;

/// The signature of version 2.
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";

/// The prefix of version 1.
const PREFIX: &[u8; 6] = b"PROXY ";

/// Maximum length of a version 1 line, its end included.
const LINE_BYTES_MAX: usize = 107;

/// Signature, version with command, family with transport, and the length of what follows.
const FIXED_BYTES: usize = 16;

/// A complete header, except the skipped parts of version 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The client; `None` if the proxy connects on its own behalf or does not know the client.
    source: Option<IpAddr>,
    /// Its length in bytes.
    length: usize,
}

/// The connection does not start with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Why a header could not be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// Missing or malformed.
    Malformed,
    /// The connection ended or broke in the middle of it.
    Incomplete,
    /// The connection was closed before its first byte, as health checks do.
    Unused,
}

impl From<Malformed> for ReadError {
    fn from(_: Malformed) -> ReadError {
        ReadError::Malformed
    }
}

impl From<io::Error> for ReadError {
    fn from(_: io::Error) -> ReadError {
        ReadError::Incomplete
    }
}

/// Reads only the header. `None`: the proxy connects on its own behalf, or does not know the client.
pub(super) async fn read(tcp: &mut ClientSocket) -> Result<Option<IpAddr>, ReadError> {
    loop {
        if let Some(header) = parse(tcp.read_ahead())? {
            tcp.skip(header.length).await?;
            return Ok(header.source);
        }
        if tcp.fill().await? == 0 {
            return Err(match tcp.read_ahead() {
                [] => ReadError::Unused,
                _ => ReadError::Incomplete,
            });
        }
    }
}

/// The header at the start of `input`; `None` when more has to be read.
pub(super) fn parse(input: &[u8]) -> Result<Option<Header>, Malformed> {
    let begins = |with: &[u8]| {
        let seen = input.len().min(with.len());
        input[..seen] == with[..seen]
    };
    if begins(SIGNATURE) {
        parse_binary(input)
    } else if begins(PREFIX) {
        parse_line(input)
    } else {
        Err(Malformed)
    }
}

/// Version 1: `PROXY TCP4 192.0.2.7 192.0.2.1 4711 443` and CRLF.
fn parse_line(input: &[u8]) -> Result<Option<Header>, Malformed> {
    let within = &input[..input.len().min(LINE_BYTES_MAX)];
    let Some(end) = within.iter().position(|&byte| byte == b'\n') else {
        return match input.len() < LINE_BYTES_MAX {
            true => Ok(None),
            false => Err(Malformed),
        };
    };
    let line = within[..end].strip_suffix(b"\r").ok_or(Malformed)?;
    let line = std::str::from_utf8(line).map_err(|_| Malformed)?;
    let mut words = line.split(' ').skip(1);
    let header = |source| {
        Ok(Some(Header {
            source,
            length: end + 1,
        }))
    };
    let source = match words.next() {
        // The rest of the line is to be ignored.
        Some("UNKNOWN") => return header(None),
        Some("TCP4") => addresses::<Ipv4Addr>(&mut words),
        Some("TCP6") => addresses::<Ipv6Addr>(&mut words),
        _ => None,
    };
    let ports = [words.next(), words.next()];
    let is_port = |word: &Option<&str>| {
        word.is_some_and(|word| {
            word.bytes().all(|byte| byte.is_ascii_digit()) && word.parse::<u16>().is_ok()
        })
    };
    match source {
        Some(source) if ports.iter().all(is_port) && words.next().is_none() => header(Some(source)),
        _ => Err(Malformed),
    }
}

/// The first of two addresses.
fn addresses<'a, A>(words: &mut impl Iterator<Item = &'a str>) -> Option<IpAddr>
where
    A: std::str::FromStr + Into<IpAddr>,
{
    let source: A = words.next()?.parse().ok()?;
    let _: A = words.next()?.parse().ok()?;
    Some(source.into())
}

/// Version 2. The addresses are followed by type-length-value fields, which are skipped.
fn parse_binary(input: &[u8]) -> Result<Option<Header>, Malformed> {
    let Some((fixed, rest)) = input.split_first_chunk::<FIXED_BYTES>() else {
        return Ok(None);
    };
    let [.., command, family, high, low] = *fixed;
    let following = usize::from(u16::from_be_bytes([high, low]));
    let header = |source| {
        Ok(Some(Header {
            source,
            length: FIXED_BYTES + following,
        }))
    };
    match command {
        // LOCAL: the proxy's own connection, such as a health check. The rest is ignored.
        0x20 => return header(None),
        0x21 => {}
        _ => return Err(Malformed),
    }
    // Source, destination, and two ports.
    let (source_bytes, all_bytes) = match family {
        // Over TCP or UDP.
        0x11 | 0x12 => (4, 12),
        0x21 | 0x22 => (16, 36),
        // Unspecified, or a path in the file system: no address.
        0x00 | 0x31 | 0x32 => return header(None),
        _ => return Err(Malformed),
    };
    if following < all_bytes {
        return Err(Malformed);
    }
    let Some(source) = rest.get(..source_bytes) else {
        return Ok(None);
    };
    if let Ok(octets) = <[u8; 4]>::try_from(source) {
        return header(Some(octets.into()));
    }
    match <[u8; 16]>::try_from(source) {
        Ok(octets) => header(Some(octets.into())),
        Err(_) => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn binary(command: u8, family: u8, following: &[u8]) -> Vec<u8> {
        let length = u16::try_from(following.len()).expect("short");
        let fixed = [command, family];
        [&SIGNATURE[..], &fixed, &length.to_be_bytes(), following].concat()
    }

    fn of(source: IpAddr, values: &[u8]) -> Vec<u8> {
        let (family, addresses) = match source {
            IpAddr::V4(source) => (0x11, [source.octets(), [127, 0, 0, 1]].concat()),
            IpAddr::V6(source) => (
                0x21,
                [source.octets(), Ipv6Addr::LOCALHOST.octets()].concat(),
            ),
        };
        binary(
            0x21,
            family,
            &[&addresses[..], &[1, 2, 3, 4], values].concat(),
        )
    }

    fn line(source: IpAddr) -> Vec<u8> {
        let text = match source {
            IpAddr::V4(source) => format!("PROXY TCP4 {source} 127.0.0.1 4711 443\r\n"),
            IpAddr::V6(source) => format!("PROXY TCP6 {source} ::1 4711 443\r\n"),
        };
        text.into_bytes()
    }

    /// The result for a whole header. Every prefix of the header waits for more bytes.
    fn check(bytes: &[u8], source: Option<IpAddr>) {
        let header = Header {
            source,
            length: bytes.len(),
        };
        assert_eq!(parse(bytes), Ok(Some(header)), "{}", bytes.escape_ascii());
        let more = [bytes, b"GET / HTTP/1.1\r\n"].concat();
        assert_eq!(
            parse(&more),
            Ok(Some(header)),
            "data after the header is not consumed"
        );
        for end in 0..bytes.len() {
            match parse(&bytes[..end]) {
                Ok(None) => {}
                // The skipped parts of version 2 need not be present.
                Ok(Some(early)) if bytes.starts_with(SIGNATURE) => assert_eq!(early, header),
                other => panic!("{other:?} at {end} of {}", bytes.escape_ascii()),
            }
        }
    }

    #[test]
    fn a_header_of_version_1_names_the_source() {
        let v4 = IpAddr::from([192, 0, 2, 7]);
        let v6: IpAddr = "2001:db8::1".parse().expect("an address");
        check(&line(v4), Some(v4));
        check(&line(v6), Some(v6));
        check(b"PROXY UNKNOWN\r\n", None);
        check(b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", None);
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        let longest = format!("PROXY UNKNOWN {longest} {longest} 65535 65535\r\n");
        assert_eq!(longest.len(), LINE_BYTES_MAX);
        check(longest.as_bytes(), None);
    }

    #[test]
    fn a_header_of_version_2_names_the_source_and_its_values_are_skipped() {
        let v4 = IpAddr::from([192, 0, 2, 7]);
        let v6: IpAddr = "2001:db8::1".parse().expect("an address");
        for values in [&b""[..], b"\x04\0\x01x", &[7; 3000]] {
            check(&of(v4, values), Some(v4));
            check(&of(v6, values), Some(v6));
        }
        check(&binary(0x20, 0x00, b""), None);
        check(&binary(0x20, 0x11, b"anything"), None);
        check(&binary(0x21, 0x00, b"values"), None);
        check(&binary(0x21, 0x31, &[0; 216]), None);
    }

    #[test]
    fn malformed_headers_are_refused_at_the_first_invalid_byte() {
        let too_long = format!("PROXY UNKNOWN {}", "x".repeat(LINE_BYTES_MAX));
        for bytes in [
            &b"G"[..],
            b"PO",
            b"PRI * HTTP/2.0\r\n",
            b"\x16\x03\x01",
            b"proxy ",
            b"PROXY\t",
            b"PROXY \r\n",
            b"PROXY TCP4\r\n",
            b"PROXY TCP5 192.0.2.7 127.0.0.1 1 2\r\n",
            b"PROXY TCP4 2001:db8::1 ::1 1 2\r\n",
            b"PROXY TCP6 192.0.2.7 127.0.0.1 1 2\r\n",
            b"PROXY TCP4 192.0.2.07 127.0.0.1 1 2\r\n",
            b"PROXY TCP4  192.0.2.7 127.0.0.1 1 2\r\n",
            b"PROXY TCP4 192.0.2.7 127.0.0.1 1 65536\r\n",
            b"PROXY TCP4 192.0.2.7 127.0.0.1 1 +2\r\n",
            b"PROXY TCP4 192.0.2.7 127.0.0.1 1\r\n",
            b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2 3\r\n",
            b"PROXY TCP4 192.0.2.7 127.0.0.1 1 2\n",
            b"PROXY TCP4 192.0.2.7\n127.0.0.1 1 2\r\n",
            b"PROXY TCP4 \xff 127.0.0.1 1 2\r\n",
            too_long.as_bytes(),
            b"\r\n\r\n\0\r\nQUIT\r",
            &binary(0x11, 0x11, &[0; 12]),
            &binary(0x22, 0x11, &[0; 12]),
            &binary(0x21, 0x41, &[0; 12]),
            &binary(0x21, 0x13, &[0; 12]),
            &binary(0x21, 0x11, &[0; 11]),
            &binary(0x21, 0x21, &[0; 35]),
        ] {
            assert_eq!(parse(bytes), Err(Malformed), "{}", bytes.escape_ascii());
        }
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let any = || prop::collection::vec(any::<u8>(), 0..300);
        let after = |start: &'static [u8]| any().prop_map(move |rest| [start, &rest].concat());
        prop_oneof![
            any(),
            after(SIGNATURE),
            after(b"\r\n\r\n\0\r\nQUIT\n\x21\x11"),
            after(PREFIX),
            "PROXY (TCP4|TCP6|UNKNOWN)( [0-9a-f.:]{1,20}){0,5}\r?\n".prop_map(String::into_bytes),
        ]
    }

    proptest! {
        /// No panic; a result does not change with more input; the parser never waits for more than a header.
        #[test]
        fn a_result_never_changes_with_more_input(bytes in bytes()) {
            let mut result = Ok(None);
            for end in 0..=bytes.len() {
                let now = parse(&bytes[..end]);
                if result != Ok(None) {
                    prop_assert_eq!(now, result, "at {}", end);
                }
                result = now;
            }
            let undecided_max = LINE_BYTES_MAX.max(FIXED_BYTES + 16);
            prop_assert!(result != Ok(None) || bytes.len() < undecided_max);
        }

        #[test]
        fn every_address_survives_both_versions(
            source in prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)],
            values in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            check(&line(source), Some(source));
            check(&of(source, &values), Some(source));
        }
    }
}
