//! Shared test support: a store of an engine in a temporary folder, accounts by number, and units written one by one.

use std::path::Path;
use std::sync::{Arc, mpsc};

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, LoginId, Micros, OperationId};
use tollgate_store::{
    Admission, CacheScope, CommitError, LoginKind, NewAccount, NewLogin, Part, Receipt, Refusal,
    Store, UnitOfWork, commit,
};

pub(crate) use super::engine::{Options, open as open_as, options};

pub(crate) fn open(folder: &Path) -> Arc<dyn Store> {
    open_as(folder, options())
}

/// Opens a new store and creates these accounts.
pub(crate) fn open_with(
    folder: &Path,
    accounts: impl IntoIterator<Item = AccountId>,
) -> Arc<dyn Store> {
    let store = open(folder);
    write(&store, accounts.into_iter().map(account_of)).expect("accounts");
    store
}

pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// Writes the parts in one unit and waits until it is durable.
pub(crate) fn write(
    store: &Arc<dyn Store>,
    parts: impl IntoIterator<Item = Part>,
) -> Result<Receipt, Refusal> {
    match wait(commit(
        &**store,
        UnitOfWork::of_all(parts, Admission::Always),
    )) {
        Ok(receipt) => Ok(receipt),
        Err(CommitError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

/// Blocks the writer until the returned sender is dropped, so that everything queued meanwhile is in one commit.
pub(crate) fn stop_writer(store: &Arc<dyn Store>) -> mpsc::Sender<()> {
    let (resume, wait_for) = mpsc::channel::<()>();
    let (stopped, wait_stopped) = mpsc::channel();
    let done = Box::new(move |_| {
        stopped.send(()).expect("the test waits");
        let _ = wait_for.recv();
    });
    store
        .submit(UnitOfWork::of_all([], Admission::Always), done)
        .expect("the queue is open");
    wait_stopped.recv().expect("the writer stops");
    resume
}

/// Microseconds after 1970 began.
pub(crate) const fn time(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

pub(crate) fn account(number: u8) -> AccountId {
    AccountId::from_bytes([number; 16])
}

pub(crate) fn operation(number: u8) -> OperationId {
    OperationId::from_bytes([number; 16])
}

/// Creates the account with this number.
pub(crate) fn new_account(number: u8) -> Part {
    account_of(account(number))
}

/// Makes the account of this id.
pub(crate) fn account_of(id: AccountId) -> Part {
    Part::CreateAccount(Box::new(NewAccount {
        id,
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: time(1),
    }))
}

/// Gives an account a login.
pub(crate) fn login(number: u8, account_number: u8, address: &str) -> Part {
    Part::InsertLogin(Box::new(NewLogin {
        id: LoginId::from_bytes([number; 16]),
        account: account(account_number),
        kind: LoginKind::Email,
        address: Arc::from(address),
        verified_at: None,
        created_at: time(1),
    }))
}
