//! `listener[].tls[].acme`.

use super::*;

const GOOD: &str = "names = ['B.example', 'a.example'], terms_agreed = true";

fn settings(acme: &str) -> String {
    format!("[[listener]]\naddress = '127.0.0.1:0'\ntls = [{{ acme = {{ {acme} }} }}]\n")
}

fn order(acme: &str) -> AcmeOrder {
    let settings = check(&settings(acme), &environment()).expect("good settings");
    let order = settings.acme_orders().next().expect("an order");
    AcmeOrder::clone(order)
}

fn environment() -> Environment {
    Environment::of([("ACME_MAC_KEY", "c2VjcmV0"), ("NO_BASE64", "a*b")])
}

#[test]
fn names_are_sorted_and_the_authority_is_lets_encrypt() {
    let found = order(GOOD);
    assert_eq!(found.names.join(" "), "a.example b.example");
    assert_eq!(
        &*found.directory,
        "https://acme-v02.api.letsencrypt.org/directory"
    );
    assert_eq!(found.challenge, AcmeChallenge::Http01);
    assert_eq!(found.label(), "acme:a.example");
    assert!(found.serves(&"A.example".try_into().expect("a name")));
    assert!(!found.serves(&"c.example".try_into().expect("a name")));
    // The order of the names, and what does not name the certificate, make no other one.
    let same = order("names = ['a.example', 'b.example'], terms_agreed = true, retry_secs = 9");
    assert_eq!(same.id(), found.id());
    assert_ne!(same, found);
    let other = order("names = ['a.example'], terms_agreed = true");
    assert_ne!(other.id(), found.id());
    let contact = order(&format!("{GOOD}, contact = ['ops@a.example']")).contact;
    assert_eq!(contact, ["mailto:ops@a.example"]);
}

#[test]
fn the_mac_key_is_decoded_and_never_printed() {
    let found = order(&format!(
        "{GOOD}, key_id = 'kid', mac_key_env = 'ACME_MAC_KEY'"
    ));
    let account = found.external_account.as_ref().expect("an account");
    assert_eq!(account.mac_key.expose_secret(), b"secret");
    assert!(!format!("{found:?}").contains("secret"), "{found:?}");
}

#[test]
fn each_mistake_is_named_with_its_remedy() {
    let wildcard = "names = ['*.a.example'], terms_agreed = true";
    for (acme, key, words) in [
        (
            "terms_agreed = true",
            "acme.names",
            "is missing; write the names",
        ),
        (
            "names = [], terms_agreed = true",
            "acme.names",
            "write 1 to 100",
        ),
        (wildcard, "acme.names.0", "is a wildcard"),
        (
            "names = ['192.0.2.1'], terms_agreed = true",
            "acme.names.0",
            "is an address",
        ),
        (
            "names = ['a b'], terms_agreed = true",
            "acme.names.0",
            "write a DNS name",
        ),
        (
            "names = ['a.example', 'A.example'], terms_agreed = true",
            "acme.names.1",
            "is there twice",
        ),
        (
            "names = ['a.example']",
            "acme.terms_agreed",
            "read the authority's terms",
        ),
        (
            "names = ['a.example'], terms_agreed = false",
            "acme.terms_agreed",
            "read the authority's terms",
        ),
        (
            &format!("{GOOD}, contact = ['ops']"),
            "acme.contact.0",
            "write a mail address",
        ),
        (
            &format!("{GOOD}, directory = 'http://ca.example'"),
            "acme.directory",
            "is not `https`",
        ),
        (
            &format!("{GOOD}, ca_file = 'missing.pem'"),
            "acme.ca_file",
            "cannot be read",
        ),
        (
            &format!("{GOOD}, challenge = 'dns-01'"),
            "acme.challenge",
            "use `http-01` or `tls-alpn-01`",
        ),
        (
            &format!("{GOOD}, key_id = 'kid'"),
            "acme.key_id",
            "name the MAC key",
        ),
        (
            &format!("{GOOD}, mac_key_env = 'ACME_MAC_KEY'"),
            "acme.mac_key_env",
            "is set without `key_id`",
        ),
        (
            &format!("{GOOD}, key_id = 'kid', mac_key_env = 'NO_BASE64'"),
            "acme.mac_key_env",
            "no base64url text",
        ),
        (
            &format!("{GOOD}, retry_secs = 0"),
            "acme.retry_secs",
            "use 1 to 86400",
        ),
        (
            &format!("{GOOD}, renew = 5"),
            "acme.renew",
            "is not a setting",
        ),
    ] {
        let found = check(&settings(acme), &environment()).expect_err(acme);
        let is_it = |one: &String| one.contains(&format!("tls.0.{key}: ")) && one.contains(words);
        assert!(found.iter().any(is_it), "{acme}: {found:?}");
    }
    let beside = settings(GOOD).replace("{ acme", "{ key = 'key.pem', acme");
    assert!(problems(&beside)[0].contains("tls.0.key: is set beside `acme`"));
    let with_clients = settings(&format!("{GOOD}, challenge = 'tls-alpn-01'"));
    let found = problems(&format!("{with_clients}client_ca = 'clients.pem'\n"));
    assert!(
        found.iter().any(|one| one.contains("use `http-01`")),
        "{found:?}"
    );
}

#[test]
fn a_challenge_that_no_listener_takes_is_a_warning() {
    let warnings = |text: &str| {
        let settings = check(text, &environment()).expect("good settings");
        let found = settings.warnings();
        let found = found.into_iter().filter(|one| one.key == "listener");
        found.count()
    };
    let alone = settings(GOOD);
    assert_eq!(warnings(&alone), 1);
    let plain = "[[listener]]\naddress = '127.0.0.1:0'\n";
    assert_eq!(warnings(&format!("{alone}{plain}")), 0);
    let tls_alpn = settings(&format!("{GOOD}, challenge = 'tls-alpn-01'"));
    assert_eq!(warnings(&tls_alpn), 0);
}

#[test]
fn the_public_host_may_have_a_certificate_by_acme() {
    for (host, warned) in [("a.example", false), ("c.example", true)] {
        let text = format!("[service]\nbase_url = 'https://{host}'\n{}", settings(GOOD));
        let settings = check(&text, &environment()).expect("good settings");
        let found = settings.warnings();
        let found = found.iter().any(|one| one.key == "service.base_url");
        assert_eq!(found, warned, "{host}");
    }
}
