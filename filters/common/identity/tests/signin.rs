//! Signing in through a real store, with a clock that the test moves.

use std::net::IpAddr;
use std::sync::Arc;

use tempfile::TempDir;
use tollgate_identity::session::{self, IDLE, LIFE, RECENT};
use tollgate_identity::signin::{
    CODE_LIFE, CodeOutcome, CodeRequest, SendCodeError, SignedIn, Signin, SigninRules,
    VerifyCodeError,
};
use tollgate_identity::{
    CreateKeyError, Form, IssueTokenError, KeyId, Login, NewAccount, NewKey, NewToken, Session,
    SessionValue, create_account, create_key_as, issue_token_as, token_id,
};
use tollgate_money::{AccountId, Micros};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{CodePurpose, Draft, RootSecret, Store};

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const START: i64 = 1_800_000_000_000_000;
const ADA: &str = "ada@example.com";

struct Desk {
    store: Arc<dyn Store>,
    signin: Signin,
    account: AccountId,
    now: i64,
    drawn: u64,
    folder: TempDir,
}

impl Desk {
    async fn new() -> Desk {
        Desk::with(SigninRules::default()).await
    }

    async fn with(rules: SigninRules) -> Desk {
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
        Desk {
            signin: Signin::new(store.clone(), rules),
            account: account.expect("an account"),
            store,
            now: START,
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
        // Every code from another network, so that only what a test is about holds it up.
        self.drawn += 1;
        let network = IpAddr::from([10, 0, (self.drawn >> 8) as u8, self.drawn as u8]);
        let request = CodeRequest {
            login: &login,
            purpose,
            browser,
            network: Some(network),
            now: self.now,
        };
        let drawn = &mut self.drawn;
        self.signin
            .send_code(&request, |out| draw(drawn, out))
            .await
    }

    /// The code of the newest message, as the queue has it.
    async fn code(&self) -> String {
        let due = self.signin.messages_due(self.now, 1000).await;
        let due = due.expect("the store answers");
        let newest = due.iter().max_by_key(|message| message.created_at);
        newest.expect("a message").code.to_string()
    }

    async fn verify_code(&mut self, browser: &SessionValue, code: &str) -> CodeOutcome {
        let current = self.session(browser).await;
        let drawn = &mut self.drawn;
        self.signin
            .verify_code(browser, current.as_ref(), code, self.now, |out| {
                draw(drawn, out)
            })
            .await
            .expect("the store answers")
    }

    async fn session(&self, value: &SessionValue) -> Option<Session> {
        let session = session::session(&self.store, value, self.now).await;
        session.expect("the store answers")
    }

    /// Signs in, by a code.
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
async fn a_session_lasts_while_it_is_used_and_never_longer_than_its_life() {
    let mut desk = Desk::new().await;
    let left = desk.enter(ADA).await.value;
    desk.now += IDLE;
    assert!(desk.session(&left).await.is_none(), "nobody used it");

    let used = desk.enter(ADA).await.value;
    let began = desk.now;
    while desk.now < began + LIFE - IDLE {
        desk.now += IDLE - MINUTE;
        assert!(desk.session(&used).await.is_some(), "{}", desk.now - began);
        // That it was used is written down when there is time.
        tollgate_store::flush(&*desk.store).await.expect("written");
    }
    desk.now = began + LIFE;
    assert!(desk.session(&used).await.is_none(), "its life is over");
}

#[tokio::test]
async fn a_code_ends_with_its_time() {
    let mut desk = Desk::new().await;
    let browser = desk.browser();
    desk.send(&browser, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    let code = desk.code().await;
    desk.now += CODE_LIFE;
    assert!(
        desk.signin
            .pending_code(&browser, desk.now)
            .await
            .expect("an answer")
            .is_none()
    );
    let verdict = desk.verify_code(&browser, &code).await;
    assert!(matches!(verdict, CodeOutcome::Expired), "{verdict:?}");
}

#[tokio::test]
async fn a_new_code_kills_the_old_one() {
    let mut desk = Desk::new().await;
    let browser = desk.browser();
    desk.send(&browser, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    let old = desk.code().await;
    desk.now += 30 * SECOND;
    desk.send(&browser, ADA, CodePurpose::SignIn)
        .await
        .expect("another");
    let new = desk.code().await;
    let verdict = desk.verify_code(&browser, &old).await;
    assert!(
        matches!(verdict, CodeOutcome::Wrong { tries_left: 4 }),
        "{verdict:?}"
    );
    let verdict = desk.verify_code(&browser, &new).await;
    assert!(matches!(verdict, CodeOutcome::Accepted(_)), "{verdict:?}");
}

#[tokio::test]
async fn sending_is_limited_to_one_in_half_a_minute_and_five_an_hour() {
    for address in [ADA, "nobody@example.com", "+4930123456"] {
        let mut desk = Desk::new().await;
        let mut sent = Vec::new();
        while desk.now < START + 2 * HOUR {
            let browser = desk.browser();
            match desk.send(&browser, address, CodePurpose::SignIn).await {
                Ok(()) => sent.push((desk.now - START) / SECOND),
                Err(SendCodeError::TooMany { until }) => {
                    assert!(until > desk.now, "a wait");
                    // Waiting exactly as told is enough.
                    desk.now = until - SECOND;
                }
                Err(error) => panic!("{error}"),
            }
            desk.now += SECOND;
        }
        assert_eq!(
            sent,
            [0, 30, 60, 90, 120, 3600, 3630, 3660, 3690, 3720],
            "{address}"
        );
    }
}

#[tokio::test]
async fn guessing_is_slowed_down_more_and_more_whoever_is_guessed_at() {
    for address in [ADA, "nobody@example.com"] {
        let mut desk = Desk::new().await;
        let mut failures = 0;
        let mut waits = Vec::new();
        // Ten codes or more, as a patient guesser gets them.
        while waits.len() < 3 {
            let browser = desk.browser();
            match desk.send(&browser, address, CodePurpose::SignIn).await {
                Ok(()) => {}
                Err(SendCodeError::TooMany { until }) => {
                    desk.now = until;
                    continue;
                }
                Err(error) => panic!("{error}"),
            }
            let bad = match address {
                ADA => wrong(&desk.code().await),
                _ => String::from("00000000"),
            };
            for _ in 0..5 {
                match desk.verify_code(&browser, &bad).await {
                    CodeOutcome::Wrong { .. } | CodeOutcome::Expired => failures += 1,
                    CodeOutcome::LockedOut { until } => {
                        waits.push((failures, (until - desk.now) / SECOND));
                        desk.now = until;
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
async fn the_right_code_makes_up_for_failures() {
    let mut desk = Desk::new().await;
    for round in 0..6 {
        let browser = desk.browser();
        while let Err(SendCodeError::TooMany { until }) =
            desk.send(&browser, ADA, CodePurpose::SignIn).await
        {
            desk.now = until;
        }
        let code = desk.code().await;
        for _ in 0..4 {
            let verdict = desk.verify_code(&browser, &wrong(&code)).await;
            assert!(
                matches!(verdict, CodeOutcome::Wrong { .. }),
                "{round}: {verdict:?}"
            );
        }
        let verdict = desk.verify_code(&browser, &code).await;
        assert!(
            matches!(verdict, CodeOutcome::Accepted(_)),
            "{round}: {verdict:?}"
        );
    }
}

#[tokio::test]
async fn confirming_gives_a_new_value_and_keeps_the_session_and_its_form() {
    let mut desk = Desk::new().await;
    let old = desk.enter(ADA).await.value;
    desk.now += RECENT;
    let before = desk.session(&old).await.expect("a session");
    assert!(!before.is_recent(desk.now));
    let draft = Draft {
        path: "/keys/create".into(),
        form: "name=ci-runner".into(),
    };
    let kept = session::keep_draft(&desk.store, &before, Some(draft.clone())).await;
    kept.expect("kept");
    desk.send(&old, ADA, CodePurpose::Confirm)
        .await
        .expect("a code");
    let code = desk.code().await;
    let CodeOutcome::Accepted(entered) = desk.verify_code(&old, &code).await else {
        panic!("the code was right");
    };
    assert!(
        desk.session(&old).await.is_none(),
        "the old value is worth nothing"
    );
    let after = desk.session(&entered.value).await.expect("a session");
    assert!(after.is_recent(desk.now));
    assert_eq!(after.started_at, before.started_at);
    assert_eq!(
        after.expires_at, before.expires_at,
        "confirming makes no session longer"
    );
    assert_eq!(after.draft, Some(draft));
}

#[tokio::test]
async fn a_code_for_confirming_lets_nobody_in() {
    let mut desk = Desk::new().await;
    let stranger = desk.browser();
    desk.send(&stranger, ADA, CodePurpose::Confirm)
        .await
        .expect("a code");
    let code = desk.code().await;
    let verdict = desk.verify_code(&stranger, &code).await;
    assert!(matches!(verdict, CodeOutcome::Expired), "{verdict:?}");
}

#[tokio::test]
async fn signing_in_makes_no_account_and_signing_up_makes_one() {
    let mut desk = Desk::with(SigninRules {
        grant: Micros::new(5_000_000),
        ..SigninRules::default()
    })
    .await;
    let browser = desk.browser();
    let sent = desk
        .send(&browser, "new@example.com", CodePurpose::SignIn)
        .await;
    sent.expect("as if there were somebody");
    // Even the right code, which nobody was sent.
    let code = desk.code().await;
    let verdict = desk.verify_code(&browser, &code).await;
    assert!(matches!(verdict, CodeOutcome::Wrong { .. }), "{verdict:?}");

    desk.now += 30 * SECOND;
    let browser = desk.browser();
    let sent = desk
        .send(&browser, "new@example.com", CodePurpose::SignUp)
        .await;
    sent.expect("a code");
    let code = desk.code().await;
    let CodeOutcome::Accepted(entered) = desk.verify_code(&browser, &code).await else {
        panic!("the code was right");
    };
    assert!(entered.is_new);
    assert_ne!(entered.account, desk.account);
    let owed = desk.signin.grants_owed().await.expect("an answer");
    assert_eq!(owed, [(entered.account, Micros::new(5_000_000))]);

    desk.now += 30 * SECOND;
    let again = desk.enter("new@example.com").await;
    assert_eq!(again.account, entered.account);
    assert_eq!(desk.signin.grants_owed().await.expect("an answer").len(), 1);
}

#[tokio::test]
async fn signing_out_everywhere_ends_every_session_of_the_account_alone() {
    let mut desk = Desk::new().await;
    let one = desk.enter(ADA).await.value;
    desk.now += 30 * SECOND;
    let two = desk.enter(ADA).await.value;
    let browser = desk.browser();
    let sent = desk
        .send(&browser, "bob@example.com", CodePurpose::SignUp)
        .await;
    sent.expect("a code");
    let code = desk.code().await;
    let CodeOutcome::Accepted(bob) = desk.verify_code(&browser, &code).await else {
        panic!("the code was right");
    };
    session::end_sessions(&desk.store, desk.account)
        .await
        .expect("ended");
    assert!(desk.session(&one).await.is_none());
    assert!(desk.session(&two).await.is_none());
    assert!(desk.session(&bob.value).await.is_some());
}

#[tokio::test]
async fn a_session_that_was_ended_meanwhile_gives_nobody_anything() {
    let mut desk = Desk::new().await;
    let value = desk.enter(ADA).await.value;
    let session = desk.session(&value).await.expect("a session");
    desk.now += 30 * SECOND;
    desk.send(&value, ADA, CodePurpose::Confirm)
        .await
        .expect("a code");
    let code = desk.code().await;
    session::end_sessions(&desk.store, desk.account)
        .await
        .expect("ended");

    // All of it was under way when the session was ended: it has been read before.
    let drawn = &mut desk.drawn;
    let confirmed = desk
        .signin
        .verify_code(&value, Some(&session), &code, desk.now, |out| {
            draw(drawn, out)
        })
        .await;
    assert!(
        matches!(confirmed, Err(VerifyCodeError::SignedOut)),
        "{confirmed:?}"
    );
    let key = NewKey {
        account: desk.account,
        label: String::from("ci-runner"),
        resources: 1,
        scopes: 1,
        models: None,
        spending_cap: None,
        expires_at: None,
        created_at: desk.now,
    };
    let id = KeyId::draw(desk.now, |out| draw(drawn, out));
    let form = Form::api_key("svc");
    let made = create_key_as(&*desk.store, &form, id, key, &session, |out| {
        draw(drawn, out)
    });
    let made = made.await;
    assert!(matches!(made, Err(CreateKeyError::SignedOut)), "{made:?}");
    let token = NewToken {
        account: desk.account,
        client: None,
        grant: None,
        resources: 1,
        scopes: 1,
        created_at: desk.now,
        expires_at: desk.now + MINUTE,
    };
    let id = token_id(desk.now, |out| draw(drawn, out));
    let form = Form::access_token("svc");
    let issued = issue_token_as(&*desk.store, &form, id, token, &session, |out| {
        draw(drawn, out)
    });
    let issued = issued.await;
    assert!(
        matches!(issued, Err(IssueTokenError::SignedOut)),
        "{issued:?}"
    );
    let written = desk.store.account_credentials(desk.account);
    assert_eq!(written.expect("an answer").len(), 0);
}

#[tokio::test]
async fn neither_codes_nor_session_values_are_in_the_file() {
    let mut desk = Desk::new().await;
    let browser = desk.browser();
    desk.send(&browser, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    let code = desk.code().await;
    let CodeOutcome::Accepted(entered) = desk.verify_code(&browser, &code).await else {
        panic!("the code was right");
    };
    desk.now += 30 * SECOND;
    let waiting = desk.browser();
    desk.send(&waiting, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    let other = desk.code().await;
    desk.store.close();
    for file in std::fs::read_dir(desk.folder.path()).expect("a folder") {
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
async fn what_has_ended_is_swept_away_and_the_rest_stays() {
    let mut desk = Desk::new().await;
    let old = desk.enter(ADA).await.value;
    desk.now += 25 * HOUR;
    let new = desk.enter(ADA).await.value;
    let waiting = desk.browser();
    desk.now += 30 * SECOND;
    desk.send(&waiting, ADA, CodePurpose::SignIn)
        .await
        .expect("a code");
    desk.signin.sweep(desk.now);
    tollgate_store::flush(&*desk.store).await.expect("swept");
    assert!(
        desk.store
            .session(&old.digest())
            .expect("an answer")
            .is_none()
    );
    assert!(
        desk.store
            .session(&new.digest())
            .expect("an answer")
            .is_some()
    );
    assert!(
        desk.signin
            .pending_code(&waiting, desk.now)
            .await
            .expect("an answer")
            .is_some()
    );
    let due = desk
        .signin
        .messages_due(desk.now, 100)
        .await
        .expect("an answer");
    assert_eq!(due.len(), 2, "those that are still worth something");
}
