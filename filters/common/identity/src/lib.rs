//! Accounts and their credentials: what a key looks like, who it belongs to, what it may do, and when it stops working.
//!
//! Three parts. [`Form`] is the text form of credentials: made from random bytes, refused for a typing error without a look-up.
//! [`Credentials`] is the index that requests are judged by: every live credential in memory, following the store, so that what the
//! store has committed holds for the very next request. The functions ([`create_account`], [`create_key`], [`revoke_key`] and their
//! like) change what is stored; each returns when the change is durable and the index has followed.
//!
//! No HTTP, no clock and no randomness of its own: times are Unix microseconds and random bytes are drawn by a function that is
//! handed in. Scopes and resources are the bit sets that are stored; what a bit means is said where requests are judged.

mod accounts;
mod credentials;
mod digest;
mod form;
mod keys;
mod login;
pub mod oauth;
mod secret;
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
pub use secret::Secret;
pub use session::{Session, SessionValue};
pub use signin::{Signin, SigninKeys, SigninRules};
pub use tokens::{
    IssueTokenError, IssuedToken, NewToken, issue_token, issue_token_as, revoke_token, token_id,
};
