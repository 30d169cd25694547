//! Creation and changes of accounts.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, LoginId, Micros};
use tollgate_store::{
    AccountChange, AccountStatus, Admission, CacheScope, CommitError, NewLogin, Part, Refusal,
    Submit, UnitOfWork, commit,
};

use crate::keys::id_bytes;
use crate::login::Login;

/// An account to create.
#[derive(Clone, Debug)]
pub struct NewAccount {
    /// Logins; empty for an account used through keys only.
    pub logins: Vec<Login>,
    /// Its rate class.
    pub class: Arc<str>,
    /// The credit limit: how far the balance may go below zero; never negative.
    pub credit_limit: Micros,
    /// Cache scope: the accounts whose cached answers this account may receive.
    pub cache_scope: CacheScope,
    /// Time of creation.
    pub created_at: Timestamp,
}

/// Why an account was not created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CreateAccountError {
    /// A login belongs to another account.
    #[error("`{address}` already signs in to an account; use that account, or another address")]
    LoginTaken {
        /// The login.
        address: Arc<str>,
    },
    /// The credit limit is negative.
    #[error("the credit limit is {0}; use 0 or more")]
    CreditLimit(Micros),
    /// Writing to the store failed.
    #[error("could not write the account")]
    Store(#[source] CommitError),
}

/// Why an account was not changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccountError {
    /// Unknown account.
    #[error("there is no account `{0}`; `tollgate account list` shows them")]
    NoAccount(AccountId),
    /// Writing to the store failed.
    #[error("could not write the change of account `{account}`")]
    Store {
        account: AccountId,
        /// The cause.
        #[source]
        source: CommitError,
    },
}

/// Creates an account with its logins and a zero balance. `draw` fills a slice with random bytes.
pub async fn create_account(
    store: &dyn Submit,
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
    match commit(store, UnitOfWork::of_all(parts, Admission::Normal)).await {
        Ok(_) => Ok(id),
        Err(CommitError::Refused(Refusal::LoginTaken { address })) => {
            Err(CreateAccountError::LoginTaken { address })
        }
        Err(error) => Err(CreateAccountError::Store(error)),
    }
}

/// Suspends or reactivates an account.
pub async fn set_status(
    store: &dyn Submit,
    account: AccountId,
    status: AccountStatus,
    at: Timestamp,
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

/// Sets an account's rate class.
pub async fn set_class(
    store: &dyn Submit,
    account: AccountId,
    class: Arc<str>,
    at: Timestamp,
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

/// Sets an account's cache scope.
pub async fn set_cache_scope(
    store: &dyn Submit,
    account: AccountId,
    scope: CacheScope,
    at: Timestamp,
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

async fn change_account(store: &dyn Submit, change: AccountChange) -> Result<(), AccountError> {
    let account = change.id;
    let part = Part::ChangeAccount(Box::new(change));
    match commit(store, UnitOfWork::of(part, Admission::Normal)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Refused(Refusal::NoAccount(account))) => {
            Err(AccountError::NoAccount(account))
        }
        Err(source) => Err(AccountError::Store { account, source }),
    }
}
