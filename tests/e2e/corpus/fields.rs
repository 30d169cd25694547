//! Samples of header fields: invalid credentials, payments and keys, and values with difficult syntax.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};

/// Fields of a request, by name.
pub(super) type Sample = Vec<(&'static str, Vec<u8>)>;

/// Fields read by every operation.
const READ: [&str; 5] = [
    "Authorization",
    "X-Svc-Authorization",
    "Idempotency-Key",
    "Content-Type",
    "Content-Encoding",
];

/// Fields read only by purchases.
const BOUGHT_WITH: [&str; 9] = [
    "PAYMENT-SIGNATURE",
    "X-PAYMENT",
    "Payment-Authorization",
    "Accept-Payment",
    "UCP-Agent",
    "Request-Id",
    "Content-Digest",
    "Signature",
    "Signature-Input",
];

/// Fields read by other operations or by no operation.
const OTHERS: [&str; 10] = [
    "Accept",
    "Origin",
    "Cookie",
    "If-None-Match",
    "MCP-Session-Id",
    "MCP-Protocol-Version",
    "X-Forwarded-For",
    "Forwarded",
    "traceparent",
    "PayPal-Transmission-Sig",
];

/// Every sample for an operation, with its description. `key` is a valid key, for samples in need of authentication.
pub(super) fn for_path(path: &str, key: &str) -> Vec<(String, Sample)> {
    let sells = path.starts_with("/commerce/") || path.starts_with("/ucp/");
    let mut all = Vec::new();
    for name in READ.into_iter().chain(BOUGHT_WITH).chain(OTHERS) {
        let is_read = READ.contains(&name) || (sells && BOUGHT_WITH.contains(&name));
        // Unread fields still have to pass the checks of the head: the last values are for unread fields.
        for value in values().into_iter().skip(if is_read { 0 } else { 50 }) {
            let shown = String::from_utf8_lossy(&value[..value.len().min(40)]).into_owned();
            all.push((format!("{name}: {shown}"), vec![(name, value)]));
        }
        all.push((
            format!("{name} twice"),
            vec![(name, b"one".to_vec()), (name, b"two".to_vec())],
        ));
        all.push((
            format!("{name} thirty times"),
            vec![(name, b"one".to_vec()); 30],
        ));
    }
    if !sells {
        return all;
    }
    for junk in junk() {
        let shown = String::from_utf8_lossy(&junk[..junk.len().min(40)]).into_owned();
        for (alphabet, text) in [
            ("standard", STANDARD.encode(&junk)),
            ("of addresses", URL_SAFE_NO_PAD.encode(&junk)),
        ] {
            let bearer = format!("Bearer {key}").into_bytes();
            let payment = format!("Payment {text}").into_bytes();
            let what = |name: &str| format!("{name} with {shown} in the alphabet {alphabet}");
            all.push((
                what("PAYMENT-SIGNATURE"),
                vec![("PAYMENT-SIGNATURE", text.clone().into_bytes())],
            ));
            all.push((
                what("X-PAYMENT"),
                vec![("X-PAYMENT", text.clone().into_bytes())],
            ));
            all.push((
                what("Payment"),
                vec![
                    ("Authorization", payment.clone()),
                    ("X-Svc-Authorization", bearer.clone()),
                ],
            ));
            all.push((
                what("Payment-Authorization"),
                vec![
                    ("Authorization", bearer.clone()),
                    ("Payment-Authorization", payment.clone()),
                ],
            ));
            all.push((
                what("Payment twice"),
                vec![
                    ("Authorization", payment.clone()),
                    ("Authorization", payment),
                    ("X-Svc-Authorization", bearer),
                ],
            ));
        }
    }
    all
}

/// Values for any field.
fn values() -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = [
        "",
        " ",
        "x",
        "\t\t",
        ",",
        ",,,;;;===",
        "\"",
        "\"\\",
        "\"a\", \"b\"",
        "=",
        "====",
        "-_-_",
        "e30=",
        "bnVsbA==",
        "W10=",
        "////",
        "?1",
        ":AAAA:",
        "(a b",
        "-1",
        "1e999",
        "99999999999999999999999999",
        "profile",
        "profile=",
        "profile=\"",
        "profile=\"https://platform.example/p.json\"",
        "profile=\"http://127.0.0.1:1/\"",
        "profile=https://platform.example",
        "profile=(\"a\");version=\"x\"",
        "profile=\"https://platform.example/p.json\"; version=\"2099-01-01\"",
        "Bearer",
        "Bearer ",
        "Bearer  x  y",
        "bearer sk-svc-",
        "Basic Og==",
        "Payment",
        "Payment x",
        "Payment id=\"a\", realm=",
        "Negotiate, Bearer x, Payment e30",
        "gzip, br;q=x",
        "application/json; charset=\"",
        "multipart/form-data; boundary=",
        "text/plain",
        "sha-256=:AAAA:",
        "sig1=(\"@method\");created=x",
        "null",
        "https://evil.example",
        "__proto__",
        "%00%ff%zz",
        "{{7*7}}",
        "' OR 1=1 --",
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    values.extend([
        b"\x01".to_vec(),
        b"a\0b".to_vec(),
        b"a\x7fb".to_vec(),
        b"\x80\xff".to_vec(),
        "\u{1f9ff}\u{202e}".as_bytes().to_vec(),
        b"a\rb".to_vec(),
        b"a".repeat(256),
        b"Bearer "
            .iter()
            .copied()
            .chain(b"a".repeat(4000))
            .collect(),
        b"A".repeat(17_000),
        b"A".repeat(40_000),
    ]);
    values
}

/// The texts of payments, before the encoding in an alphabet.
fn junk() -> Vec<Vec<u8>> {
    const AUTHORIZATION: &str = r#"{"x402Version":2,"accepted":{"scheme":"exact","network":"eip155:8453","amount":"199000000","asset":"0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913","payTo":"0x90F79bf6EB2c4f870365E785982E1f101E93b906","maxTimeoutSeconds":300,"extra":{"name":"USD Coin","version":"2"}},"payload":{"signature":"SIGNATURE","authorization":{"from":"0x70997970C51812dc3A010C7d01b50e0d17dc79C8","to":"0x90F79bf6EB2c4f870365E785982E1f101E93b906","value":"VALUE","validAfter":"0","validBefore":"BEFORE","nonce":"NONCE"}}}"#;
    let authorization = |signature: &str, value: &str, before: &str, nonce: &str| {
        AUTHORIZATION
            .replace("SIGNATURE", signature)
            .replace("VALUE", value)
            .replace("BEFORE", before)
            .replace("NONCE", nonce)
            .into_bytes()
    };
    let hex = |digits: usize| format!("0x{}", "1".repeat(digits));
    let digits = "9".repeat(79);
    let deep = "[".repeat(3000);
    let mut junk: Vec<Vec<u8>> = [
        "",
        "{}",
        "[]",
        "null",
        "7",
        "\"a\"",
        "{\"x402Version\":1}",
        "{\"x402Version\":2}",
        "{\"x402Version\":2,\"accepted\":null,\"payload\":null}",
        "{\"x402Version\":2,\"accepted\":{},\"payload\":{}}",
        "{\"x402Version\":2e0,\"accepted\":[],\"payload\":[]}",
        "{\"x402Version\":99999999999999999999}",
        "{\"x402Version\":2,\"x402Version\":2}",
        "{\"challenge\":{},\"payload\":{}}",
        "{\"challenge\":null,\"payload\":null}",
        "{\"challenge\":[],\"payload\":\"x\"}",
        "{\"challenge\":{\"id\":\"a\",\"realm\":\"b\",\"method\":\"paypal\",\"intent\":\"charge\",\"request\":\"e30\"},\"payload\":{\"type\":\"subscription\",\"subscriptionId\":\"I-1\"}}",
        "{\"challenge\":{\"id\":1,\"realm\":2,\"method\":3,\"intent\":4,\"request\":5,\"expires\":6,\"opaque\":{}},\"payload\":{}}",
        "{\"challenge\":{\"id\":\"a\",\"realm\":\"b\",\"method\":\"tempo\",\"intent\":\"session\",\"request\":\"=\",\"expires\":\"yesterday\"},\"payload\":{}}",
        "{\"challenge\":{\"id\":\"\u{1f9ff}\",\"realm\":\"\\u0000\",\"method\":\"paypal\",\"intent\":\"charge\",\"request\":\"e30\",\"digest\":\"sha-256=x\"},\"source\":{},\"payload\":{}}",
        &deep,
    ]
    .map(|text| text.as_bytes().to_vec())
    .to_vec();
    junk.extend([
        authorization(&hex(130), "199000000", "4102444800", &hex(64)),
        authorization(&hex(130), &digits, "4102444800", &hex(64)),
        authorization(&hex(130), "199000000", &digits, &hex(64)),
        authorization("", "199000000", "1", ""),
        authorization("0x", "-1", "x", "0xzz"),
        authorization(&hex(131), "1e9", "", &hex(63)),
        authorization(&hex(6000), "199000000", "4102444800", &hex(64)),
        b"\xff\xfe\x00".to_vec(),
        vec![0; 100],
    ]);
    junk
}
