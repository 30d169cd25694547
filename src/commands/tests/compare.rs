//! `tollgate compare`: the changes undone by a restore of a backup.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, GrantId, Micros, PaymentId, SubscriptionId, TopUpId, Usd};
use tollgate_store::{
    Admission, ClientRow, GrantRow, OAuthPart, Part, PaymentRow, PaymentStatus, PlanPart, Route,
    Store, SubscriptionRow, SubscriptionStatus, TopUpPart, TopUpRow, TopUpState, UnitOfWork,
    commit,
};

use super::*;

fn effects(workspace: &Workspace, backup: &str) -> Vec<String> {
    let undone = workspace.json(&format!("compare {backup}"));
    let undone = undone.as_array().expect("a list").iter();
    let mut effects: Vec<_> = undone
        .map(|one| one["effect"].as_str().expect("a word").to_owned())
        .collect();
    effects.sort();
    effects
}

#[test]
fn what_ended_since_a_backup_and_would_be_valid_again_is_listed() {
    for workspace in Workspace::on_each_engine() {
        ended_since(&workspace);
    }
}

fn ended_since(workspace: &Workspace) {
    let account = workspace.word("account create --email a@example.net", "id");
    let mut keys = ["one", "two", "three"].map(|name| {
        workspace.word(
            &format!("key create --account {account} --name {name}"),
            "id",
        )
    });
    let revoke = |key: &str| workspace.good(&format!("key revoke --key {key}"));
    // Revoked before the backup: the key stays revoked.
    revoke(&keys[0]);
    let backup = workspace.backup();
    assert_eq!(effects(workspace, &backup), Vec::<String>::new());

    revoke(&keys[1]);
    workspace.good(&format!("account suspend --account {account}"));
    let other = workspace.word("account create", "id");
    let listed = workspace.json(&format!("compare {backup}"));
    assert_eq!(
        effects(workspace, &backup),
        ["account_active_again", "account_missing", "key_valid_again"]
    );
    keys.sort();
    let key = listed.as_array().expect("a list").iter();
    let mut key = key.filter(|one| one["effect"] == "key_valid_again");
    let key = key.next().expect("one");
    assert_eq!(key["account"], account.as_str());
    assert!(keys.contains(&key["subject"].as_str().expect("an id").to_owned()));
    workspace.good(&format!("account delete --account {account}"));
    workspace.good(&format!("account delete --account {other}"));
    assert_eq!(
        effects(workspace, &backup),
        [
            "account_active_again",
            "account_missing",
            "key_valid_again",
            "key_valid_again",
            "login_again"
        ]
    );
}

/// The books written by the tests, of a single account.
struct Books {
    store: Arc<dyn Store>,
    account: AccountId,
    now: Timestamp,
}

impl Books {
    fn write(&self, part: Part) {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().expect("a runtime");
        let unit = UnitOfWork::of(part, Admission::Normal);
        let written = runtime.block_on(commit(&*self.store, unit));
        written.expect("it is stored");
    }

    fn oauth(&self, part: OAuthPart) {
        self.write(Part::OAuth(Box::new(part)));
    }

    fn grant(&self, number: u8) -> GrantRow {
        GrantRow {
            id: GrantId::from_bytes([number; 16]),
            account: self.account,
            client: Arc::from("editor"),
            client_name: None,
            refresh: true,
            redirect_uri: Arc::from("https://editor.example/back"),
            resource: 1,
            asked: None,
            scopes: 1,
            created_at: self.now,
            used_at: self.now,
            ends_at: self.now + std::time::Duration::from_secs(86_400),
            revoked_at: None,
        }
    }

    fn plan(&self, part: PlanPart) {
        self.write(Part::Plan(Box::new(part)));
    }

    fn payment(&self, number: u8) -> PaymentRow {
        PaymentRow {
            id: PaymentId::from_bytes([number; 16]),
            account: self.account,
            subscription: SubscriptionId::from_bytes([1; 16]),
            route: Route::PayPal,
            provider_ref: Arc::from(format!("sale-{number}")),
            amount: Usd::from_cents(19_900),
            credits: Micros::ZERO,
            period_start: self.now,
            period_end: self.now + std::time::Duration::from_secs(86_400),
            status: PaymentStatus::Paid,
            receipt: None,
            at: self.now,
            returned_at: None,
            owed: None,
            attempts: 0,
            next_attempt_at: None,
        }
    }

    fn top_up(&self, number: u8) -> TopUpRow {
        TopUpRow {
            id: TopUpId::from_bytes([number; 16]),
            account: self.account,
            state: TopUpState::Captured,
            version: 0,
            price: Usd::from_cents(2_000),
            credits: Micros::new(2_000_000_000),
            create_key: Arc::from("create"),
            order: Some(Arc::from(format!("order-{number}"))),
            approve_url: None,
            capture_key: None,
            capture: Some(Arc::from(format!("capture-{number}"))),
            declines: 0,
            returned: Usd::ZERO,
            taken_back: Micros::ZERO,
            owed: Micros::ZERO,
            note: None,
            attempts: 1,
            next_attempt_at: None,
            notifications: 0,
            acknowledged: 0,
            created_at: self.now,
            updated_at: self.now,
        }
    }

    fn bought(&self, part: TopUpPart) {
        self.write(Part::TopUp(Box::new(part)));
    }
}

#[test]
fn app_access_that_has_ended_and_payments_since_a_backup_are_listed() {
    for workspace in Workspace::on_each_engine() {
        payments_since(&workspace);
    }
}

fn payments_since(workspace: &Workspace) {
    let account = workspace.word("account create", "id");
    let server = workspace.serve();
    let books = Books {
        store: server.store.clone(),
        account: account.parse().expect("an id"),
        now: Clock::system().now(),
    };
    let client = ClientRow {
        id: Arc::from("editor"),
        name: None,
        redirect_uris: vec![Arc::from("https://editor.example/back")],
        refresh: true,
        document: false,
        created_at: books.now,
        used_at: Some(books.now),
    };
    books.oauth(OAuthPart::InsertClient {
        client,
        network: None,
        unused_max: 10,
    });
    for number in [1, 2] {
        books.oauth(OAuthPart::InsertGrant(books.grant(number)));
    }
    books.plan(PlanPart::Put {
        row: SubscriptionRow {
            id: SubscriptionId::from_bytes([1; 16]),
            account: books.account,
            route: Route::PayPal,
            reference: Arc::from("I-1"),
            status: SubscriptionStatus::Active,
            period_start: books.now,
            period_end: books.now + std::time::Duration::from_secs(86_400),
            extra: std::time::Duration::ZERO,
            renews: true,
            version: 0,
            created_at: books.now,
            updated_at: books.now,
        },
        class: Arc::from("pro"),
    });
    for number in [1, 2] {
        books.plan(PlanPart::Pay(books.payment(number)));
        books.bought(TopUpPart::Begin(books.top_up(number)));
    }
    let backup = workspace.backup();
    assert_eq!(effects(workspace, &backup), Vec::<String>::new());

    books.oauth(OAuthPart::RevokeGrant {
        id: GrantId::from_bytes([2; 16]),
        account: books.account,
        at: books.now,
    });
    books.plan(PlanPart::ChangePayment {
        row: PaymentRow {
            status: PaymentStatus::Returned,
            returned_at: Some(books.now),
            ..books.payment(2)
        },
        before: (PaymentStatus::Paid, None),
    });
    books.plan(PlanPart::Pay(books.payment(3)));
    books.bought(TopUpPart::Change(TopUpRow {
        version: 1,
        returned: Usd::from_cents(500),
        ..books.top_up(2)
    }));
    books.bought(TopUpPart::Begin(books.top_up(3)));
    let listed = workspace.json(&format!("compare {backup}"));
    let mut found: Vec<[String; 2]> = (listed.as_array().expect("a list").iter())
        .map(|one| ["effect", "subject"].map(|key| one[key].as_str().expect("text").to_owned()))
        .collect();
    found.sort();
    let grant = GrantId::from_bytes([2; 16]).to_string();
    let wanted = [
        ["access_valid_again", &grant],
        ["payment_missing", "capture-3"],
        ["payment_missing", "paypal/sale-3"],
        ["returned_payment_counts_again", "capture-2"],
        ["returned_payment_counts_again", "paypal/sale-2"],
    ];
    assert_eq!(found, wanted);
    server.end();
}
