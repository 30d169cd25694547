//! The section `[payments.paypal]`: the credentials and settings for PayPal.

use std::time::Duration;

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use tollgate_filter::ServiceIdentity;
use tollgate_filter::settings::{At, Problems, Whole, Word, Words};
use tollgate_module::{Named, Section, SectionContext, is_variable, provided};
use tollgate_paypal::{Environment, Settings, Timeouts, Verify};
use tollgate_purchase::Credits;

const PAYPAL: &str = "https://api-m.paypal.com";

/// Credentials and settings for PayPal. Without a client id PayPal is disabled.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawPayPal {
    /// Live, sandbox or a stand-in. Its host determines the approval pages and the certificate URLs that are accepted.
    ///
    /// Type: URL
    /// Default: `https://api-m.paypal.com`
    /// Range: `https` without a path; `http` for a stand-in on this machine
    base_url: Option<At<String>>,
    /// Contains the client id.
    ///
    /// Type: name of a variable
    client_id_env: Option<At<String>>,
    /// Contains the client id.
    ///
    /// Type: path
    /// Range: not beside `client_id_env`
    client_id_file: Option<At<String>>,
    /// Contains the client secret.
    ///
    /// Type: name of a variable
    client_secret_env: Option<At<String>>,
    /// Contains the client secret.
    ///
    /// Type: path
    /// Range: not beside `client_secret_env`
    client_secret_file: Option<At<String>>,
    /// The plan at PayPal that buyers subscribe to, as `tollgate paypal setup` prints it. It is read at start and each hour: as long as it
    /// is not active at PayPal, or does not charge 199.00 USD each month without end, no purchase can be started (503). Without one the
    /// plan is not sold through PayPal.
    ///
    /// Range: 3 to 50 letters, digits and `-`
    plan_id: Option<At<String>>,
    /// The id that PayPal shows beside the webhook; its address is `/webhooks/paypal`. Without it every webhook event is refused, and
    /// payments are found by periodic reconciliation.
    ///
    /// Range: letters and digits
    webhook_id: Option<At<String>>,
    /// Where the signature of a webhook event is verified: locally, with PayPal's certificate, or by PayPal's API.
    webhook_check: Word<WebhookCheck>,
    /// Roots to trust instead, for the connection and for certificates that sign webhook events.
    ///
    /// Type: path
    /// Default: the public roots
    /// Range: PEM
    ca_file: Option<At<String>>,
    /// Connect timeout, TLS included.
    connect_secs: Whole<5, 1, 60>,
    /// Timeout of a whole call.
    call_secs: Whole<20, 1, 120>,
}

/// Where the signature of a webhook event is verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct WebhookCheck(Verify);

impl Words for WebhookCheck {
    const WORDS: &'static [(&'static str, WebhookCheck)] = &[
        ("here", WebhookCheck(Verify::Locally)),
        ("ask", WebhookCheck(Verify::AskPayPal)),
    ];
}

/// PayPal as the payment provider.
#[derive(Clone, Debug)]
pub struct PayPalSettings {
    pub client: Settings,
    /// The plan that buyers subscribe to.
    pub plan_id: Option<String>,
}

provided! { "paypal" => [PayPalSettings]; }

impl Section for RawPayPal {
    const NAME: &'static str = "payments.paypal";
    type Settings = Option<PayPalSettings>;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<Option<PayPalSettings>> {
        let settings = check(self, context, problems);
        let Some(known) = &settings else {
            return Some(None);
        };
        let credits: Option<Credits> = context.find();
        if credits.is_some_and(|credits| credits.usd_per_credit.is_none()) {
            let message = "is missing, but payments are configured; write the price of a credit, `usd_per_credit = \"0.01\"`";
            problems.note_missing("credits.usd_per_credit", message);
        }
        if known.client.webhook_id.is_none() {
            problems.warn(
                context.key("webhook_id"),
                "is missing, so webhook events are refused, and payments are found by periodic reconciliation only; write the id that PayPal \
                 shows beside the webhook",
            );
        }
        Some(settings)
    }
}

fn check(
    raw: &RawPayPal,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<PayPalSettings> {
    let key = |name: &str| context.key(name);
    let environment = match &raw.base_url {
        None => Environment::at(PAYPAL).ok(),
        Some(at) => match Environment::at(&at.value) {
            Ok(environment) => Some(environment),
            Err(error) => {
                problems.note(key("base_url"), at, error);
                None
            }
        },
    };
    let client_id = secret(
        ("client_id_env", raw.client_id_env.as_ref()),
        ("client_id_file", raw.client_id_file.as_ref()),
        context,
        problems,
    );
    let client_secret = secret(
        ("client_secret_env", raw.client_secret_env.as_ref()),
        ("client_secret_file", raw.client_secret_file.as_ref()),
        context,
        problems,
    );
    check_pair(raw, context, problems);
    let webhook_id = webhook_id(raw, context, problems);
    let plan_id = plan_id(raw, context, problems);
    let verify = raw.webhook_check.check(key("webhook_check"), problems);
    let roots = context.certificates("ca_file", raw.ca_file.as_ref(), problems);
    let connect = raw.connect_secs.check(key("connect_secs"), problems);
    let call = raw.call_secs.check(key("call_secs"), problems);
    let brand = context.find::<ServiceIdentity>()?.name;
    Some(PayPalSettings {
        client: Settings {
            environment: environment?,
            client_id: client_id?,
            client_secret: client_secret?,
            webhook_id,
            verify: verify?.0,
            roots,
            brand: brand.chars().take(127).collect(),
            timeouts: Timeouts {
                connect: Duration::from_secs(connect?),
                call: Duration::from_secs(call?),
            },
        },
        plan_id,
    })
}

/// Neither the id nor the secret of the client is set alone.
fn check_pair(raw: &RawPayPal, context: &SectionContext<'_>, problems: &mut Problems) {
    let key = |name: &str| context.key(name);
    let named =
        |one: &Option<At<String>>, other: &Option<At<String>>| one.is_some() || other.is_some();
    let with_id = named(&raw.client_id_env, &raw.client_id_file);
    let with_secret = named(&raw.client_secret_env, &raw.client_secret_file);
    match (with_id, with_secret) {
        (true, false) => problems.note_missing(
            key("client_secret_env"),
            "is missing with the client id; name the variable that contains the client secret",
        ),
        (false, true) => problems.note_missing(
            key("client_id_env"),
            "is missing with the client secret; name the variable that contains the client id",
        ),
        _ => {}
    }
}

fn webhook_id(
    raw: &RawPayPal,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<String> {
    raw.webhook_id.as_ref().and_then(|at| {
        let plain = |text: &str| {
            (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        if !plain(&at.value) {
            let message = format_args!(
                "is `{}`; use the id that PayPal shows beside the webhook, letters and digits",
                at.value
            );
            problems.note(context.key("webhook_id"), at, message);
        }
        plain(&at.value).then(|| at.value.clone())
    })
}

fn plan_id(
    raw: &RawPayPal,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<String> {
    raw.plan_id.as_ref().and_then(|at| {
        let plain = |text: &str| {
            (3..=50).contains(&text.len())
                && text
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if !plain(&at.value) {
            let message = format_args!(
                "is `{}`; use the id that `tollgate paypal setup` prints",
                at.value
            );
            problems.note(context.key("plan_id"), at, message);
        }
        plain(&at.value).then(|| at.value.clone())
    })
}

/// A secret from a variable or a file.
fn secret(
    variable: (&str, Option<&At<String>>),
    file: (&str, Option<&At<String>>),
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<SecretString> {
    match (variable.1, file.1) {
        (Some(_), Some(at)) => {
            let message = "is set beside the variable; keep one of them";
            problems.note(context.key(file.0), at, message);
            return None;
        }
        // The text is likely the secret itself, so the message does not repeat the text.
        (Some(at), None) if !is_variable(at) => {
            let message = "is not the name of a variable; name the variable that contains it; do not write the secret itself";
            problems.note(context.key(variable.0), at, message);
            return None;
        }
        _ => {}
    }
    let named = Named {
        section: RawPayPal::NAME,
        variable,
        file,
    };
    named.read("secret", context.inputs(), problems)
}
