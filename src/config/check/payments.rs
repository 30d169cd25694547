//! `[credits]` and `[payments]`.

use secrecy::SecretString;
use tollgate_filter::settings::{At, Problems, PublicUrl};
use tollgate_module::is_variable;
use tollgate_money::{Micros, Usd, UsdPerCredit};
use tollgate_paypal::{Environment, Verify};
use tollgate_purchase::{Credits, Offer};

use super::{CheckContext, seconds, word};
use crate::config::certificate;
use crate::config::payments::{PayPal, Payments, RawCredits, RawPayPal, RawPayments};
use crate::config::settings::Service;

const PAYPAL: &str = "https://api-m.paypal.com";

/// The page of this service for buying credits.
const ADD_CREDITS: &str = "/credits/add";

/// Default proposed amounts, in cents.
const AMOUNTS: [i64; 4] = [1_000, 2_000, 5_000, 10_000];
const MIN: Usd = Usd::from_cents(500);
const MAX: Usd = Usd::from_cents(50_000);

/// A million dollars: a larger amount is more likely a typing error than a sale.
const LIMIT: Usd = Usd::from_cents(100_000_000);

pub(super) fn credits(raw: &RawCredits, service: &Service, problems: &mut Problems) -> Credits {
    const RATE: &str = "credits.usd_per_credit";
    let usd_per_credit = raw.usd_per_credit.as_ref().and_then(|at| {
        // Dollars have six decimal places here, as credits have; the parser of credits reads them.
        let dollars: Micros = problems.parse(RATE, at)?;
        let rate = UsdPerCredit::from_micro_dollars(dollars.get());
        if rate.is_none() {
            let message = format_args!("is `{}`; use more than 0", at.value);
            problems.note(RATE, at, message);
        }
        rate
    });
    let own = || {
        let page = format!("{}{ADD_CREDITS}", service.base_url);
        page.parse().unwrap_or_else(|_| service.base_url.clone())
    };
    let topup_url: Option<PublicUrl> = raw
        .topup_url
        .as_ref()
        .and_then(|at| problems.parse("credits.topup_url", at));
    Credits {
        usd_per_credit,
        topup_url: topup_url.unwrap_or_else(own).to_string(),
        offer: offer(raw, usd_per_credit, problems),
        signup_grant: signup_grant(raw, problems),
    }
}

fn signup_grant(raw: &RawCredits, problems: &mut Problems) -> Micros {
    const KEY: &str = "credits.signup_grant";
    let Some(at) = &raw.signup_grant else {
        return Micros::ZERO;
    };
    let grant: Micros = problems.parse(KEY, at).unwrap_or_default();
    if grant < Micros::ZERO {
        problems.note(KEY, at, format_args!("is `{}`; use 0 or more", at.value));
        return Micros::ZERO;
    }
    grant
}

fn offer(raw: &RawCredits, rate: Option<UsdPerCredit>, problems: &mut Problems) -> Option<Offer> {
    let mut dollars = |name: &str, at: &Option<At<String>>, default| {
        let key = format!("credits.{name}");
        let Some(at) = at else { return default };
        amount(&key, at, problems).unwrap_or(default)
    };
    let min = dollars("topup_usd_min", &raw.topup_usd_min, MIN);
    let max = dollars("topup_usd_max", &raw.topup_usd_max, MAX.max(min));
    if let (true, Some(at)) = (
        max < min,
        raw.topup_usd_max.as_ref().or(raw.topup_usd_min.as_ref()),
    ) {
        let message = format_args!(
            "leaves no amount between {min} and {max}; raise the maximum or lower the minimum"
        );
        problems.note("credits.topup_usd_max", at, message);
    }
    let amounts = match &raw.topup_usd {
        None => AMOUNTS
            .map(Usd::from_cents)
            .into_iter()
            .filter(|amount| (min..=max).contains(amount))
            .collect(),
        Some(list) => {
            let mut amounts = Vec::with_capacity(list.value.len());
            for (number, at) in list.value.iter().enumerate() {
                let key = format!("credits.topup_usd.{number}");
                let Some(amount) = amount(&key, at, problems) else {
                    continue;
                };
                if !(min..=max).contains(&amount) {
                    let message = format_args!(
                        "is {amount}, which is not between {min} and {max}; propose an amount in this range, or change `topup_usd_min` or `topup_usd_max`"
                    );
                    problems.note(&key, at, message);
                }
                amounts.push(amount);
            }
            amounts
        }
    };
    Some(Offer {
        micro_dollars_per_credit: rate?.micro_dollars(),
        amounts,
        min,
        max,
    })
}

fn amount(key: &str, at: &At<String>, problems: &mut Problems) -> Option<Usd> {
    let amount: Usd = problems.parse(key, at)?;
    if !amount.is_positive() || amount > LIMIT {
        let message = format_args!("is `{}`; use more than 0 and at most {LIMIT}", at.value);
        problems.note(key, at, message);
        return None;
    }
    Some(amount)
}

pub(super) fn payments(
    raw: &RawPayments,
    credits: &RawCredits,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Payments {
    let paypal = paypal(&raw.paypal, context, problems);
    if paypal.is_some() && credits.usd_per_credit.is_none() {
        let message = "is missing, but payments are configured; write the price of a credit, `usd_per_credit = \"0.01\"`";
        problems.note_missing("credits.usd_per_credit", message);
    }
    let mpp = super::mpp::mpp(&raw.mpp, context, problems);
    let x402 = super::x402::x402(&raw.x402, context, problems);
    Payments { paypal, mpp, x402 }
}

fn paypal(raw: &RawPayPal, context: &CheckContext<'_>, problems: &mut Problems) -> Option<PayPal> {
    const CHECKS: &[(&str, Verify)] = &[("here", Verify::Locally), ("ask", Verify::AskPayPal)];
    let key = |name: &str| format!("payments.paypal.{name}");
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
    let mut secret = |name: &str, variable: &Option<At<String>>, file: &Option<At<String>>| {
        secret(
            &key(name),
            (variable.as_ref(), file.as_ref()),
            context,
            problems,
        )
    };
    let client_id = secret("client_id", &raw.client_id_env, &raw.client_id_file);
    let client_secret = secret(
        "client_secret",
        &raw.client_secret_env,
        &raw.client_secret_file,
    );
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
    let webhook_id = raw.webhook_id.as_ref().and_then(|at| {
        let plain = |text: &str| {
            (1..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
        };
        if !plain(&at.value) {
            let message = format_args!(
                "is `{}`; use the id that PayPal shows beside the webhook, letters and digits",
                at.value
            );
            problems.note(key("webhook_id"), at, message);
        }
        plain(&at.value).then(|| at.value.clone())
    });
    let plan_id = raw.plan_id.as_ref().and_then(|at| {
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
            problems.note(key("plan_id"), at, message);
        }
        plain(&at.value).then(|| at.value.clone())
    });
    let verify = word(
        problems,
        key("webhook_check"),
        raw.webhook_check.as_ref(),
        CHECKS,
    );
    let roots = raw.ca_file.as_ref().and_then(|at| {
        certificate::read_certificates(&context.path(at))
            .map_err(|error| problems.note(key("ca_file"), at, error))
            .ok()
    });
    let connect = seconds(
        problems,
        key("connect_secs"),
        raw.connect_secs.as_ref(),
        5,
        1..=60,
    );
    let call = seconds(
        problems,
        key("call_secs"),
        raw.call_secs.as_ref(),
        20,
        1..=120,
    );
    Some(PayPal {
        environment: environment?,
        client_id: client_id?,
        client_secret: client_secret?,
        plan_id,
        webhook_id,
        verify: verify.unwrap_or_default(),
        roots,
        connect,
        call,
    })
}

/// A secret from a variable or a file.
fn secret(
    key: &str,
    (variable, file): (Option<&At<String>>, Option<&At<String>>),
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Option<SecretString> {
    let (key, at, text) = match (variable, file) {
        (None, None) => return None,
        (Some(_), Some(at)) => {
            let message = "is set beside the variable; keep one of them";
            problems.note(format!("{key}_file"), at, message);
            return None;
        }
        (Some(at), None) => {
            let key = format!("{key}_env");
            // The text is not repeated: it is likely the secret itself.
            if !is_variable(at) {
                let message = "is not the name of a variable; name the variable that contains it; do not write the secret itself";
                problems.note(key, at, message);
                return None;
            }
            let Some(value) = context.environment.get(at) else {
                let message = format_args!(
                    "names the variable `{}`, which is not set; set it",
                    at.value
                );
                problems.note(key, at, message);
                return None;
            };
            (key, at, value.to_owned())
        }
        (None, Some(at)) => {
            let key = format!("{key}_file");
            match std::fs::read_to_string(context.path(at)) {
                Ok(text) => (key, at, text),
                Err(error) => {
                    let path = context.path(at);
                    let message = format_args!(
                        "names `{}`, which cannot be read ({error}); name a file that the gateway's user may read",
                        path.display()
                    );
                    problems.note(key, at, message);
                    return None;
                }
            }
        }
    };
    let text = text.trim();
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let message = format_args!(
            "names `{}`, which contains no secret; a secret is one word of visible ASCII",
            at.value
        );
        problems.note(key, at, message);
        return None;
    }
    Some(SecretString::from(text.to_owned()))
}
