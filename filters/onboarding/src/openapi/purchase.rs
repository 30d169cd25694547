//! OpenAPI: operations for buying the plan, and their schemas.

use serde_json::{Map, Value, json};
use tollgate_filter::{CODES, ErrorCode, ErrorType, Scope};
use tollgate_purchase::plan::{PRICE, PaymentState, PlanProtocols, RetryAction};
use tollgate_purchase::wire::{CommerceSubscription, Product, Status, Subscription};

use super::operation::{ACCESS, Document, Operation, document, idempotency_key, object};
use super::{responses, schema};
use crate::installation::Installation;

/// UCP version of sessions.
const UCP_VERSION: &str = "2026-04-08";

/// Units of USDC in a US cent.
const USDC_PER_CENT: i64 = 10_000;

/// Errors of purchases in addition to their own responses.
const PURCHASE: [ErrorCode; 5] = [
    ErrorCode::InvalidHeader,
    ErrorCode::MissingCredential,
    ErrorCode::InsufficientScope,
    ErrorCode::UnsupportedMediaType,
    ErrorCode::IdempotencyConflict,
];

/// Paths of commerce.
pub(super) fn paths(installation: &Installation) -> Map<String, Value> {
    let slug = &installation.plan.slug;
    let PlanProtocols {
        x402: x402_is_on,
        mpp: mpp_is_on,
        paypal,
    } = installation.protocols;
    let mut paths = object([
        (
            &*format!("/commerce/products/{slug}"),
            json!({"get": product(installation)}),
        ),
        (
            "/ucp/v1/checkout-sessions",
            json!({"post": create_session(installation)}),
        ),
        (
            "/ucp/v1/checkout-sessions/{id}",
            json!({"get": get_session(installation)}),
        ),
        (
            &*format!("/commerce/subscriptions/{slug}/mpp"),
            json!({"post": mpp(installation)}),
        ),
        (
            &*format!("/commerce/subscriptions/{slug}/x402"),
            json!({"post": x402(installation)}),
        ),
    ]);
    paths.retain(|path, _| match path {
        path if path.ends_with("/x402") => x402_is_on,
        path if path.ends_with("/mpp") => mpp_is_on,
        path if path.starts_with("/ucp/") => paypal,
        _ => true,
    });
    paths
}

fn product(installation: &Installation) -> Value {
    document(Document {
        id: "getSuperProProduct",
        tag: "commerce",
        summary: "The monthly plan: price, benefits, and where to buy it",
        answer: "CommerceProduct",
        example: serde_json::to_value(product_example(installation)).ok(),
    })
}

fn product_example(installation: &Installation) -> Product {
    Product::new(
        &installation.plan,
        installation.plan_quota(),
        &installation.service.base_url,
        installation.protocols,
    )
}

fn create_session(installation: &Installation) -> Value {
    let operation = Operation {
        id: "createUcpCheckoutSession",
        tag: "commerce",
        summary: "Creates a checkout for the monthly plan. The account owner approves the payment at `continue_url`",
        scope: Some(Scope::CommerceSubscribe),
        errors: &PURCHASE,
    };
    let mut session = responses::success(
        "The session. `completed` if the account already has the plan",
        "UcpCheckoutSession",
        Some(session(installation)),
        &["Location"],
    );
    session["links"] = json!({"session": {
        "operationId": "getUcpCheckoutSession",
        "parameters": {"id": "$response.body#/id"},
        "description": "Its later status.",
    }});
    let mut described = operation.responses([(201, session)]);
    described["parameters"] = json!([
        {
            "name": "UCP-Agent",
            "in": "header",
            "description": "Who asks: a dictionary of structured fields (RFC 9651) whose `profile` is the https address of a platform's profile.",
            "schema": {"type": "string", "pattern": "^profile=\"https://[a-z0-9]+([.][a-z0-9]+)+/[a-z0-9./_-]*\"$"},
            "example": "profile=\"https://platform.example/.well-known/ucp\"",
        },
        idempotency_key("The same key with the same request gives the same session, for 24 hours."),
    ]);
    described["requestBody"] = body(
        "UcpCheckoutRequest",
        json!({"product_id": &*installation.plan.product}),
    );
    described
}

fn get_session(installation: &Installation) -> Value {
    let operation = Operation {
        id: "getUcpCheckoutSession",
        tag: "commerce",
        summary: "Status of a checkout, visible to its owner only. One that ended without the plan is `session_gone`",
        scope: Some(Scope::CommerceSubscribe),
        errors: &ACCESS,
    };
    let found = responses::success(
        operation.summary,
        "UcpCheckoutSession",
        Some(session(installation)),
        &[],
    );
    let mut described = operation.responses([(200, found)]);
    described["parameters"] = json!([{
        "name": "id",
        "in": "path",
        "required": true,
        "description": "The `id` of the session.",
        "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
    }]);
    described
}

fn mpp(installation: &Installation) -> Value {
    let operation = Operation {
        id: "purchaseSuperProWithMpp",
        tag: "commerce",
        summary: "Buys the plan with the Payment scheme of HTTP authentication (MPP): a monthly payment at PayPal",
        scope: Some(Scope::CommerceSubscribe),
        errors: &PURCHASE,
    };
    let problem = |media: &str, fields: &[&str], means: &str, example: Value| {
        json!({
            "description": format!("{means} {}", responses::code_list(payment_codes())),
            "headers": responses::fields(fields, true),
            "content": {media: {"schema": schema::reference("Problem"), "example": example}},
        })
    };
    let mut described = operation.responses([
        (200, purchase_response(installation, "paypal", "I-BW452GLLEP1G", &["Payment-Receipt"])),
        (
            402,
            problem(
                "application/problem+json",
                &["WWW-Authenticate", "Link", "Retry-After"],
                "Not paid yet, or not verified. `WWW-Authenticate` contains a `Payment` challenge; the owner approves at `approval_url`.",
                required(
                    "The account owner approves 199.00 USD a month at the approval URL. Then send the request again with the credential.",
                    PaymentState::Required,
                    RetryAction::ApproveThenRetry,
                    Some("https://www.paypal.com/webapps/billing/subscriptions?ba_token=BA-2M539689T3856352J"),
                ),
            ),
        ),
        (503, unavailable()),
    ]);
    described["parameters"] = json!([
        {
            "name": format!("X-{}-Authorization", capitalised(&installation.service.name)),
            "in": "header",
            "description": "`Bearer` and the credential of the account, if `Authorization` contains the `Payment` credential.",
            "schema": {"type": "string", "pattern": r"^Bearer\s+.+$"},
        },
        {
            "name": "Payment-Authorization",
            "in": "header",
            "description": "The `Payment` credential, in place of `Authorization`, for a challenge that names this field.",
            "schema": {"type": "string", "pattern": r"^Payment\s+.+$"},
        },
        idempotency_key("Like `idempotency_key` of the body."),
    ]);
    finish(&mut described, installation);
    described["x-payment-info"] = json!({"offers": [{
        "intent": "charge",
        "method": "paypal",
        "amount": PRICE.cents().to_string(),
        "currency": "USD",
        "description": "Each month, until it is canceled.",
    }]});
    described
}

fn x402(installation: &Installation) -> Value {
    let operation = Operation {
        id: "purchaseSuperProWithX402",
        tag: "commerce",
        summary: "Buys 30 days of the plan with x402: exactly 199 USDC on Base",
        scope: Some(Scope::CommerceSubscribe),
        errors: &PURCHASE,
    };
    let required = json!({
        "description": format!(
            "Not paid yet, or rejected. `PAYMENT-REQUIRED` contains the requirements. x402 clients refuse to pay more than 1 USD until their cap is raised. {}",
            responses::code_list(payment_codes())
        ),
        "headers": responses::fields(&["PAYMENT-REQUIRED", "PAYMENT-RESPONSE"], true),
        "content": {"application/json": {
            "schema": schema::reference("Problem"),
            "example": required(
                "Pay exactly 199 USDC as in PAYMENT-REQUIRED. x402 clients refuse to pay more than 1 USD until their cap is raised.",
                PaymentState::Required,
                RetryAction::Pay,
                None,
            ),
        }},
    });
    let reference = format!("0x{}", "ab".repeat(32));
    let mut described = operation.responses([
        (
            200,
            purchase_response(installation, "x402", &reference, &["PAYMENT-RESPONSE"]),
        ),
        (402, required),
        (503, unavailable()),
    ]);
    described["parameters"] = json!([
        {
            "name": "PAYMENT-SIGNATURE",
            "in": "header",
            "description": "The payment of x402 version 2: JSON in base64 with padding.",
            "schema": {
                "type": "string",
                "pattern": "^[A-Za-z0-9+/]+={0,2}$",
                "maxLength": 16384,
                "contentEncoding": "base64",
                "contentMediaType": "application/json",
            },
        },
        idempotency_key("Like `idempotency_key` of the body."),
    ]);
    finish(&mut described, installation);
    described["x-payment-info"] = json!({"offers": [{
        "intent": "charge",
        "method": "evm",
        "amount": (PRICE.cents() * USDC_PER_CENT).to_string(),
        "currency": installation.usdc,
        "description": "For 30 days, without renewal.",
    }]});
    described
}

fn finish(described: &mut Value, installation: &Installation) {
    described["requestBody"] = body(
        "CommercePaymentRequest",
        json!({"product_id": &*installation.plan.product}),
    );
}

/// An optional body.
fn body(schema: &str, example: Value) -> Value {
    json!({
        "required": false,
        "content": {"application/json": {"schema": schema::reference(schema), "example": example}},
    })
}

/// The success response of a purchase: bought now or before.
fn purchase_response(
    installation: &Installation,
    route: &str,
    reference: &str,
    own: &[&str],
) -> Value {
    let subscription = Subscription {
        id: "sub_01937b1c7d3a7c4e9f0a5b6c7d8e9f01".into(),
        product_id: installation.plan.product.to_string(),
        status: Status::Active,
        route: route.into(),
        current_period_start: "2027-01-01T00:00:00Z".into(),
        current_period_end: "2027-01-31T00:00:00Z".into(),
        cancel_at_period_end: route == "x402",
        provider_reference: reference.into(),
    };
    let example = CommerceSubscription::active(product_example(installation), subscription, false);
    responses::success(
        "The account has the plan. With `already_active` it had it before, and nothing was charged; the receipt is there where this route \
         has one",
        "CommerceSubscription",
        serde_json::to_value(example).ok(),
        own,
    )
}

/// The response of a payment route that is unavailable.
fn unavailable() -> Value {
    json!({
        "description": format!(
            "Payment is unavailable, or an earlier payment is pending: see `payment_state` and `retry_action`. {}",
            responses::code_list(responses::codes(503))
        ),
        "headers": responses::fields(&["Retry-After"], false),
        "content": {"application/json": {"schema": schema::reference("PurchaseError")}},
    })
}

/// Error codes of a 402 of purchases.
fn payment_codes() -> impl Iterator<Item = ErrorCode> {
    let of_payment = |code: &ErrorCode| code.kind() == ErrorType::PaymentRequired;
    CODES.iter().copied().filter(of_payment)
}

fn required(
    detail: &str,
    state: PaymentState,
    action: RetryAction,
    approve: Option<&str>,
) -> Value {
    let code = ErrorCode::PaymentRequired;
    let mut problem = json!({
        "type": format!("https://paymentauth.org/problems/{}", code.word()),
        "title": "Payment Required",
        "status": 402,
        "detail": detail,
        "payment_state": state.word(),
        "retry_action": action.word(),
        "error": {"message": detail, "type": code.kind().word(), "param": null, "code": code.word()},
    });
    if let Some(approve) = approve {
        problem["approval_url"] = json!(approve);
    }
    problem
}

fn session(installation: &Installation) -> Value {
    let base = &installation.service.base_url;
    json!({
        "id": "cs_5d0f7ac1e2b34f6a9c8d7e6f",
        "status": "incomplete",
        "continue_url": format!("{base}/commerce/continue/cs_5d0f7ac1e2b34f6a9c8d7e6f"),
        "currency": "USD",
        "ucp": {"version": UCP_VERSION, "capabilities": ["dev.ucp.shopping.checkout"]},
    })
}

/// Schemas of commerce, by name.
pub(super) fn schemas(installation: &Installation) -> Map<String, Value> {
    let product_id = json!({"const": &*installation.plan.product});
    let mut product = schema::of::<Product>();
    product["properties"]["id"] = product_id.clone();
    product["properties"]["price_usd"] = json!({"type": "number", "const": PRICE.cents() / 100});
    product["properties"]["billing_interval"]["const"] = json!("month");
    product["properties"]["purchase"]["required"] = json!(["ucp", "mpp", "x402", "paypal"]);
    let mut subscription = schema::of::<CommerceSubscription>();
    subscription["properties"]["product"] = schema::reference("CommerceProduct");
    subscription["properties"]["subscription"] = schema::reference("Subscription");
    subscription["properties"]["payment_state"] = described_enum(
        &PaymentState::ALL
            .iter()
            .map(|one| (one.word(), one.meaning()))
            .collect::<Vec<_>>(),
    );
    subscription["properties"]["retry_action"] = described_enum(
        &RetryAction::ALL
            .iter()
            .map(|one| (one.word(), one.meaning()))
            .collect::<Vec<_>>(),
    );
    let members = json!({
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string", "description": "The same for every problem of its type."},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "Cause and remedy, for people."},
        "payment_state": {"$ref": "#/components/schemas/CommerceSubscription/properties/payment_state"},
        "retry_action": {"$ref": "#/components/schemas/CommerceSubscription/properties/retry_action"},
        "approval_url": {"type": "string", "format": "uri", "description": "Where the account owner approves the payment."},
        "error": {"$ref": "#/components/schemas/Error/properties/error"},
        "credential": {"type": "object", "description": "MPP: the field and the payload of the answer to the challenge."},
        "includes": {"type": "array", "items": {"type": "string"}, "description": "What each payment for the plan buys."},
        "x402Version": {"const": 2},
        "accepts": {"type": "array", "items": {"type": "object"}, "description": "x402: the terms, as in PAYMENT-REQUIRED."},
    });
    let any = json!({"type": "object", "additionalProperties": true});
    object([
        ("CommerceProduct", product),
        ("Subscription", schema::of::<Subscription>()),
        ("CommerceSubscription", subscription),
        (
            "Problem",
            schema::open(
                &[
                    "type",
                    "title",
                    "status",
                    "detail",
                    "payment_state",
                    "retry_action",
                    "error",
                ],
                members.clone(),
            ),
        ),
        ("PurchaseError", schema::open(&["error"], members)),
        (
            "CommercePaymentRequest",
            json!({
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "product_id": product_id,
                    "idempotency_key": {"type": "string", "minLength": 1, "maxLength": 255},
                },
            }),
        ),
        (
            "UcpCheckoutRequest",
            schema::open(
                &[],
                json!({"product_id": product_id, "line_items": {"type": "array", "items": any}}),
            ),
        ),
        (
            "UcpCheckoutSession",
            schema::open(
                &["id", "status", "ucp"],
                json!({
                    "id": {"type": "string"},
                    "status": {"enum": ["incomplete", "completed"]},
                    "continue_url": {"type": "string", "format": "uri"},
                    "currency": {"const": "USD"},
                    "ucp": schema::open(&["version", "capabilities"], json!({
                        "version": {"const": UCP_VERSION},
                        "capabilities": {"type": "array", "items": {"type": "string"}},
                    })),
                }),
            ),
        ),
    ])
}

/// An enum with a description of each value.
fn described_enum(known: &[(&str, &str)]) -> Value {
    let each: Vec<Value> = known
        .iter()
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
