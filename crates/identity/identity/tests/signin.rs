//! Sign-in through a real store, with a manual clock.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tollgate_clock::Timestamp;
use tollgate_identity::session::{self, IDLE, LIFE, RECENT};
use tollgate_identity::signin::{
    CODE_LIFE, CodeOutcome, CodeRequest, CodeSource, MessageContent, SendCodeError, SignedIn,
    Signin, SigninRules, VerifyCodeError,
};
use tollgate_identity::{
    CreateKeyError, Form, IssueTokenError, KeyId, Login, NewAccount, NewKey, NewToken, Session,
    SessionValue, create_account, create_key_as, issue_token_as,
};
use tollgate_money::{AccountId, LoginId, Micros};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{
    Admission, CodePurpose, Draft, LoginKind, NewLogin, Part, RootSecret, Store, UnitOfWork, commit,
};

#[path = "signin/mailboxes.rs"]
mod mailboxes;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const ADA: &str = "ada@example.com";
const HOME: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

struct TestBed {
    store: Arc<dyn Store>,
    signin: Signin,
    account: AccountId,
    now: Timestamp,
    /// The network and the mark of the browser that everything comes from.
    network: IpAddr,
    mark: Option<SessionValue>,
    drawn: u64,
    folder: TempDir,
}

impl TestBed {
    async fn new() -> TestBed {
        TestBed::with(SigninRules::default()).await
    }

    async fn with(rules: SigninRules) -> TestBed {
        let folder = TempDir::new().expect("a folder");
        let options = Options::new(START, RootSecret([7; 32]));
        let store = sqlite::open(&folder.path().join("books.db"), options).expect("a store");
        let mut drawn = 0;
        let account = NewAccount {
            logins: vec![Login::email(ADA).expect("an address")],
            class: Arc::from("free"),
            credit_limit: Micros::ZERO,
            cache_scope: tollgate_store::CacheScope::Shared,
            created_at: START,
        };
        let account = create_account(&*store, account, |out| draw(&mut drawn, out)).await;
        TestBed {
            signin: Signin::new(store.clone(), rules),
            account: account.expect("an account"),
            store,
            now: START,
            network: HOME,
            mark: None,
            drawn,
            folder,
        }
    }

    fn browser(&mut self) -> SessionValue {
        let drawn = &mut self.drawn;
        SessionValue::draw(|out| draw(drawn, out))
    }

    async fn send(
        &mut self,
        browser: &SessionValue,
        address: &str,
        purpose: CodePurpose,
    ) -> Result<(), SendCodeError> {
        let login = Login::read(address).expect("an address");
        let request = CodeRequest {
            login: &login,
            purpose,
            browser,
            source: self.source(),
            now: self.now,
        };
        let mut drawn = self.drawn;
        let sent = self.signin.send_code(&request, |out| draw(&mut drawn, out));
        let sent = sent.await;
        self.drawn = drawn;
        sent
    }

    fn source(&self) -> CodeSource<'_> {
        CodeSource {
            network: Some(self.network),
            mark: self.mark.as_ref(),
        }
    }

    /// The code of the newest message, as the queue has it.
    async fn code(&self) -> String {
        let due = self.signin.messages_due(self.now, 1000).await;
        let due = due.expect("the store answers");
        let newest = due.iter().max_by_key(|message| message.created_at);
        match &newest.expect("a message").content {
            MessageContent::Code { code, .. } => code.to_string(),
            MessageContent::KeyRevoked { .. } => panic!("a notice"),
        }
    }

    async fn verify_code(&mut self, browser: &SessionValue, code: &str) -> CodeOutcome {
        let current = self.session(browser).await;
        let mut drawn = self.drawn;
        let verified = self.signin.verify_code(
            browser,
            self.source(),
            current.as_ref(),
            code,
            self.now,
            |out| draw(&mut drawn, out),
        );
        let verified = verified.await;
        self.drawn = drawn;
        verified.expect("the store answers")
    }

    async fn session(&self, value: &SessionValue) -> Option<Session> {
        let session = session::session(&self.store, value, self.now).await;
        session.expect("the store answers")
    }

    /// Signs up with an address, a minute later; whether credits were promised.
    async fn sign_up(&mut self, address: &str) -> bool {
        self.now += MINUTE;
        let browser = self.browser();
        let sent = self.send(&browser, address, CodePurpose::SignUp).await;
        sent.expect("a code");
        let code = self.code().await;
        let CodeOutcome::Accepted(entered) = self.verify_code(&browser, &code).await else {
            panic!("the code was right");
        };
        assert!(entered.is_new, "{address}");
        let owed = self.signin.grants_owed().await.expect("readable");
        owed.iter().any(|(account, _)| *account == entered.account)
    }

    /// Signs in with a code.
    async fn enter(&mut self, address: &str) -> SignedIn {
        let browser = self.browser();
        let sent = self.send(&browser, address, CodePurpose::SignIn).await;
        sent.expect("a code");
        let code = self.code().await;
        match self.verify_code(&browser, &code).await {
            CodeOutcome::Accepted(entered) => entered,
            other => panic!("the code was right, and {other:?}"),
        }
    }
}

fn draw(drawn: &mut u64, out: &mut [u8]) {
    for chunk in out.chunks_mut(8) {
        *drawn += 1;
        let word = drawn.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17);
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
    }
}

fn wrong(code: &str) -> String {
    let number: u32 = code.parse().expect("digits");
    format!("{:08}", (number + 1) % 100_000_000)
}

#[tokio::test]
async fn a_session_has_an_idle_and_an_absolute_timeout() {
    let mut bed = TestBed::new().await;
    let left = bed.enter(ADA).await.value;
    bed.now += IDLE;
    assert!(bed.session(&left).await.is_none(), "the session has ended");

    let used = bed.enter(ADA).await.value;
    let began = bed.now;
    while bed.now < began + LIFE - IDLE {
        bed.now += IDLE - MINUTE;
        assert!(
            bed.session(&used).await.is_some(),
            "{:?}",
            bed.now.duration_since(began)
        );
        // The use is recorded in the background.
        tollgate_store::flush(&*bed.store).await.expect("written");
    }
    bed.now = began + LIFE;
    assert!(bed.session(&used).await.is_none(), "its life is over");
}

#[tokio::test]
async fn a_code_expires() {
    let mut bed = TestBed::new().await;
    let browser = bed.browser();
    bed.send(&browser, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    let code = bed.code().await;
    bed.now += CODE_LIFE;
    assert!(
        bed.signin
            .pending_code(&browser, bed.now)
            .await
            .expect("an answer")
            .is_none()
    );
    let outcome = bed.verify_code(&browser, &code).await;
    assert!(matches!(outcome, CodeOutcome::Expired), "{outcome:?}");
}

#[tokio::test]
async fn a_new_code_invalidates_the_old_one() {
    let mut bed = TestBed::new().await;
    let browser = bed.browser();
    bed.send(&browser, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    let old = bed.code().await;
    bed.now += 30 * SECOND;
    bed.send(&browser, ADA, CodePurpose::SignIn)
        .await
        .expect("another");
    let new = bed.code().await;
    let outcome = bed.verify_code(&browser, &old).await;
    assert!(
        matches!(outcome, CodeOutcome::Wrong { tries_left: 4 }),
        "{outcome:?}"
    );
    let outcome = bed.verify_code(&browser, &new).await;
    assert!(matches!(outcome, CodeOutcome::Accepted(_)), "{outcome:?}");
}

#[tokio::test]
async fn sending_is_limited_to_one_in_half_a_minute_and_five_an_hour() {
    for address in [ADA, "unknown@example.com", "+4930123456"] {
        let mut bed = TestBed::new().await;
        let mut sent = Vec::new();
        while bed.now < START + 2 * HOUR {
            let browser = bed.browser();
            match bed.send(&browser, address, CodePurpose::SignIn).await {
                Ok(()) => sent.push(bed.now.duration_since(START).as_secs()),
                Err(SendCodeError::TooMany { until }) => {
                    assert!(until > bed.now, "a wait");
                    // Waiting exactly until the stated time is enough.
                    bed.now = until - SECOND;
                }
                Err(error) => panic!("{error}"),
            }
            bed.now += SECOND;
        }
        assert_eq!(
            sent,
            [0, 30, 60, 90, 120, 3600, 3630, 3660, 3690, 3720],
            "{address}"
        );
    }
}

/// Five requests by a stranger kept the owner of an address from signing in for an hour, and eleven wrong codes did so as well.
#[tokio::test]
async fn strangers_lock_out_neither_a_known_network_nor_a_known_browser() {
    let mut bed = TestBed::new().await;
    let laptop = bed.browser();
    bed.mark = Some(laptop);
    bed.enter(ADA).await;
    let laptop = bed.mark.take();
    bed.now += MINUTE;
    // Strangers in many networks send and guess for as long as they may.
    let (mut sent, mut barred) = (0, false);
    for number in 0..40 {
        bed.network = IpAddr::from([10, 0, 0, number]);
        let browser = bed.browser();
        if bed.send(&browser, ADA, CodePurpose::SignIn).await.is_ok() {
            sent += 1;
            let bad = wrong(&bed.code().await);
            for _ in 0..5 {
                let outcome = bed.verify_code(&browser, &bad).await;
                barred |= matches!(outcome, CodeOutcome::LockedOut { .. });
            }
        }
    }
    assert_eq!(
        sent, 9,
        "ten for all strangers in an hour, with the owner's first"
    );
    assert!(barred, "guesses of all strangers are limited too");
    // The owner at home, and elsewhere with the same browser.
    bed.now += SECOND;
    bed.network = HOME;
    bed.enter(ADA).await;
    bed.now += MINUTE;
    bed.network = IpAddr::from([10, 1, 0, 1]);
    bed.mark = laptop;
    bed.enter(ADA).await;
    // The mark of a browser is of use for the address alone that it signed in to.
    bed.mark = None;
    bed.network = IpAddr::from([10, 2, 0, 1]);
    let browser = bed.browser();
    let refused = bed.send(&browser, ADA, CodePurpose::SignIn).await;
    assert!(
        matches!(refused, Err(SendCodeError::TooMany { .. })),
        "{refused:?}"
    );
}

/// A network that many share: what one of them asks for does not keep another address from its codes.
#[tokio::test]
async fn a_known_source_has_its_own_limits_too() {
    let mut bed = TestBed::new().await;
    bed.enter(ADA).await;
    let mut sent = 0;
    for _ in 0..20 {
        bed.now += MINUTE;
        let browser = bed.browser();
        sent += u32::from(bed.send(&browser, ADA, CodePurpose::SignIn).await.is_ok());
    }
    assert_eq!(sent, 4, "five an hour, the first of which signed in");
}

#[tokio::test]
async fn guessing_is_locked_out_progressively_with_or_without_an_account() {
    for address in [ADA, "unknown@example.com"] {
        let mut bed = TestBed::new().await;
        let mut failures = 0;
        let mut waits = Vec::new();
        // Ten codes or more, for a guesser who waits out every limit.
        while waits.len() < 3 {
            let browser = bed.browser();
            match bed.send(&browser, address, CodePurpose::SignIn).await {
                Ok(()) => {}
                Err(SendCodeError::TooMany { until }) => {
                    bed.now = until;
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            let bad = match address {
                ADA => wrong(&bed.code().await),
                _ => String::from("00000000"),
            };
            for _ in 0..5 {
                match bed.verify_code(&browser, &bad).await {
                    CodeOutcome::Wrong { .. } | CodeOutcome::NoTriesLeft => failures += 1,
                    CodeOutcome::LockedOut { until } => {
                        waits.push((failures, until.duration_since(bed.now).as_secs()));
                        bed.now = until;
                        break;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(waits, [(11, 60), (12, 120), (13, 240)], "{address}");
    }
}

#[tokio::test]
async fn the_right_code_resets_the_failures() {
    let mut bed = TestBed::new().await;
    for round in 0..6 {
        let browser = bed.browser();
        while let Err(SendCodeError::TooMany { until }) =
            bed.send(&browser, ADA, CodePurpose::SignIn).await
        {
            bed.now = until;
        }
        let code = bed.code().await;
        for _ in 0..4 {
            let outcome = bed.verify_code(&browser, &wrong(&code)).await;
            assert!(
                matches!(outcome, CodeOutcome::Wrong { .. }),
                "{round}: {outcome:?}"
            );
        }
        let outcome = bed.verify_code(&browser, &code).await;
        assert!(
            matches!(outcome, CodeOutcome::Accepted(_)),
            "{round}: {outcome:?}"
        );
    }
}

#[tokio::test]
async fn confirming_renews_the_value_and_keeps_the_session_and_its_form() {
    let mut bed = TestBed::new().await;
    let old = bed.enter(ADA).await.value;
    bed.now += RECENT;
    let before = bed.session(&old).await.expect("a session");
    assert!(!before.is_recent(bed.now));
    let draft = Draft {
        path: "/keys/create".into(),
        form: "name=ci-runner".into(),
    };
    let kept = session::keep_draft(&bed.store, before.digest, Some(draft.clone())).await;
    kept.expect("kept");
    bed.send(&old, ADA, CodePurpose::Confirm)
        .await
        .expect("a code");
    let code = bed.code().await;
    let CodeOutcome::Accepted(entered) = bed.verify_code(&old, &code).await else {
        panic!("the code was right");
    };
    assert!(
        bed.session(&old).await.is_none(),
        "the old value is worth nothing"
    );
    let after = bed.session(&entered.value).await.expect("a session");
    assert!(after.is_recent(bed.now));
    assert_eq!(after.started_at, before.started_at);
    assert_eq!(
        after.expires_at, before.expires_at,
        "confirming makes no session longer"
    );
    assert_eq!(after.draft, Some(draft));
}

#[tokio::test]
async fn a_code_for_confirming_does_not_sign_in() {
    let mut bed = TestBed::new().await;
    let other_browser = bed.browser();
    bed.send(&other_browser, ADA, CodePurpose::Confirm)
        .await
        .expect("a code");
    let code = bed.code().await;
    let outcome = bed.verify_code(&other_browser, &code).await;
    assert!(matches!(outcome, CodeOutcome::Expired), "{outcome:?}");
}

#[tokio::test]
async fn signing_in_creates_no_account_and_signing_up_creates_one() {
    let mut bed = TestBed::with(SigninRules {
        grant: Micros::new(5_000_000),
        ..SigninRules::default()
    })
    .await;
    let browser = bed.browser();
    let sent = bed
        .send(&browser, "new@example.com", CodePurpose::SignIn)
        .await;
    sent.expect("as for an existing account");
    // Even the right code, which was sent to no one.
    let code = bed.code().await;
    let outcome = bed.verify_code(&browser, &code).await;
    assert!(matches!(outcome, CodeOutcome::Wrong { .. }), "{outcome:?}");

    bed.now += 30 * SECOND;
    let browser = bed.browser();
    let sent = bed
        .send(&browser, "new@example.com", CodePurpose::SignUp)
        .await;
    sent.expect("a code");
    let code = bed.code().await;
    let CodeOutcome::Accepted(entered) = bed.verify_code(&browser, &code).await else {
        panic!("the code was right");
    };
    assert!(entered.is_new);
    assert_ne!(entered.account, bed.account);
    let owed = bed.signin.grants_owed().await.expect("an answer");
    assert_eq!(owed, [(entered.account, Micros::new(5_000_000))]);

    bed.now += 30 * SECOND;
    let again = bed.enter("new@example.com").await;
    assert_eq!(again.account, entered.account);
    assert_eq!(bed.signin.grants_owed().await.expect("an answer").len(), 1);
}

/// One makes the account, and the other is let in.
#[tokio::test]
async fn two_browsers_that_sign_up_with_one_address_at_once_are_both_signed_in() {
    let mut bed = TestBed::new().await;
    let mut sent = Vec::new();
    for _ in 0..2 {
        let browser = bed.browser();
        let code = bed.send(&browser, "new@example.com", CodePurpose::SignUp);
        code.await.expect("a code");
        sent.push((browser, bed.code().await));
        bed.now += MINUTE;
    }
    let verify = |at: usize| {
        let (browser, code) = &sent[at];
        // Distinct from what the other draws, and from what was drawn before.
        let mut drawn = 1_000 * (at as u64 + 1);
        let (signin, source, now) = (&bed.signin, bed.source(), bed.now);
        async move {
            let draw = |out: &mut [u8]| draw(&mut drawn, out);
            signin
                .verify_code(browser, source, None, code, now, draw)
                .await
        }
    };
    let (one, other) = tokio::join!(verify(0), verify(1));
    let [one, other] = [one, other].map(|verified| match verified {
        Ok(CodeOutcome::Accepted(entered)) => entered,
        refused => panic!("{refused:?}"),
    });
    assert_eq!(one.account, other.account);
    assert_ne!(one.is_new, other.is_new);
    for entered in [one, other] {
        assert!(bed.session(&entered.value).await.is_some());
    }
}

#[tokio::test]
async fn signing_out_everywhere_ends_every_session_of_the_account_alone() {
    let mut bed = TestBed::new().await;
    let one = bed.enter(ADA).await.value;
    bed.now += 30 * SECOND;
    let two = bed.enter(ADA).await.value;
    let browser = bed.browser();
    let sent = bed
        .send(&browser, "bob@example.com", CodePurpose::SignUp)
        .await;
    sent.expect("a code");
    let code = bed.code().await;
    let CodeOutcome::Accepted(bob) = bed.verify_code(&browser, &code).await else {
        panic!("the code was right");
    };
    session::end_sessions(&bed.store, bed.account)
        .await
        .expect("ended");
    assert!(bed.session(&one).await.is_none());
    assert!(bed.session(&two).await.is_none());
    assert!(bed.session(&bob.value).await.is_some());
}

#[tokio::test]
async fn a_session_ended_meanwhile_grants_nothing() {
    let mut bed = TestBed::new().await;
    let value = bed.enter(ADA).await.value;
    let session = bed.session(&value).await.expect("a session");
    bed.now += 30 * SECOND;
    bed.send(&value, ADA, CodePurpose::Confirm)
        .await
        .expect("a code");
    let code = bed.code().await;
    session::end_sessions(&bed.store, bed.account)
        .await
        .expect("ended");

    // Everything was read before the session was ended.
    let source = CodeSource {
        network: Some(bed.network),
        mark: None,
    };
    let drawn = &mut bed.drawn;
    let confirmed = bed
        .signin
        .verify_code(&value, source, Some(&session), &code, bed.now, |out| {
            draw(drawn, out)
        })
        .await;
    assert!(
        matches!(confirmed, Err(VerifyCodeError::SignedOut)),
        "{confirmed:?}"
    );
    let key = NewKey {
        account: bed.account,
        label: String::from("ci-runner"),
        resources: 1,
        scopes: 1,
        models: None,
        spending_cap: None,
        expires_at: None,
        created_at: bed.now,
    };
    let id = KeyId::draw(bed.now, |out| draw(drawn, out));
    let form = Form::api_key("svc");
    let made = create_key_as(&*bed.store, &form, id, key, &session, |out| {
        draw(drawn, out)
    });
    let made = made.await;
    assert!(matches!(made, Err(CreateKeyError::SignedOut)), "{made:?}");
    let token = NewToken {
        account: bed.account,
        client: None,
        grant: None,
        resources: 1,
        scopes: 1,
        created_at: bed.now,
        expires_at: bed.now + MINUTE,
    };
    let form = Form::access_token("svc");
    let issued = issue_token_as(&*bed.store, &form, token, &session, |out| draw(drawn, out));
    let issued = issued.await;
    assert!(
        matches!(issued, Err(IssueTokenError::SignedOut)),
        "{issued:?}"
    );
    let written = bed.store.account_credentials(bed.account);
    assert_eq!(written.expect("an answer").len(), 0);
}

#[tokio::test]
async fn neither_codes_nor_session_values_are_in_the_file() {
    let mut bed = TestBed::new().await;
    let browser = bed.browser();
    bed.send(&browser, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    let code = bed.code().await;
    let CodeOutcome::Accepted(entered) = bed.verify_code(&browser, &code).await else {
        panic!("the code was right");
    };
    bed.now += 30 * SECOND;
    let waiting = bed.browser();
    bed.send(&waiting, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    let other = bed.code().await;
    bed.store.close();
    for file in std::fs::read_dir(bed.folder.path()).expect("a folder") {
        let path = file.expect("a file").path();
        let bytes = std::fs::read(&path).unwrap_or_default();
        for secret in [&code, &other, entered.value.expose(), waiting.expose()] {
            let found = bytes
                .windows(secret.len())
                .any(|window| window == secret.as_bytes());
            assert!(!found, "a secret in {}", path.display());
        }
    }
}

#[tokio::test]
async fn expired_rows_are_deleted_and_the_rest_stays() {
    let mut bed = TestBed::new().await;
    let old = bed.enter(ADA).await.value;
    bed.now += 25 * HOUR;
    let new = bed.enter(ADA).await.value;
    let waiting = bed.browser();
    bed.now += 30 * SECOND;
    bed.send(&waiting, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    bed.signin.sweep(bed.now);
    tollgate_store::flush(&*bed.store).await.expect("swept");
    assert!(
        bed.store
            .session(&old.digest())
            .expect("an answer")
            .is_none()
    );
    assert!(
        bed.store
            .session(&new.digest())
            .expect("an answer")
            .is_some()
    );
    assert!(
        bed.signin
            .pending_code(&waiting, bed.now)
            .await
            .expect("an answer")
            .is_some()
    );
    let due = bed
        .signin
        .messages_due(bed.now, 100)
        .await
        .expect("an answer");
    assert_eq!(due.len(), 2, "those that are still worth something");
}
