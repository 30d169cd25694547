//! OpenAPI: the values of the placeholders, from the settings and from the tables and types of the implementation.

use serde_json::{Map, Value, json};
use tollgate_filter::{CODES, ErrorCode, ErrorType};
use tollgate_openai::Family;
use tollgate_purchase::plan::{PRICE, PaymentState, RetryAction};
use tollgate_purchase::wire::{CommerceSubscription, Product, Subscription};

use super::members::{message, object};
use super::schema;
use crate::config::OnboardingSettings;
use crate::developer_onboarding::DeveloperOnboarding;
use crate::installation::Installation;

/// Units of USDC in a US cent.
const USDC_PER_CENT: i64 = 10_000;

/// Statuses of a request that could not be read. One response, `4XX`, describes them.
pub(super) const UNREAD_STATUSES: [u16; 4] = [408, 414, 417, 431];

/// The values by name.
pub(super) fn all(
    settings: &OnboardingSettings,
    installation: &Installation,
) -> Map<String, Value> {
    let service = &installation.service;
    let plan = &installation.plan;
    let paying = match installation.protocols.is_any() {
        true => format!(
            " How programs buy the monthly plan: {}/docs/paying.",
            service.base_url
        ),
        false => String::new(),
    };
    let product = Product::new(
        plan,
        installation.plan_quota(),
        &service.base_url,
        installation.protocols,
    );
    let text = [
        ("title", settings.service.as_str()),
        ("documentation_url", settings.documentation_url.as_str()),
        ("openapi_url", settings.openapi_url.as_str()),
        ("base_url", service.base_url.as_str()),
        ("service", service.name.as_str()),
        ("service_in_header", &capitalised(&service.name)),
        ("paying", &paying),
        ("slug", &*plan.slug),
        ("product_id", &*plan.product),
        ("usdc", installation.usdc.as_str()),
        ("price_cents", &PRICE.cents().to_string()),
        ("price_usdc", &(PRICE.cents() * USDC_PER_CENT).to_string()),
    ]
    .map(|(name, text)| (name, json!(text)));
    let values = [
        (
            "product_example",
            serde_json::to_value(product).unwrap_or_default(),
        ),
        ("message", message()),
        ("chat_request", object(Family::CHAT.request.contract)),
        ("text_request", object(Family::TEXT.request.contract)),
        (
            "developer_onboarding",
            schema::of::<DeveloperOnboarding<'static>>(),
        ),
        ("product", product_schema(&plan.product)),
        ("subscription", schema::of::<Subscription>()),
        ("commerce_subscription", commerce_subscription_schema()),
        (
            "payment_states",
            described_enum(
                PaymentState::ALL
                    .iter()
                    .map(|one| (one.word(), one.meaning())),
            ),
        ),
        (
            "retry_actions",
            described_enum(
                RetryAction::ALL
                    .iter()
                    .map(|one| (one.word(), one.meaning())),
            ),
        ),
    ];
    let named = text.into_iter().chain(values);
    let named = named.map(|(name, value)| (name.to_owned(), value));
    named.chain(code_lists()).collect()
}

/// Lists of error codes: of each status; of a request that could not be read; and of a 402 of purchases, which is a problem document.
fn code_lists() -> impl Iterator<Item = (String, Value)> {
    let is_payment = |code: &ErrorCode| code.kind() == ErrorType::PaymentRequired;
    let of_status = move |status: u16| {
        let all = CODES.iter().copied();
        all.filter(move |code| code.status().as_u16() == status && !is_payment(code))
    };
    let statuses = CODES.iter().map(|code| code.status().as_u16());
    let own = statuses.map(move |status| (status.to_string(), code_list(of_status(status))));
    own.chain([
        (
            String::from("unread"),
            code_list(UNREAD_STATUSES.into_iter().flat_map(of_status)),
        ),
        (
            String::from("payment"),
            code_list(CODES.iter().copied().filter(is_payment)),
        ),
    ])
    .map(|(name, list)| (format!("codes_{name}"), list))
}

fn code_list(codes: impl Iterator<Item = ErrorCode>) -> Value {
    let words: Vec<&str> = codes.map(ErrorCode::word).collect();
    json!(format!("`error.code`: `{}`.", words.join("`, `")))
}

fn product_schema(id: &str) -> Value {
    let mut schema = schema::of::<Product>();
    let properties = &mut schema["properties"];
    properties["id"] = json!({"const": id});
    properties["price_usd"] = json!({"type": "number", "const": PRICE.cents() / 100});
    properties["billing_interval"]["const"] = json!("month");
    properties["purchase"]["required"] = json!(["ucp", "mpp", "x402", "paypal"]);
    schema
}

fn commerce_subscription_schema() -> Value {
    let mut schema = schema::of::<CommerceSubscription>();
    let properties = &mut schema["properties"];
    properties["product"] = json!({"$ref": "#/components/schemas/CommerceProduct"});
    properties["subscription"] = json!({"$ref": "#/components/schemas/Subscription"});
    properties["payment_state"] = json!({"$ref": "#/components/schemas/PaymentState"});
    properties["retry_action"] = json!({"$ref": "#/components/schemas/RetryAction"});
    schema
}

/// An enum with a description of each value.
fn described_enum<'a>(known: impl Iterator<Item = (&'a str, &'a str)>) -> Value {
    let each: Vec<Value> = known
        .map(|(word, meaning)| json!({"const": word, "description": meaning}))
        .collect();
    json!({"type": "string", "oneOf": each})
}

/// A name as in a header: `Svc`.
fn capitalised(name: &str) -> String {
    let mut letters = name.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase());
    first.into_iter().chain(letters).collect()
}
