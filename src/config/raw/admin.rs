//! `[admin]` as written.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::{At, Word};

use crate::config::settings::AdminRole;

/// The admin interface: health, metrics, and the admin API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAdmin {
    /// The address of the admin interface.
    ///
    /// Type: address and port
    /// Default: `127.0.0.1:9090`
    /// Range: beyond loopback only with `tls` and a `token` or `client_ca`; port 0 selects a free one
    pub(crate) address: Option<At<String>>,
    /// The control socket, by which commands make changes through the running gateway.
    ///
    /// Type: path
    /// Default: the SQLite file with `.sock` after its name; `tollgate.sock` with PostgreSQL
    /// Range: in an existing folder
    pub(crate) socket: Option<At<String>>,
    /// The certificate of the admin address; without one it is plain text.
    pub(crate) tls: Option<RawAdminTls>,
    /// Tokens of the admin API.
    pub(crate) token: Vec<RawAdminToken>,
}

/// The certificate of the admin address.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAdminTls {
    /// The certificate chain.
    ///
    /// Type: path
    /// Default: required in `tls`
    /// Range: PEM, the own certificate first
    pub(crate) certificate: Option<At<String>>,
    /// The private key of the certificate.
    ///
    /// Type: path
    /// Default: required in `tls`
    /// Range: PEM; RSA, ECDSA P-256 or P-384, Ed25519
    pub(crate) key: Option<At<String>>,
    /// Certificate authorities of clients (mutual TLS). A client without a certificate of one of them is refused in the handshake. A client
    /// with one reads health and metrics; the admin API needs a token all the same.
    ///
    /// Type: path
    /// Default: clients need no certificate
    /// Range: PEM
    pub(crate) client_ca: Option<At<String>>,
}

/// A token of the admin API.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawAdminToken {
    /// The name of the token, which the audit log has.
    ///
    /// Type: word
    /// Default: required
    /// Range: 1 to 40 letters, digits, `-`, `_` and `.`; each name once
    pub(crate) name: Option<At<String>>,
    /// What its holder may do: `monitor`, which is metrics, health and providers; `read`, which is everything but secrets and exports of a person's
    /// data; or `operate`, which is to export and change it too.
    ///
    /// Default: `read`
    pub(crate) role: Word<AdminRole>,
    /// The variable that contains the token. One of `token_env`, `token_file` and `digest` is required.
    ///
    /// Type: name of a variable
    /// Range: a variable that is set, with 32 to 512 visible ASCII characters
    pub(crate) token_env: Option<At<String>>,
    /// The file that contains the token.
    ///
    /// Type: path
    /// Range: a readable file with one word of 32 to 512 visible ASCII characters
    pub(crate) token_file: Option<At<String>>,
    /// The digest of the token, for settings that do not have the token itself: `sha256sum` prints the digits of a file that contains the
    /// token without a line end.
    ///
    /// Type: text
    /// Range: `sha256:` and 64 hex digits
    pub(crate) digest: Option<At<String>>,
}
