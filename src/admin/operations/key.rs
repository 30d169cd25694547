//! API keys.

use http::{Method, StatusCode};
use schemars::JsonSchema;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use tollgate_clock::Timestamp;
use tollgate_filter::{ApiError, Resources, Scope, Scopes};
use tollgate_identity::{KeyId, NewKey, create_key, find_key, list_keys, revoke_key};
use tollgate_money::{CapPeriod, SpendingCap};

use super::operation::{Done, Operation, Run};
use crate::admin::api::call::{Call, invalid, unknown};
use crate::admin::api::endpoint::{Endpoint, Route, schema};
use crate::admin::api::state::ApiState;
use crate::admin::changes::ChangeError;
use crate::admin::views::KeyView;
use crate::config::AdminRole;

/// Creates a key.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Create {
    /// The id of the paying account.
    pub(crate) account: String,
    /// The label of the key.
    pub(crate) name: String,
    /// Names of scopes; by default every scope of the API.
    pub(crate) scopes: Vec<String>,
    /// The permitted models; by default every model.
    pub(crate) models: Vec<String>,
    /// The spending cap, as a decimal number of credits; no cap by default.
    pub(crate) spend_max: Option<String>,
    /// The period of the cap: `total` or `month`; `total` by default.
    pub(crate) spend_period: Option<String>,
    /// The expiry, written in Unix microseconds.
    #[serde(default, with = "unix_micros")]
    pub(crate) expires_at: Option<Timestamp>,
}

/// An optional time as Unix microseconds.
mod unix_micros {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tollgate_clock::Timestamp;

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(Timestamp::as_micros).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let micros = Option::<i64>::deserialize(deserializer)?;
        Ok(micros.map(Timestamp::from_micros))
    }
}

/// A new key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Created {
    /// The id of the key.
    pub(crate) id: String,
    /// The secret, shown only after the creation.
    pub(crate) secret: SecretText,
}

/// A text for the socket. `Debug` never prints the text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

impl Operation for Create {
    type Output = Created;
    const NAME: &'static str = "key_create";
    const RESULT: &'static str = "key";

    async fn run(self, run: &Run<'_>) -> Result<Created, ChangeError> {
        let service = run.service;
        let period = self.spend_period.as_deref();
        let cap = self.spend_max.as_deref().map(|max| read_cap(max, period));
        let spending_cap = cap.transpose()?;
        let key = NewKey {
            account: service.undeleted(&self.account).await?,
            label: self.name,
            resources: Resources::API.bits(),
            scopes: read_scopes(&self.scopes)?.bits(),
            models: service.models(&self.models)?,
            spending_cap,
            expires_at: self.expires_at,
            created_at: run.now,
        };
        let draw = |out: &mut [u8]| service.entropy.fill(out);
        let made = create_key(run.recorder, &service.form, key, draw).await?;
        Ok(Created {
            id: made.id.to_string(),
            secret: SecretText(made.secret.expose_secret().to_owned()),
        })
    }

    fn created(output: &Created) -> Option<&str> {
        Some(&output.id)
    }
}

fn read_cap(max: &str, period: Option<&str>) -> Result<SpendingCap, ChangeError> {
    Ok(SpendingCap {
        max: max.parse()?,
        period: match period {
            None | Some("total") => CapPeriod::Total,
            Some("month") => CapPeriod::Month,
            Some(other) => {
                return Err(ChangeError::invalid(format!(
                    "`{other}` is not a period of a spending cap; use total or month"
                )));
            }
        },
    })
}

fn read_scopes(names: &[String]) -> Result<Scopes, ChangeError> {
    if names.is_empty() {
        return Ok(Scopes::API);
    }
    names.iter().try_fold(Scopes::NONE, |scopes, name| {
        let scope = Scope::named(name).ok_or_else(|| {
            let names: Vec<&str> = Scope::ALL.into_iter().map(Scope::name).collect();
            ChangeError::invalid(format!(
                "there is no scope `{name}`; use {}",
                tollgate_filter::settings::words(&names)
            ))
        })?;
        Ok(scopes.with(scope))
    })
}

/// An API key to create.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateKeyRequest {
    /// Its name.
    name: String,
    /// Names of scopes; all scopes of the API by default.
    #[serde(default)]
    scopes: Vec<String>,
    /// The only models that it may use; all by default.
    #[serde(default)]
    models: Vec<String>,
    /// The spending cap as a decimal number of credits; none by default.
    spend_max: Option<String>,
    /// The period of the cap: `total` (the default) or `month`.
    spend_period: Option<String>,
    /// The expiry, RFC 3339; never by default.
    expires_at: Option<String>,
}

/// A new key.
#[derive(Serialize, JsonSchema)]
pub(in crate::admin) struct CreatedKey {
    /// Its id.
    id: String,
    /// The secret: it is not stored.
    secret: String,
    /// The account that pays.
    account: String,
}

impl Endpoint for Create {
    type Answer = CreatedKey;
    const ROUTE: Route = Route::change(
        "createKey",
        Method::POST,
        "/accounts/{account}/keys",
        "Create an API key. The answer has its secret, which is shown this once.",
    )
    .body(schema!(CreateKeyRequest))
    .status(StatusCode::CREATED);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<CreatedKey, ApiError> {
        let new: CreateKeyRequest = call.message()?;
        let expires_at = new.expires_at.map(|text| {
            let message = "`expires_at` is not a time; write it like 2027-01-31T12:00:00Z.";
            Timestamp::from_rfc3339(&text).ok_or_else(|| invalid(message).param("expires_at"))
        });
        let account = call.name().to_owned();
        let create = Create {
            account: account.clone(),
            name: new.name,
            scopes: new.scopes,
            models: new.models,
            spend_max: new.spend_max,
            spend_period: new.spend_period,
            expires_at: expires_at.transpose()?,
        };
        let Created { id, secret } = api.perform(create, call).await?;
        Ok(CreatedKey {
            id,
            secret: secret.0,
            account,
        })
    }
}

/// Revokes a key; the next request with the key is refused.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Revoke {
    /// The key's id.
    pub(crate) key: String,
}

impl Operation for Revoke {
    type Output = Done;
    const NAME: &'static str = "key_revoke";
    const SUBJECT: Option<&'static str> = Some("key");

    async fn run(self, run: &Run<'_>) -> Result<Done, ChangeError> {
        let key: KeyId = self.key.parse()?;
        revoke_key(run.recorder, key, run.now).await?;
        Ok(Done {})
    }
}

/// A revoked key.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct RevokedKey {
    /// Its id.
    id: String,
    /// `revoked`.
    status: &'static str,
}

impl Endpoint for Revoke {
    type Answer = RevokedKey;
    const ROUTE: Route = Route::change(
        "revokeKey",
        Method::DELETE,
        "/keys/{key}",
        "Revoke an API key: it is refused from the next request on. Idempotent.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<RevokedKey, ApiError> {
        let id = call.name().to_owned();
        api.perform(Revoke { key: id.clone() }, call).await?;
        Ok(RevokedKey {
            id,
            status: "revoked",
        })
    }
}

/// Lists the keys of an account.
pub(in crate::admin) struct List;

/// Keys of an account.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct KeyList {
    data: Vec<KeyView>,
}

impl Endpoint for List {
    type Answer = KeyList;
    const ROUTE: Route = Route::read(
        "listKeys",
        "/accounts/{account}/keys",
        "List the API keys of an account, without their secrets, oldest first.",
    );

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<KeyList, ApiError> {
        let (id, now) = (api.find(call.name()).await?.id, api.deps.clock.now());
        let keys = api.read(move |store| list_keys(store, id)).await?;
        let data = keys.iter().map(|key| KeyView::of(key, now)).collect();
        Ok(KeyList { data })
    }
}

/// Finds a key by the secret.
pub(in crate::admin) struct Find;

/// A key to find.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FindKeyRequest {
    /// Its whole secret, such as one that was found in a public place. It is neither stored nor logged.
    secret: String,
}

/// The key with a secret.
#[derive(Debug, Serialize, JsonSchema)]
pub(in crate::admin) struct FoundKey {
    /// The account that pays for it.
    account: String,
    key: KeyView,
}

impl Endpoint for Find {
    type Answer = FoundKey;
    const ROUTE: Route = Route::change(
        "findKey",
        Method::POST,
        "/keys/find",
        "Find an API key by its secret, for instance one that has leaked.",
    )
    .body(schema!(FindKeyRequest))
    .role(AdminRole::Read);

    async fn answer(api: &ApiState, call: &Call<'_>) -> Result<FoundKey, ApiError> {
        let (FindKeyRequest { secret }, now) = (call.message()?, api.deps.clock.now());
        let found = api
            .read(move |store| find_key(store, secret.trim()))
            .await?;
        let (account, key) = found.ok_or_else(|| unknown("No API key has this secret."))?;
        let (account, key) = (account.to_string(), KeyView::of(&key, now));
        Ok(FoundKey { account, key })
    }
}
