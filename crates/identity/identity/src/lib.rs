#![doc = include_str!("../README.md")]

mod accounts;
mod credentials;
mod digest;
mod feed;
mod form;
mod keys;
mod login;
mod look_up;
mod network;
pub mod oauth;
mod presented;
mod refused;
mod released;
pub mod session;
pub mod signin;
mod tokens;

use tollgate_service::{GATEWAY, provided};

pub use accounts::{
    AccountError, CreateAccountError, NewAccount, create_account, set_cache_scope, set_class,
    set_status,
};
pub use credentials::{Account, Credential, CredentialUse, Credentials};
pub use digest::Digest;
pub use form::{Form, redact};
pub use keys::{
    ChangeKeyError, CreateKeyError, CreatedKey, Key, KeyChange, KeyId, KeyIdError, NewKey,
    RevokeKeyError, change_key_as, create_key, create_key_as, find_key, list_keys, revoke_key,
};
pub use login::{Login, LoginError};
pub use look_up::LookUps;
pub use presented::{RevokePresentedError, revoke_presented_key};
pub use refused::RefusedRequests;
pub use session::{Session, SessionValue};
pub use signin::{Signin, SigninKeys, SigninRules};
pub use tokens::{
    IssueTokenError, IssuedToken, NewToken, issue_token, issue_token_as, revoke_token,
    session_tokens,
};

provided! {
    GATEWAY => [Credentials, RefusedRequests];
    "signin" => [Signin, signin::CodeChannels];
    "oauth" => [oauth::AuthorizationServer];
}
