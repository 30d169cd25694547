//! `Forwarded` (RFC 7239) and `X-Forwarded-For`: parses the client address reported by a trusted proxy.
//!
//! Each proxy on the path appends the address of its peer at the right end. The text left of the first untrusted address can be forged, so
//! both fields are parsed from the right up to the first untrusted address. No quote or comma further left can hide a proxy's entry.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{HeaderMap, HeaderName, header};
use tollgate_filter::{ApiError, ClientAddress, ErrorCode};

use crate::config::{ForwardedField, TrustedProxies};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Maximum number of parsed elements. As many trusted proxies in a row are a loop.
const ELEMENTS_MAX: usize = 32;

/// The client of a request on a connection from `proxy`, which is trusted.
///
/// The rightmost untrusted address; if all addresses are trusted, the leftmost. An element without an address ends the search: its proxy is
/// the last known address.
///
/// # Errors
///
/// A refusal where both fields are read and report different clients.
pub(super) fn client(
    proxies: &TrustedProxies,
    proxy: ClientAddress,
    headers: &HeaderMap,
) -> Result<ClientAddress, ApiError> {
    let by_x_forwarded_for = || search(proxies, proxy, headers, &X_FORWARDED_FOR, address);
    let by_forwarded = || search(proxies, proxy, headers, &header::FORWARDED, for_node);
    match proxies.forwarded_field {
        ForwardedField::None => Ok(proxy),
        ForwardedField::XForwardedFor => Ok(by_x_forwarded_for()),
        ForwardedField::Forwarded => Ok(by_forwarded()),
        ForwardedField::Either if !headers.contains_key(header::FORWARDED) => {
            Ok(by_x_forwarded_for())
        }
        ForwardedField::Either if !headers.contains_key(&X_FORWARDED_FOR) => Ok(by_forwarded()),
        ForwardedField::Either => {
            let client = by_x_forwarded_for();
            match client == by_forwarded() {
                true => Ok(client),
                false => Err(ApiError::new(
                    ErrorCode::InvalidHeader,
                    "`Forwarded` and `X-Forwarded-For` name different clients. Leave both out: the proxy in front of this service adds its own.",
                )),
            }
        }
    }
}

/// Iterates over the elements of a field from the right.
fn search(
    proxies: &TrustedProxies,
    proxy: ClientAddress,
    headers: &HeaderMap,
    name: &HeaderName,
    read: fn(&[u8]) -> Option<IpAddr>,
) -> ClientAddress {
    // Several lines are one list (RFC 9110 section 5.3); a quoted string does not extend over their ends.
    let lines = headers.get_all(name).iter().rev();
    let elements = lines.flat_map(|line| FromTheRight::new(line.as_bytes(), b','));
    let mut client = proxy;
    for element in elements.take(ELEMENTS_MAX) {
        if element.is_empty() {
            // RFC 9110 section 5.6.1.2
            continue;
        }
        let Some(ip) = read(element) else {
            return client;
        };
        let is_trusted = proxies.trusts(ip);
        client = client.reported(ip, is_trusted);
        if !is_trusted {
            return client;
        }
    }
    client
}

/// The parts of a text between separators outside of quoted strings, the last first, without surrounding white space.
struct FromTheRight<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> FromTheRight<'a> {
    fn new(text: &'a [u8], separator: u8) -> FromTheRight<'a> {
        FromTheRight {
            rest: Some(text),
            separator,
        }
    }
}

impl<'a> Iterator for FromTheRight<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let text = self.rest?;
        let mut is_quoted = false;
        for at in (0..text.len()).rev() {
            match text[at] {
                b'"' => {
                    let backslashes = text[..at].iter().rev().take_while(|&&byte| byte == b'\\');
                    // From the right, a quote after an odd number of backslashes is inside its string (RFC 9110 section 5.6.4).
                    let is_escaped = is_quoted && backslashes.count() % 2 == 1;
                    is_quoted ^= !is_escaped;
                }
                byte if byte == self.separator && !is_quoted => {
                    self.rest = Some(&text[..at]);
                    return Some(text[at + 1..].trim_ascii());
                }
                _ => {}
            }
        }
        self.rest = None;
        Some(text.trim_ascii())
    }
}

/// The address of `for` in one element of `Forwarded` (RFC 7239 section 4); `None` if missing, duplicated or not an address.
fn for_node(element: &[u8]) -> Option<IpAddr> {
    let mut node = None;
    for pair in FromTheRight::new(element, b';') {
        let Some(at) = pair.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let (name, value) = (&pair[..at], &pair[at + 1..]);
        if name.trim_ascii().eq_ignore_ascii_case(b"for") && node.replace(value).is_some() {
            return None;
        }
    }
    let node = node?;
    let unquoted = node
        .strip_prefix(b"\"")
        .and_then(|node| node.strip_suffix(b"\""));
    address(unquoted.unwrap_or(node))
}

/// An address, perhaps with a port: `192.0.2.7`, `192.0.2.7:4711`, `2001:db8::1`, `[2001:db8::1]`, `[2001:db8::1]:4711` (RFC 7239 section
/// 6). `None` for `unknown` and obfuscated identifiers, such as `_hidden`.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let (address, port) = if let Some(bracketed) = text.strip_prefix('[') {
        let (address, behind) = bracketed.split_once(']')?;
        let port = match behind {
            "" => None,
            behind => Some(behind.strip_prefix(':')?),
        };
        (address.parse::<Ipv6Addr>().ok().map(IpAddr::V6)?, port)
    } else if let Ok(address) = text.parse::<IpAddr>() {
        (address, None)
    } else {
        let (address, port) = text.split_once(':')?;
        let address = address.parse::<Ipv4Addr>().ok()?;
        (IpAddr::V4(address), Some(port))
    };
    port.is_none_or(is_port).then(|| address.to_canonical())
}

/// A port number, or an obfuscated port.
fn is_port(text: &str) -> bool {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok();
    is_number || (text.len() > 1 && text.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    fn proxies(forwarded_field: ForwardedField) -> TrustedProxies {
        let networks = ["10.0.0.0/8", "2001:db8:10::/48"];
        let networks = networks.iter().map(|text| text.parse().expect("a range"));
        TrustedProxies {
            networks: networks.collect(),
            forwarded_field,
            names_field: true,
            proxy_protocol: false,
        }
    }

    fn fields(lines: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let value = HeaderValue::from_bytes(value).expect("a field");
            headers.append(*name, value);
        }
        headers
    }

    fn found(field: ForwardedField, lines: &[(&'static str, &[u8])]) -> Option<ClientAddress> {
        let proxy = ClientAddress::of_proxy([10, 0, 0, 1].into());
        client(&proxies(field), proxy, &fields(lines)).ok()
    }

    /// The client found, in brackets for a trusted address.
    fn shown(client: Option<ClientAddress>) -> String {
        match client {
            None => "refused".to_owned(),
            Some(client) if client.limited().is_some() => client.ip().to_string(),
            Some(client) => format!("({})", client.ip()),
        }
    }

    #[test]
    fn x_forwarded_for_is_read_from_the_right_to_the_first_address_that_is_not_trusted() {
        let cases: [(&[&str], &str); 20] = [
            (&[], "(10.0.0.1)"),
            (&[""], "(10.0.0.1)"),
            (&["192.0.2.7"], "192.0.2.7"),
            (&[" 192.0.2.7 "], "192.0.2.7"),
            (&["192.0.2.7:4711"], "192.0.2.7"),
            (&["2001:db8::1"], "2001:db8::1"),
            (&["[2001:db8::1]"], "2001:db8::1"),
            (&["[2001:db8::1]:4711"], "2001:db8::1"),
            (&["::ffff:192.0.2.7"], "192.0.2.7"),
            (&["::ffff:10.9.9.9"], "(10.9.9.9)"),
            (&["198.51.100.1, 192.0.2.7"], "192.0.2.7"),
            (&["198.51.100.1, 192.0.2.7, 10.0.0.2"], "192.0.2.7"),
            (&["198.51.100.1", "192.0.2.7,10.0.0.2"], "192.0.2.7"),
            (&["192.0.2.7,, ,10.0.0.2,"], "192.0.2.7"),
            (&["10.0.0.3, 10.0.0.2"], "(10.0.0.3)"),
            (&["192.0.2.7, 2001:db8:10::2"], "192.0.2.7"),
            // An element without an address ends the search.
            (&["192.0.2.7, unknown"], "(10.0.0.1)"),
            (&["192.0.2.7, unknown, 10.0.0.2"], "(10.0.0.2)"),
            (&["192.0.2.7, \"10.0.0.2\""], "(10.0.0.1)"),
            // Text written by a client is not parsed.
            (&["garbage, \"10.0.0.9, 192.0.2.7"], "192.0.2.7"),
        ];
        for (lines, client) in cases {
            let lines: Vec<_> = lines
                .iter()
                .map(|line| ("x-forwarded-for", line.as_bytes()))
                .collect();
            let found = found(ForwardedField::XForwardedFor, &lines);
            assert_eq!(shown(found), client, "{lines:?}");
        }
    }

    #[test]
    fn rfc7239_forwarded_is_read_in_the_same_way() {
        let cases: [(&[&str], &str); 24] = [
            (&["for=192.0.2.7"], "192.0.2.7"),
            (&["For=\"192.0.2.7\""], "192.0.2.7"),
            (&["for=\"192.0.2.7:4711\""], "192.0.2.7"),
            (&["for=192.0.2.7:4711"], "192.0.2.7"),
            (&["for=\"[2001:db8::1]\""], "2001:db8::1"),
            (&["for=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["for=\"[2001:db8::1]:_port\""], "2001:db8::1"),
            (
                &["by=10.0.0.1;for=192.0.2.7;proto=https;host=\"a\""],
                "192.0.2.7",
            ),
            (&["proto=https; FOR = 192.0.2.7"], "(10.0.0.1)"),
            (
                &["for=198.51.100.1, for=192.0.2.7, for=10.0.0.2"],
                "192.0.2.7",
            ),
            (
                &["for=198.51.100.1", "for=192.0.2.7", "for=10.0.0.2"],
                "192.0.2.7",
            ),
            (&["for=192.0.2.7, for=_hidden"], "(10.0.0.1)"),
            (&["for=192.0.2.7, for=unknown, for=10.0.0.2"], "(10.0.0.2)"),
            (&["for=192.0.2.7, proto=https"], "(10.0.0.1)"),
            (&["for=192.0.2.7;for=192.0.2.8"], "(10.0.0.1)"),
            (&["for=\"2001:db8::1\""], "2001:db8::1"),
            (&["for=\"192.0.2.7"], "(10.0.0.1)"),
            (&["for=192.0.2.7\""], "(10.0.0.1)"),
            (&["for=\"\\192.0.2.7\""], "(10.0.0.1)"),
            // Separators inside a string are text.
            (&["for=192.0.2.7;host=\"a,b;for=c\""], "192.0.2.7"),
            (
                &["for=192.0.2.7;host=\"a\\\",for=10.0.0.9;b\""],
                "192.0.2.7",
            ),
            (&["for=192.0.2.7;host=\"a\\\\\", for=10.0.0.2"], "192.0.2.7"),
            // A string left open, or closed twice, by a client does not extend into the text of a proxy.
            (&["for=\"10.0.0.9, for=192.0.2.7"], "192.0.2.7"),
            (
                &["for=10.0.0.9\\\", for=\"[2001:db8::1]:1\""],
                "2001:db8::1",
            ),
        ];
        for (lines, client) in cases {
            let lines: Vec<_> = lines
                .iter()
                .map(|line| ("forwarded", line.as_bytes()))
                .collect();
            let found = found(ForwardedField::Forwarded, &lines);
            assert_eq!(shown(found), client, "{lines:?}");
        }
    }

    #[test]
    fn the_field_that_the_settings_do_not_name_is_not_read() {
        use ForwardedField::{Either, Forwarded, None, XForwardedFor};
        let x: (&str, &[u8]) = ("x-forwarded-for", b"192.0.2.7");
        let same: (&str, &[u8]) = ("forwarded", b"for=\"192.0.2.7:1\"");
        let other: (&str, &[u8]) = ("forwarded", b"for=198.51.100.1");
        type Case<'a> = (ForwardedField, &'a [(&'static str, &'a [u8])], &'a str);
        let cases: [Case<'_>; 10] = [
            (XForwardedFor, &[x, other], "192.0.2.7"),
            (XForwardedFor, &[other], "(10.0.0.1)"),
            (Forwarded, &[x, other], "198.51.100.1"),
            (Forwarded, &[x], "(10.0.0.1)"),
            (None, &[x, same], "(10.0.0.1)"),
            (Either, &[x], "192.0.2.7"),
            (Either, &[other], "198.51.100.1"),
            (Either, &[x, same], "192.0.2.7"),
            (Either, &[x, other], "refused"),
            (Either, &[x, ("forwarded", b"for=unknown")], "refused"),
        ];
        for (field, lines, client) in cases {
            assert_eq!(shown(found(field, lines)), client, "{field:?} {lines:?}");
        }
    }

    #[test]
    fn the_number_of_elements_parsed_is_bounded() {
        let long = |count: usize| format!("192.0.2.7{}", ",10.0.0.2".repeat(count));
        for (count, client) in [
            (ELEMENTS_MAX - 1, "192.0.2.7"),
            (ELEMENTS_MAX, "(10.0.0.2)"),
            (100_000, "(10.0.0.2)"),
        ] {
            let line = long(count);
            let lines: [(&str, &[u8]); 1] = [("x-forwarded-for", line.as_bytes())];
            let found = found(ForwardedField::XForwardedFor, &lines);
            assert_eq!(shown(found), client, "{count}");
        }
    }

    fn visible() -> impl Strategy<Value = Vec<u8>> {
        let often = prop::sample::select(&b",;=\"\\[]:. fo10_"[..]);
        let any = (0x20u8..).prop_filter("no field contains it", |byte| *byte != 0x7f);
        prop::collection::vec(prop_oneof![3 => often, 1 => any], 0..60)
    }

    proptest! {
        /// For every input of a client, the element appended by the proxy decides, on the client's line and on a separate line.
        #[test]
        fn no_input_of_a_client_changes_the_address_that_its_proxy_reports(
            sent in visible(),
            client in any::<[u8; 4]>(),
            port in any::<Option<u16>>(),
            further in 0usize..3,
            same_line in any::<bool>(),
        ) {
            prop_assume!(client[0] != 10);
            let client = IpAddr::from(client);
            let port = port.map(|port| format!(":{port}")).unwrap_or_default();
            for (field, name, own) in [
                (ForwardedField::XForwardedFor, "x-forwarded-for", format!("{client}{port}")),
                (ForwardedField::Forwarded, "forwarded", format!("by=_p;for=\"{client}{port}\";host=\"a,b\"")),
            ] {
                let trusted = match field {
                    ForwardedField::Forwarded => ", for=10.0.0.2",
                    _ => ", 10.0.0.2",
                };
                let own = own + &trusted.repeat(further);
                // `X-Forwarded-For` has no strings, and a quote is ordinary text.
                let joined = [&sent[..], b", ", own.as_bytes()].concat();
                let lines: Vec<(&'static str, &[u8])> = match same_line {
                    true => vec![(name, &joined)],
                    false => vec![(name, &sent), (name, own.as_bytes())],
                };
                prop_assert_eq!(shown(found(field, &lines)), client.to_string());
            }
        }
    }
}
