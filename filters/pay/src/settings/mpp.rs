//! The section `[payments.mpp]`: sale of the plan by challenges of the `Payment` scheme.

use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tollgate_filter::ServiceIdentity;
use tollgate_filter::settings::{At, BaseUrl, Problems, Switch, Word, Words};
use tollgate_module::{Named, Section, SectionContext, provided};
use tollgate_purchase::mandates::Urls;

use super::PayPalSettings;
use crate::mpp::{SECRET_BYTES_MIN, Secrets, Settings};

/// Challenges of the `Payment` scheme (MPP). Without a secret the plan is not sold by it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawMpp {
    /// Contains the secret by which challenges are authenticated.
    ///
    /// Type: name of a variable
    /// Range: at least 32 characters
    secret_env: Option<At<String>>,
    /// Contains that secret.
    ///
    /// Type: path
    /// Range: not beside `secret_env`
    secret_file: Option<At<String>>,
    /// Contains the previous secret. Challenges are valid for half an hour: keep the old secret here for that time after a change.
    ///
    /// Type: name of a variable
    /// Range: at least 32 characters
    previous_secret_env: Option<At<String>>,
    /// Contains that secret.
    ///
    /// Type: path
    /// Range: not beside `previous_secret_env`
    previous_secret_file: Option<At<String>>,
    /// Binds a challenge to the body of its request. The body does not affect the purchase, and clients that add an idempotency key on
    /// their second request would get a new challenge each time.
    digest: Switch<false>,
    /// The header field that a challenge names for its credential. With `payment-authorization` the account's credential stays in
    /// `Authorization`, and clients that ignore the name may send the payment credential in `Authorization` all the same. With
    /// `authorization` a challenge names no field.
    credential_header: Word<CredentialHeader>,
}

/// Whether challenges name a dedicated field for the credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CredentialHeader {
    is_own: bool,
}

impl Default for CredentialHeader {
    fn default() -> CredentialHeader {
        CredentialHeader { is_own: true }
    }
}

impl Words for CredentialHeader {
    const WORDS: &'static [(&'static str, CredentialHeader)] = &[
        ("authorization", CredentialHeader { is_own: false }),
        ("payment-authorization", CredentialHeader { is_own: true }),
    ];
}

provided! { "pay" => [Settings]; }

impl Section for RawMpp {
    const NAME: &'static str = "payments.mpp";
    type Settings = Option<Settings>;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<Option<Settings>> {
        let settings = check(self, context, problems);
        let paypal: Option<Option<PayPalSettings>> = context.find();
        let has_plan = paypal
            .flatten()
            .is_some_and(|paypal| paypal.plan_id.is_some());
        if settings.is_some() && !has_plan {
            problems.warn(
                Self::NAME,
                "has no effect: the plan is charged by PayPal, and `payments.paypal` does not name a plan; write `plan_id`, or remove the section",
            );
        }
        Some(settings)
    }
}

fn check(raw: &RawMpp, context: &SectionContext<'_>, problems: &mut Problems) -> Option<Settings> {
    let key = |name: &str| context.key(name);
    let current = secret(
        ("secret_env", raw.secret_env.as_ref()),
        ("secret_file", raw.secret_file.as_ref()),
        context,
        problems,
    );
    let previous = secret(
        ("previous_secret_env", raw.previous_secret_env.as_ref()),
        ("previous_secret_file", raw.previous_secret_file.as_ref()),
        context,
        problems,
    );
    let header = raw
        .credential_header
        .check(key("credential_header"), problems);
    let is_named = raw.secret_env.is_some() || raw.secret_file.is_some();
    let had_one = raw.previous_secret_env.is_some() || raw.previous_secret_file.is_some();
    if had_one && !is_named {
        let message = "is missing with the previous secret; name the variable that contains the current secret";
        problems.note_missing(key("secret_env"), message);
    }
    let base = context.find::<ServiceIdentity>()?.base_url;
    let url: BaseUrl = base.parse().ok()?;
    Some(Settings {
        secrets: Secrets::new(bytes(&current?), previous.as_ref().map(bytes))?,
        realm: url.host,
        digest: raw.digest.is_on(),
        own_field: header?.is_own,
        urls: Urls {
            return_url: format!("{base}/plan/back/{{mandate}}"),
            cancel_url: format!("{base}/plan/back/{{mandate}}?from=cancel"),
        },
    })
}

fn bytes(secret: &SecretString) -> &[u8] {
    secret.expose_secret().as_bytes()
}

/// A secret that is long enough.
fn secret(
    variable: (&str, Option<&At<String>>),
    file: (&str, Option<&At<String>>),
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<SecretString> {
    let named = Named {
        section: RawMpp::NAME,
        variable,
        file,
    };
    let secret = named.secret(context.inputs(), problems)?;
    if secret.expose_secret().len() >= SECRET_BYTES_MIN {
        return Some(secret);
    }
    for (name, at) in [variable, file] {
        if let Some(at) = at {
            let message = format_args!(
                "names `{}`, which contains fewer than {SECRET_BYTES_MIN} characters; use a longer random secret",
                at.value
            );
            problems.note(context.key(name), at, message);
        }
    }
    None
}
