//! Warnings about valid settings that carry a risk.

use std::fmt;

use serde::Serialize;

use super::Settings;

/// A valid setting that carries a risk for its operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The key as a path.
    pub key: &'static str,
    /// The risk, and the safer setting.
    pub message: &'static str,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

impl Settings {
    /// The risks of these settings.
    pub fn warnings(&self) -> Vec<Warning> {
        let mut found = Vec::new();
        let x402 = self.payments.x402.as_ref();
        if x402.is_some_and(|x402| x402.rpc_url.is_none()) {
            found.push(Warning {
                key: "payments.x402.rpc_url",
                message: "is missing, so the facilitator is believed: when an answer of it is lost or false, a buyer may pay twice or get the \
                          plan without paying, and you have to look the payment up by hand (`tollgate payment list`); write a node of the \
                          chain, `rpc_url = \"https://...\"`",
            });
        }
        found
    }
}
