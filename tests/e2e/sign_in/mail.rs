//! Mail with codes: TLS to the server, and addresses in every spelling.

use super::*;

#[tokio::test]
async fn mail_is_sent_over_verified_tls() {
    for tls in [mailbox::Tls::Implicit, mailbox::Tls::StartTls] {
        let certificate = tollgate_testing::Certificate::for_localhost();
        let mailbox = Mailbox::start(mailbox::Settings {
            tls: Some((certificate.clone(), tls)),
            login: Some(("gateway".into(), "password-of-a-test".into())),
            ..mailbox::Settings::default()
        });
        let mailbox = mailbox.expect("free ports");
        let folder = tollgate_testing::tempdir().expect("a folder");
        let root = folder.path().join("mail-ca.pem");
        std::fs::write(&root, &certificate.ca_pem).expect("the folder takes files");
        let (scheme, word) = match tls {
            mailbox::Tls::Implicit => ("smtps", "implicit"),
            mailbox::Tls::StartTls => ("smtp", "starttls"),
        };
        let settings = format!(
            r#"
            [signin.mail]
            smtp_url = "{scheme}://localhost:{}"
            tls = "{word}"
            user = "gateway"
            password_env = "SMTP_PASSWORD"
            from = "codes@example.net"
            ca_file = "{}"
            "#,
            mailbox.smtp().port(),
            root.display()
        );
        let mut setup = Setup::with(&settings);
        setup.environment = tollgate::config::Environment::of([
            ("PROVIDER_KEY", crate::rig::PROVIDER_KEY),
            ("SMTP_PASSWORD", "password-of-a-test"),
        ]);
        let rig = setup.start().await;
        add_login(&rig, rig.account, ADA).await;
        let mut browser = Browser::new(&rig);
        assert_eq!(ask(&mut browser, "/sign-in", ADA).await.status, 303);
        let message = mailbox.message(ADA, 1).await;
        assert!(message.tls, "{word}");
        assert_eq!(message.from, "codes@example.net");
        rig.finish().await;
    }
}

#[tokio::test]
async fn an_internationalized_domain_is_one_account_in_each_spelling() {
    let trusted = "[[listener]]\ntrusted_proxies = [\"127.0.0.1\"]";
    let (rig, mailbox) = with_mailbox(trusted).await;
    let mut emails = Vec::new();
    for (number, spelling) in ["ada@b\u{fc}cher.example", "ada@xn--bcher-kva.example"]
        .into_iter()
        .enumerate()
    {
        // From a separate network: an address gets a code in 30 seconds per network.
        let network = format!("192.0.2.{}", number + 1);
        let mut browser = Browser::new(&rig).forwarded_for(&network);
        let asked = ask(&mut browser, "/sign-up", spelling).await;
        assert_eq!(asked.status, 303, "{}", asked.text());
        let message = mailbox
            .message("ada@xn--bcher-kva.example", number + 1)
            .await;
        assert_eq!(type_code(&mut browser, message.code()).await.status, 303);
        emails.push(browser.get("/").await.status);
    }
    assert_eq!(emails, [200, 200]);
    let login = tollgate_identity::Login::email("ada@b\u{fc}cher.example").expect("an address");
    assert_eq!(login.address(), "ada@xn--bcher-kva.example");
    let store = tollgate_store::sqlite::open_read(&rig.database()).expect("the store opens");
    let accounts = store.accounts_after(None, 100).expect("readable");
    let with_it = accounts.iter().filter(|row| {
        let logins = store.logins(row.id).expect("readable");
        logins.iter().any(|one| one.address.contains("cher"))
    });
    assert_eq!(with_it.count(), 1);
    rig.finish().await;
}
