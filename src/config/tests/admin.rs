//! `[admin]`: tokens, and addresses beyond loopback.

use tollgate_identity::Digest;
use tollgate_testing::Certificate;

use super::*;

const TOKEN: &str = "c0a1b2d3e4f5061728394a5b6c7d8e9f";

#[test]
fn tokens_come_from_variables_files_and_digests() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).expect("the folder takes files");
    let digest = "sha256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855";
    let text = format!(
        "[[admin.token]]\nname = 'a'\ntoken_env = 'ADMIN'\nrole = 'operate'\n\
         [[admin.token]]\nname = 'b'\ntoken_file = '{}'\n[[admin.token]]\nname = 'c'\ndigest = '{digest}'\n",
        file.display()
    );
    let environment = Environment::of([("ADMIN", TOKEN)]);
    let settings = check(&text, &environment).expect("good settings");
    let tokens = settings.admin.tokens.iter();
    let tokens: Vec<_> = tokens
        .map(|token| (&*token.name, token.role, token.digest))
        .collect();
    let digest = Digest::of(TOKEN.as_bytes());
    assert_eq!(
        tokens,
        [
            ("a", AdminRole::Operate, digest),
            ("b", AdminRole::Read, digest),
            ("c", AdminRole::Read, Digest::of(b"")),
        ]
    );
    assert!(!format!("{settings:?}").contains(TOKEN));
}

#[test]
fn a_token_that_is_missing_short_or_unclear_is_refused() {
    //    the token                                                    the problem
    for (text, problem) in [
        (
            "name = 'a'",
            "admin.token.0.token_env: is missing; write it, `token_file` or `digest`",
        ),
        ("token_env = 'LONG'", "admin.token.0.name: is missing"),
        (
            "name = 'a'\ntoken_env = 'SHORT'",
            "32 to 512 visible ASCII characters",
        ),
        ("name = 'a'\ntoken_env = 'NONE'", "which is not set"),
        (
            "name = 'a'\ndigest = 'sha256:00'",
            "is not `sha256:` and 64 hex digits",
        ),
        (
            "name = 'a'\ntoken_env = 'LONG'\ndigest = 'sha256:00'",
            "is set beside",
        ),
        (
            "name = 'a b'\ntoken_env = 'LONG'",
            "is not a name of a token",
        ),
        ("name = 'a'\nrole = 'root'\ntoken_env = 'LONG'", "role"),
        (
            "name = 'a'\ntoken_env = 'LONG'\n[[admin.token]]\nname = 'a'\ntoken_env = 'LONG'",
            "is the name of another token too",
        ),
    ] {
        let environment = Environment::of([("LONG", TOKEN), ("SHORT", "0123456789")]);
        let found = check(&format!("[[admin.token]]\n{text}"), &environment);
        let found = found.expect_err("it is refused").join("\n");
        assert!(found.contains(problem), "{text}: {found}");
        assert!(!found.contains("0123456789"), "{found}");
    }
}

#[test]
fn an_address_beyond_loopback_needs_tls_and_authentication() {
    let folder = tempfile::tempdir().expect("a folder");
    let certificate = Certificate::for_localhost();
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("the folder takes files");
        path.display().to_string()
    };
    let tls = format!(
        "[admin.tls]\ncertificate = '{}'\nkey = '{}'\n",
        path("certificate.pem", &certificate.cert_pem),
        path("key.pem", &certificate.key_pem)
    );
    let authority = format!("client_ca = '{}'\n", path("ca.pem", &certificate.ca_pem));
    let token = "[[admin.token]]\nname = 'a'\ntoken_env = 'ADMIN'\n";
    //    what is set                            what is missing
    for (more, problem) in [
        (String::new(), Some("in plain text")),
        (token.to_owned(), Some("in plain text")),
        (tls.clone(), Some("by anyone")),
        (format!("{tls}{token}"), None),
        (format!("{tls}{authority}"), None),
        (format!("{tls}{authority}{token}"), None),
        (
            "[admin.tls]\ncertificate = 'a.pem'".to_owned(),
            Some("admin.tls.key: is missing"),
        ),
        (
            format!("{tls}client_ca = 'nothing.pem'\n"),
            Some("admin.tls.client_ca"),
        ),
    ] {
        for address in ["0.0.0.0:9090", "[::]:9090", "192.0.2.1:9090"] {
            let text = format!("[admin]\naddress = '{address}'\n{more}");
            let found = check(&text, &Environment::of([("ADMIN", TOKEN)]));
            match problem {
                None => {
                    let admin = found.expect("good settings").admin;
                    assert_eq!(admin.address.to_string(), address);
                    assert!(admin.tls.is_some());
                }
                Some(problem) => {
                    let found = found.expect_err("it is refused").join("\n");
                    assert!(found.contains(problem), "{more}: {found}");
                }
            }
        }
    }
    let local = check(
        &format!("[admin]\naddress = '[::1]:0'\n{tls}"),
        &Environment::default(),
    );
    assert!(local.expect("good settings").admin.tls.is_some());
}
