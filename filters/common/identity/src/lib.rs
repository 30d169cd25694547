//! Accounts and credentials: text form, owner, permissions and lifetime of API keys and access tokens; the OAuth authorization server;
//! sign-in by one-time code; sessions.
//!
//! [`Form`] is the text form of credentials: generated from random bytes, with a checksum that rejects typing errors without a lookup.
//! [`Credentials`] is the in-memory index that requests are authenticated with: every live credential, updated with each commit of the
//! store, so that a committed change holds for the next request. The functions ([`create_account`], [`create_key`], [`revoke_key`] and
//! others) change the store; each returns when the change is durable and indexed.
//!
//! No HTTP, and no time and no randomness of its own: times are passed in or come from an injected clock, and random bytes from an injected
//! function. Scopes and resources are stored bit sets; callers define the bits.

mod accounts;
mod credentials;
mod digest;
mod form;
mod keys;
mod login;
pub mod oauth;
pub mod session;
pub mod signin;
mod tokens;

pub use accounts::{
    AccountError, CreateAccountError, NewAccount, create_account, set_cache_scope, set_class,
    set_status,
};
pub use credentials::{Account, Credential, Credentials};
pub use digest::Digest;
pub use form::Form;
pub use keys::{
    CreateKeyError, CreatedKey, Key, KeyId, KeyIdError, NewKey, RevokeKeyError, create_key,
    create_key_as, list_keys, revoke_key,
};
pub use login::{Login, LoginError};
pub use session::{Session, SessionValue};
pub use signin::{Signin, SigninKeys, SigninRules};
pub use tokens::{
    IssueTokenError, IssuedToken, NewToken, issue_token, issue_token_as, revoke_token, token_id,
};
