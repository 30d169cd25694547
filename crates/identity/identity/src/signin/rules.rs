//! Rules and channels of sign-in, as the operator sets them.

use std::sync::Arc;

use tollgate_money::Micros;

use super::CodeLength;

/// The channels for codes. A channel outside the configuration is off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodeChannels {
    /// By e-mail.
    pub email: bool,
    /// By text message.
    pub phone: bool,
}

/// Rules set by the operator.
#[derive(Clone, Debug)]
pub struct SigninRules {
    /// Whether people may create accounts themselves.
    pub sign_up: bool,
    /// Length of codes.
    pub length: CodeLength,
    /// Messages to one country per day.
    pub country_daily_max: i64,
    /// Codes asked for from one network in an hour.
    pub network_hourly_max: i64,
    /// Rate class of accounts created by sign-up.
    pub class: Arc<str>,
    /// Credits granted at sign-up, once for each mailbox or number.
    pub grant: Micros,
    /// Sign-up grants to one network per day.
    pub grants_network_daily_max: i64,
    /// Sign-up grants to one domain of e-mail addresses per day.
    pub grants_domain_daily_max: i64,
}

impl Default for SigninRules {
    fn default() -> Self {
        SigninRules {
            sign_up: true,
            length: CodeLength::Eight,
            country_daily_max: 500,
            network_hourly_max: 20,
            class: Arc::from("free"),
            grant: Micros::ZERO,
            grants_network_daily_max: 10,
            grants_domain_daily_max: 100,
        }
    }
}
