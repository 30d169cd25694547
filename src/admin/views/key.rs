//! API keys, without their secrets.

use schemars::JsonSchema;
use serde::Serialize;
use tollgate_clock::Timestamp;
use tollgate_filter::Scopes;
use tollgate_identity::Key;
use tollgate_money::CapPeriod;

/// An API key.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub(crate) struct KeyView {
    /// `key_` and 32 hex digits.
    pub(crate) id: String,
    /// The name given to it.
    pub(crate) name: Option<String>,
    /// `active`, `expired` or `revoked`.
    pub(crate) status: &'static str,
    /// The first and last characters of the secret.
    pub(crate) hint: Option<String>,
    /// The scopes.
    pub(crate) scopes: Vec<&'static str>,
    /// The models that it may use; null for all.
    pub(crate) models: Option<Vec<String>>,
    /// The spending cap as a decimal number of credits; null for none.
    pub(crate) spend_max: Option<String>,
    /// The period of the cap: `total` or `month`.
    pub(crate) spend_period: Option<&'static str>,
    /// RFC 3339.
    pub(crate) created_at: String,
    /// RFC 3339; null for never.
    pub(crate) expires_at: Option<String>,
    /// RFC 3339; null while it is not revoked.
    pub(crate) revoked_at: Option<String>,
}

impl KeyView {
    /// A key at `now`.
    pub(crate) fn of(key: &Key, now: Timestamp) -> KeyView {
        let models = key.models.as_deref();
        let scopes = Scopes::from_bits(key.scopes);
        KeyView {
            id: key.id.to_string(),
            name: key.label.as_deref().map(str::to_owned),
            status: match (key.revoked_at, key.expires_at) {
                (Some(_), _) => "revoked",
                (None, Some(end)) if end <= now => "expired",
                _ => "active",
            },
            hint: key.hint.as_deref().map(str::to_owned),
            scopes: scopes.iter().map(|scope| scope.name()).collect(),
            models: models.map(|models| models.iter().map(|model| model.to_string()).collect()),
            spend_max: key.spending_cap.map(|cap| cap.max.to_string()),
            spend_period: key.spending_cap.map(|cap| match cap.period {
                CapPeriod::Month => "month",
                _ => "total",
            }),
            created_at: key.created_at.rfc3339(),
            expires_at: key.expires_at.map(Timestamp::rfc3339),
            revoked_at: key.revoked_at.map(Timestamp::rfc3339),
        }
    }
}
