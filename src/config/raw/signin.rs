//! `[signin]` and `[brand]`, as written.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::At;

/// How people sign in.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSignin {
    /// Whether people may make accounts themselves.
    pub(crate) sign_up: Option<At<bool>>,
    /// Digits of a one-time code: 6 or 8.
    pub(crate) code_digits: Option<At<u64>>,
    /// Codes asked for from one network in an hour.
    pub(crate) network_hourly_max: Option<At<u64>>,
    /// Text messages to one country in a day.
    pub(crate) country_daily_max: Option<At<u64>>,
    /// Codes by mail.
    pub(crate) mail: RawMail,
    /// Codes by text message.
    pub(crate) sms: RawSms,
}

/// Codes by mail.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMail {
    /// The mail server: `smtps://HOST[:PORT]` or `smtp://HOST[:PORT]`. Without it no codes go out by mail.
    pub(crate) smtp_url: Option<At<String>>,
    /// How the connection is guarded: `implicit`, `starttls` or `none`.
    pub(crate) tls: Option<At<String>>,
    /// Who we are to the server.
    pub(crate) user: Option<At<String>>,
    /// The environment variable that holds the password.
    pub(crate) password_env: Option<At<String>>,
    /// The file that holds the password.
    pub(crate) password_file: Option<At<String>>,
    /// The sender: an address, or a name and an address in angle brackets.
    pub(crate) from: Option<At<String>>,
    /// A PEM file with a root to trust besides the system's.
    pub(crate) ca_file: Option<At<String>>,
}

/// Codes by text message.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSms {
    /// The address that takes text messages. Without it no codes go out by text message.
    pub(crate) webhook_url: Option<At<String>>,
    /// The environment variable that holds the key which requests are signed with.
    pub(crate) secret_env: Option<At<String>>,
    /// The file that holds the key which requests are signed with.
    pub(crate) secret_file: Option<At<String>>,
}

/// Whose pages these are.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawBrand {
    /// The name on every page and in messages; `service.name` when missing.
    pub(crate) name: Option<At<String>>,
    /// The colour for acting: `#` and six hex digits. All others follow from it.
    pub(crate) accent: Option<At<String>>,
    /// A picture (SVG or PNG) instead of the raised barrier.
    pub(crate) logo_file: Option<At<String>>,
    /// Where people ask for help: an e-mail address or the address of a page.
    pub(crate) support: Option<At<String>>,
    /// The address of the terms of use.
    pub(crate) terms_url: Option<At<String>>,
    /// The address of the privacy notice.
    pub(crate) privacy_url: Option<At<String>>,
}
