//! Making and changing accounts.

use std::sync::Arc;

use tollgate_money::{AccountId, Micros};
use tollgate_store::{
    AccountChange, AccountStatus, Admission, CacheScope, CommitError, LoginId, NewLogin, Part,
    Refusal, Store, UnitOfWork, commit,
};

use crate::keys::id_bytes;
use crate::login::Login;

/// An account to be made.
#[derive(Clone, Debug)]
pub struct NewAccount {
    /// What its owner signs in with; may be empty, for an account that is only used through keys.
    pub logins: Vec<Login>,
    /// The class whose limits apply.
    pub class: Arc<str>,
    /// How far below zero its balance may go; never negative.
    pub credit_limit: Micros,
    /// Whose cached answers it may be given.
    pub cache_scope: CacheScope,
    /// Unix microseconds.
    pub created_at: i64,
}

/// Why an account was not made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateAccountError {
    /// One of the addresses signs in to an account already.
    #[error("`{address}` already signs in to an account; use that account, or another address")]
    LoginTaken {
        /// The address.
        address: Arc<str>,
    },
    /// The credit limit is below zero.
    #[error("the credit limit is {0}; use 0 or more")]
    CreditLimit(Micros),
    /// The store did not write it.
    #[error("could not write the account")]
    Store(#[source] CommitError),
}

/// Why an account was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccountError {
    /// There is no such account.
    #[error("there is no account `{0}`; `tollgate account list` shows them")]
    NoAccount(AccountId),
    /// The store did not write it.
    #[error("could not write the change of account `{account}`")]
    Store {
        /// The account.
        account: AccountId,
        /// Why.
        #[source]
        source: CommitError,
    },
}

/// Makes an account with its logins, and a balance of zero. `draw` fills a slice with random bytes.
pub async fn create_account(
    store: &dyn Store,
    account: NewAccount,
    mut draw: impl FnMut(&mut [u8]) + Send,
) -> Result<AccountId, CreateAccountError> {
    if account.credit_limit < Micros::ZERO {
        return Err(CreateAccountError::CreditLimit(account.credit_limit));
    }
    let id = AccountId::from_bytes(id_bytes(account.created_at, &mut draw));
    let made = tollgate_store::NewAccount {
        id,
        class: account.class,
        cache_scope: account.cache_scope,
        credit_limit: account.credit_limit,
        created_at: account.created_at,
    };
    let mut parts = vec![Part::CreateAccount(Box::new(made))];
    for login in &account.logins {
        parts.push(Part::InsertLogin(Box::new(NewLogin {
            id: LoginId::from_bytes(id_bytes(account.created_at, &mut draw)),
            account: id,
            kind: login.kind(),
            address: Arc::from(login.address()),
            verified_at: None,
            created_at: account.created_at,
        })));
    }
    match commit(store, UnitOfWork::of_all(parts, Admission::Begins)).await {
        Ok(_) => Ok(id),
        Err(CommitError::Refused(Refusal::LoginTaken { address })) => {
            Err(CreateAccountError::LoginTaken { address })
        }
        Err(error) => Err(CreateAccountError::Store(error)),
    }
}

/// Bars an account, or lets it in again. `at` is Unix microseconds.
pub async fn set_status(
    store: &dyn Store,
    account: AccountId,
    status: AccountStatus,
    at: i64,
) -> Result<(), AccountError> {
    let change = AccountChange {
        id: account,
        status: Some(status),
        class: None,
        cache_scope: None,
        at,
    };
    change_account(store, change).await
}

/// Gives an account another rate class. `at` is Unix microseconds.
pub async fn set_class(
    store: &dyn Store,
    account: AccountId,
    class: Arc<str>,
    at: i64,
) -> Result<(), AccountError> {
    let change = AccountChange {
        id: account,
        status: None,
        class: Some(class),
        cache_scope: None,
        at,
    };
    change_account(store, change).await
}

/// Says whose cached answers an account may be given. `at` is Unix microseconds.
pub async fn set_cache_scope(
    store: &dyn Store,
    account: AccountId,
    scope: CacheScope,
    at: i64,
) -> Result<(), AccountError> {
    let change = AccountChange {
        id: account,
        status: None,
        class: None,
        cache_scope: Some(scope),
        at,
    };
    change_account(store, change).await
}

async fn change_account(store: &dyn Store, change: AccountChange) -> Result<(), AccountError> {
    let account = change.id;
    let part = Part::ChangeAccount(Box::new(change));
    match commit(store, UnitOfWork::of(part, Admission::Begins)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Refused(Refusal::NoAccount(account))) => {
            Err(AccountError::NoAccount(account))
        }
        Err(source) => Err(AccountError::Store { account, source }),
    }
}
