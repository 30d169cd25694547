//! One mailbox is one account, and gets the credits for signing up once.

use super::*;

#[tokio::test]
async fn a_domain_in_any_spelling_is_one_account_also_if_an_earlier_release_stored_it() {
    let mut bed = TestBed::new().await;
    // As releases before stored it.
    let login = Part::InsertLogin(Box::new(NewLogin {
        id: LoginId::from_bytes([9; 16]),
        account: bed.account,
        kind: LoginKind::Email,
        address: Arc::from("ada@b\u{fc}cher.example"),
        verified_at: None,
        created_at: START,
    }));
    let unit = UnitOfWork::of(login, Admission::Normal);
    commit(&*bed.store, unit).await.expect("a login");
    for spelling in [
        "ada@b\u{fc}cher.example",
        "ada@xn--bcher-kva.example",
        "Ada@BU\u{308}CHER.example",
    ] {
        bed.now += HOUR;
        assert_eq!(bed.enter(spelling).await.account, bed.account, "{spelling}");
        let browser = bed.browser();
        bed.now += HOUR;
        let sent = bed.send(&browser, spelling, CodePurpose::SignUp).await;
        sent.expect("a code");
        let code = bed.code().await;
        match bed.verify_code(&browser, &code).await {
            CodeOutcome::Accepted(entered) => assert_eq!(entered.account, bed.account),
            other => panic!("the code was right, and {other:?}"),
        }
    }
}

#[tokio::test]
async fn credits_for_signing_up_are_given_once_for_a_mailbox() {
    let mut bed = TestBed::with(SigninRules {
        grant: Micros::new(5),
        network_hourly_max: 100,
        ..SigninRules::default()
    })
    .await;
    for (address, given) in [
        ("eve@mail.example", true),
        ("eve+1@mail.example", false),
        ("Eve+2@Mail.example", false),
        ("mallory@mail.example", true),
        ("zoe+a@b\u{fc}cher.example", true),
        ("zoe@xn--bcher-kva.example", false),
        ("eve@other.example", true),
        ("+4930123456", true),
    ] {
        assert_eq!(bed.sign_up(address).await, given, "{address}");
    }
}

/// Earlier releases gave the credits without a record of the mailbox.
#[tokio::test]
async fn a_mailbox_with_an_account_of_an_earlier_release_gets_no_further_credits() {
    let mut bed = TestBed::with(SigninRules {
        grant: Micros::new(5),
        grants_network_daily_max: 6,
        network_hourly_max: 100,
        ..SigninRules::default()
    })
    .await;
    for (number, address) in [
        "ada@mail.example",
        "eve+news@mail.example",
        "zoe@b\u{fc}cher.example",
        "mallory-x@mail.example",
        "mallory@other.example",
        "mallory+a@other.example",
    ]
    .into_iter()
    .enumerate()
    {
        let login = Part::InsertLogin(Box::new(NewLogin {
            id: LoginId::from_bytes([number as u8; 16]),
            account: bed.account,
            kind: LoginKind::Email,
            address: Arc::from(address),
            verified_at: None,
            created_at: START,
        }));
        let unit = UnitOfWork::of(login, Admission::Normal);
        commit(&*bed.store, unit).await.expect("a login");
    }
    for (address, given) in [
        ("ada+1@mail.example", false),
        ("Ada+2@Mail.example", false),
        ("eve@mail.example", false),
        ("eve+1@mail.example", false),
        ("eve+news2@mail.example", false),
        ("zoe+1@b\u{fc}cher.example", false),
        ("zoe+1@other.example", true),
        ("mallory@mail.example", true),
        ("mallory+1@mail.example", false),
        ("mallory+1@other.example", false),
        ("eve-news@mail.example", true),
        ("adam@mail.example", true),
        ("ad@mail.example", true),
        // The refused ones were not counted by the network.
        ("+4930123456", true),
        ("bob@mail.example", false),
    ] {
        assert_eq!(bed.sign_up(address).await, given, "{address}");
    }
}

#[tokio::test]
async fn credits_for_signing_up_are_limited_by_network_and_by_domain() {
    let mut bed = TestBed::with(SigninRules {
        grant: Micros::new(5),
        grants_network_daily_max: 2,
        grants_domain_daily_max: 3,
        ..SigninRules::default()
    })
    .await;
    for (network, address, given) in [
        ("192.0.2.1", "a@one.example", true),
        ("192.0.2.1", "b@one.example", true),
        ("192.0.2.1", "c@two.example", false),
        ("198.51.100.7", "d@one.example", true),
        ("198.51.100.7", "e@one.example", false),
        ("198.51.100.7", "f@two.example", true),
        ("2001:db8::1", "+4930000001", true),
        ("2001:db8::2", "+4930000002", true),
        ("2001:db8::3", "+4930000003", false),
    ] {
        bed.network = network.parse().expect("an address");
        assert_eq!(bed.sign_up(address).await, given, "{address} at {network}");
    }
    // Refused grants were not counted, and a day later there are more.
    bed.now += 24 * HOUR;
    bed.network = HOME;
    assert!(bed.sign_up("g@one.example").await);
    assert!(!bed.sign_up("a+again@one.example").await);
}
