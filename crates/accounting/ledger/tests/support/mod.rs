//! Shared test support: a store in a temporary folder, ids by number, accounts with credit.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Deadline, Timestamp};
use tollgate_ledger::audit::audit;
use tollgate_ledger::{Balance, Credit, HoldRequest, Ledger, Settle};
use tollgate_money::{AccountId, CredentialId, Micros, OperationId, SpendingCap};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, CacheScope, CredentialKind, Endpoint, IdempotencyKey, IdempotencyPart, KeptAnswer,
    NewAccount, NewCredential, Part, RootSecret, Store, UnitOfWork, UsageFlags, UsageRecord,
    commit,
};

/// An arbitrary time.
pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// The reading of the monotonic clock at [`NOW`].
pub(crate) const ELAPSED: Duration = Duration::from_secs(100);

/// The operation `number`.
pub(crate) fn operation(number: u64) -> OperationId {
    operation_at(NOW + Duration::from_millis(number), number)
}

/// The operation `number`, begun at a time.
pub(crate) fn operation_at(at: Timestamp, number: u64) -> OperationId {
    OperationId::from_parts(at.as_millis().unsigned_abs(), random(number))
}

/// The account `number`.
pub(crate) fn account(number: u64) -> AccountId {
    AccountId::from_parts(1_600_000_000_000, random(number))
}

fn random(number: u64) -> [u8; 10] {
    let mut bytes = [0; 10];
    bytes[2..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    bytes
}

pub(crate) fn options() -> Options {
    Options {
        // Syncs do not affect the results under test, only the duration.
        durability: Durability::Process,
        // So few records that every test has posted and unposted data.
        post_records: 7,
        ..Options::new(NOW, RootSecret([7; 32]))
    }
}

pub(crate) fn open(folder: &Path) -> Arc<dyn Store> {
    sqlite::open(&folder.join("t.db"), options()).expect("the store opens")
}

pub(crate) fn start(store: &Arc<dyn Store>) -> Ledger {
    Ledger::start(Arc::clone(store), NOW)
        .expect("the ledger starts")
        .0
}

pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// The balance of an account; loads the account if not in memory.
pub(crate) fn balance_of(ledger: &Ledger, account: AccountId) -> Balance {
    wait(ledger.load(account)).expect("it can be loaded");
    ledger.balance(account).expect("an account")
}

/// Creates an account and grants it credit.
pub(crate) fn account_with(
    store: &Arc<dyn Store>,
    ledger: &Ledger,
    number: u64,
    credit: i64,
    credit_limit: i64,
) -> AccountId {
    let id = account(number);
    let made = NewAccount {
        id,
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::new(credit_limit),
        created_at: NOW,
    };
    let unit = UnitOfWork::of(Part::CreateAccount(Box::new(made)), Admission::Normal);
    wait(commit(&**store, unit)).expect("the account is made");
    if credit > 0 {
        wait(ledger.grant(credit_of(id, credit, "first", 1_000_000 + number)))
            .expect("the credit is granted");
    }
    id
}

pub(crate) fn credit_of(account: AccountId, amount: i64, reference: &str, number: u64) -> Credit {
    Credit {
        operation: operation(number),
        account,
        amount: Micros::new(amount),
        reference: Arc::from(reference),
        at: NOW,
    }
}

pub(crate) fn request(account: AccountId, number: u64, amount: i64) -> HoldRequest {
    HoldRequest {
        operation: operation(number),
        account,
        amount: Micros::new(amount),
        price_version: Some(1),
        at: NOW,
        deadline: Deadline::after(ELAPSED, Duration::from_secs(1)),
        expires_at: NOW + Duration::from_secs(1),
        is_written: true,
    }
}

pub(crate) fn settle(actual: i64) -> Settle {
    Settle {
        actual: Micros::new(actual),
        usage: usage(),
        at: NOW,
    }
}

pub(crate) fn usage() -> UsageRecord {
    UsageRecord {
        credential: None,
        endpoint: Endpoint::Chat,
        model: Arc::from("small"),
        upstream: Some(Arc::from("provider")),
        prompt_tokens: 3,
        completion_tokens: 5,
        flags: UsageFlags::NONE,
        http_status: 200,
        ttfb_us: Some(10),
        total_us: Some(20),
    }
}

/// Fails with the audit's violations unless the ledger balances.
pub(crate) fn assert_ledger_balances(store: &Arc<dyn Store>) {
    let report = audit(store).expect("the audit runs");
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(
        report.clean(),
        "the ledger does not balance:\n{}",
        violations.join("\n")
    );
    assert_eq!(report.sums.total(), Micros::ZERO, "{:?}", report.sums);
}

/// An API key of an account.
pub(crate) fn key_of(
    id: CredentialId,
    account: AccountId,
    spending_cap: Option<SpendingCap>,
) -> Part {
    Part::InsertCredential(Box::new(NewCredential {
        id,
        hash: std::array::from_fn(|index| id.as_bytes()[index % 16]),
        kind: CredentialKind::ApiKey,
        account,
        client_id: None,
        grant_id: None,
        resource: 1,
        scopes: 1,
        label: None,
        hint: None,
        models: None,
        spending_cap,
        created_at: NOW,
        expires_at: None,
    }))
}

/// The answer of an idempotency key with a lost claim: the store refuses the answer.
pub(crate) fn answer_with_lost_claim(account: AccountId) -> Part {
    Part::Idempotency(Box::new(IdempotencyPart::Keep {
        key: IdempotencyKey {
            account,
            endpoint: Endpoint::Chat,
            key: Arc::from("lost"),
        },
        token: 1,
        answer: KeptAnswer {
            status: 200,
            headers: Arc::from("1"),
            body: None,
        },
    }))
}
