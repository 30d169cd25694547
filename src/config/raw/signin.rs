//! `[signin]` and `[brand]`, as written.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::At;

/// Sign-in with one-time codes.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSignin {
    /// Whether people may create accounts themselves.
    pub(crate) sign_up: Option<At<bool>>,
    /// Number of digits of a one-time code: 6 or 8.
    pub(crate) code_digits: Option<At<u64>>,
    /// Maximum codes requested from one network in an hour.
    pub(crate) network_hourly_max: Option<At<u64>>,
    /// Maximum text messages to one country in a day.
    pub(crate) country_daily_max: Option<At<u64>>,
    /// Delivery of codes by mail.
    pub(crate) mail: RawMail,
    /// Delivery of codes by text message.
    pub(crate) sms: RawSms,
}

/// Delivery of codes by mail.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMail {
    /// The mail server: `smtps://HOST[:PORT]` or `smtp://HOST[:PORT]`. Without it no codes are sent by mail.
    pub(crate) smtp_url: Option<At<String>>,
    /// Transport security: `implicit`, `starttls` or `none`.
    pub(crate) tls: Option<At<String>>,
    /// The user name at the server.
    pub(crate) user: Option<At<String>>,
    /// The environment variable that contains the password.
    pub(crate) password_env: Option<At<String>>,
    /// The file that contains the password.
    pub(crate) password_file: Option<At<String>>,
    /// The sender: an address, or a name and an address in angle brackets.
    pub(crate) from: Option<At<String>>,
    /// A PEM file with a root to trust besides the system's.
    pub(crate) ca_file: Option<At<String>>,
}

/// Delivery of codes by text message.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawSms {
    /// The webhook that sends text messages. Without it no codes are sent by text message.
    pub(crate) webhook_url: Option<At<String>>,
    /// The environment variable that contains the key for signing the requests.
    pub(crate) secret_env: Option<At<String>>,
    /// The file that contains the key for signing the requests.
    pub(crate) secret_file: Option<At<String>>,
}

/// The brand on the pages and in messages.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawBrand {
    /// The name on every page and in messages; `service.name` by default.
    pub(crate) name: Option<At<String>>,
    /// The accent colour: `#` and six hex digits. All others are derived from it.
    pub(crate) accent: Option<At<String>>,
    /// A logo (SVG or PNG) instead of the built-in one.
    pub(crate) logo_file: Option<At<String>>,
    /// The support contact: an e-mail address or the URL of a page.
    pub(crate) support: Option<At<String>>,
    /// The URL of the terms of use.
    pub(crate) terms_url: Option<At<String>>,
    /// The URL of the privacy notice.
    pub(crate) privacy_url: Option<At<String>>,
}
