//! Payment protocols for buying the plan: x402, MPP, UCP, with their requests and responses.

use maud::html;
use tollgate_pages::parts;

use super::section::Section;
use crate::context::PortalContext;

/// A protocol for buying the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PurchaseProtocol {
    X402,
    Mpp,
    Ucp,
}

impl PurchaseProtocol {
    const ALL: [PurchaseProtocol; 3] = [
        PurchaseProtocol::X402,
        PurchaseProtocol::Mpp,
        PurchaseProtocol::Ucp,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            PurchaseProtocol::X402 => "x402",
            PurchaseProtocol::Mpp => "MPP",
            PurchaseProtocol::Ucp => "UCP",
        }
    }

    pub(super) fn anchor(self) -> &'static str {
        match self {
            PurchaseProtocol::X402 => "x402",
            PurchaseProtocol::Mpp => "mpp",
            PurchaseProtocol::Ucp => "ucp",
        }
    }

    fn path_suffix(self) -> &'static str {
        match self {
            PurchaseProtocol::X402 => "/x402",
            PurchaseProtocol::Mpp => "/mpp",
            PurchaseProtocol::Ucp => "/ucp/v1/checkout-sessions",
        }
    }

    /// Price, and who approves.
    pub(super) fn terms(self) -> (&'static str, &'static str) {
        match self {
            PurchaseProtocol::X402 => (
                "199 USDC on Base, for 30 days",
                "No one: the program’s wallet pays",
            ),
            PurchaseProtocol::Mpp => (
                "199.00 USD each month, at PayPal",
                "The account’s owner, at the approval URL",
            ),
            PurchaseProtocol::Ucp => (
                "199.00 USD each month, at PayPal",
                "The account’s owner, signed in here",
            ),
        }
    }
}

/// The protocols that are configured, with their paths.
pub(super) fn protocols(
    context: &PortalContext,
) -> impl Iterator<Item = (PurchaseProtocol, String)> {
    let slug = context.plans.plan().slug.clone();
    let paths = &context.settings.installation.payment_paths;
    PurchaseProtocol::ALL
        .into_iter()
        .filter_map(move |protocol| {
            let path = paths
                .iter()
                .find(|path| path.ends_with(protocol.path_suffix()))?;
            Some((protocol, path.replace("{plan}", &slug)))
        })
}

pub(super) fn sections(context: &PortalContext) -> Vec<Section> {
    protocols(context)
        .map(|(protocol, path)| match protocol {
            PurchaseProtocol::X402 => x402(context, &path),
            PurchaseProtocol::Mpp => mpp(context, &path),
            PurchaseProtocol::Ucp => ucp(context, &path),
        })
        .collect()
}

fn x402(context: &PortalContext, path: &str) -> Section {
    let (base, key) = (context.address.base_url(), context.address.variable());
    let exchange = format!(
        "POST {path}\nAuthorization: Bearer ${key}\n\n\
         402 Payment Required\nPAYMENT-REQUIRED: eyJ4NDAyVmVyc2lvbiI6Mi…\n\n\
         POST {path}\nAuthorization: Bearer ${key}\nPAYMENT-SIGNATURE: eyJ4NDAyVmVyc2lvbiI6Mi…\n\n\
         200 OK\nPAYMENT-RESPONSE: eyJzdWNjZXNzIjp0cnVlL…\n\n\
         {{\"success\":true,\"subscription\":{{\"status\":\"active\",…}}}}"
    );
    let program = format!(
        "import {{ wrapFetchWithPaymentFromConfig }}\n  from \"@x402/fetch\";\n\
         import {{ ExactEvmScheme }} from \"@x402/evm\";\n\
         import {{ privateKeyToAccount }}\n  from \"viem/accounts\";\n\n\
         const wallet =\n  privateKeyToAccount(process.env.WALLET_KEY);\n\
         const pay = wrapFetchWithPaymentFromConfig(fetch, {{\n\
         \x20 schemes: [{{\n    network: \"eip155:8453\",\n    client: new ExactEvmScheme(wallet),\n  }}],\n\
         \x20 // Without it nothing above 1 USD is signed.\n\
         \x20 spendControls: {{ maxAmountPerPayment: \"$199\" }},\n}});\n\
         const answer = await pay(\n  \"{base}{path}\",\n  {{\n    method: \"POST\",\n    headers: {{\n\
         \x20     Authorization: `Bearer ${{process.env.{key}}}`,\n    }},\n  }},\n);"
    );
    Section {
        anchor: PurchaseProtocol::X402.anchor(),
        heading: PurchaseProtocol::X402.name(),
        content: html! {
            p {
                "Version 2, scheme " code { "exact" } ": the wallet signs a transfer of exactly 199 USDC, and we submit it. The offer is in "
                code { "PAYMENT-REQUIRED" } ", JSON in base64; the signed transfer goes back in " code { "PAYMENT-SIGNATURE" } "."
            }
            (parts::code("x402-exchange", "Buying with x402", &exchange))
            p {
                b { "x402 clients refuse to pay more than 1 USD until their cap is raised." } " In JavaScript that is "
                code { "spendControls" } ":"
            }
            (parts::code("x402-program", "A program that pays", &program))
            ul.bullets {
                li { "A 402 again: this payment was not taken, and nothing has moved. The problem says why, and carries a new offer." }
                li {
                    "503 with " code { "processing" } ": the transfer may be pending. Send the same request again; do not sign a new one."
                }
                li { "409 " code { "payment_already_used" } ": this transfer was already used for another purchase." }
            }
            p { "It does not renew: nothing is charged after the 30 days." }
        },
    }
}

fn mpp(context: &PortalContext, path: &str) -> Section {
    let key = context.address.variable();
    let own = account_header(&context.service.name);
    let exchange = format!(
        "POST {path}\nAuthorization: Bearer ${key}\n\n\
         402 Payment Required\nWWW-Authenticate: Payment id=\"…\",\n  method=\"paypal\", intent=\"charge\",\n  request=\"…\", expires=\"…\", opaque=\"…\"\n\n\
         {{\"approval_url\":\"https://www.paypal.com/…\",\n \"payment_state\":\"required\",\n \"retry_action\":\"approve_then_retry\",…}}\n\n\
         POST {path}\nAuthorization: Payment eyJjaGFsbGVuZ2UiOn…\n{own}: Bearer ${key}\n\n\
         200 OK\nPayment-Receipt: eyJzdGF0dXMiOiJzdW…\n\n\
         {{\"success\":true,\"subscription\":{{\"status\":\"active\",…}}}}"
    );
    let credential = "{\n  \"challenge\": {\"id\": \"…\", \"realm\": \"…\",\n    \"method\": \"paypal\", \"intent\": \"charge\",\n    \
         \"request\": \"…\", \"expires\": \"…\",\n    \"opaque\": \"…\"},\n  \"payload\": {\"type\": \"subscription\",\n    \"subscriptionId\": \"I-…\"}\n}";
    Section {
        anchor: PurchaseProtocol::Mpp.anchor(),
        heading: PurchaseProtocol::Mpp.name(),
        content: html! {
            p {
                "The " code { "Payment" } " scheme of HTTP authentication. The account’s owner opens " code { "approval_url" }
                " and approves the monthly payment at PayPal; then the program sends the request with the challenge again, and we verify the payment with PayPal."
            }
            (parts::code("mpp-exchange", "Buying with MPP", &exchange))
            p {
                "The credential is JSON in base64url without padding. It repeats every parameter of the challenge unchanged, and the "
                "subscription from " code { "methodDetails.subscriptionId" } " of the " code { "request" } ":"
            }
            (parts::code("mpp-credential", "The credential", credential))
            ul.bullets {
                li {
                    "A challenge that names " code { "header=\"Payment-Authorization\"" } " may be answered in that field as well; then "
                    code { "Authorization" } " keeps the key. A request with both is refused."
                }
                li { "A 402 again, " code { "approval_pending" } ": the owner has not approved yet. Wait for the time in " code { "Retry-After" } "." }
                li { "The approval URL stays the same until the owner decides: retries create no second payment." }
                li { "503: PayPal is unavailable. The same credential works later." }
                li { "The owner ends it under " a href="/plan" { "Plan" } " at any time." }
            }
        },
    }
}

fn ucp(context: &PortalContext, path: &str) -> Section {
    let key = context.address.variable();
    let base = context.address.base_url();
    let exchange = format!(
        "POST {path}\nAuthorization: Bearer ${key}\nIdempotency-Key: 7f3b1c9e-5d0f-4c61-9e55-…\n\n\
         201 Created\nLocation: {base}{path}/…\n\n\
         {{\"id\":\"…\",\"status\":\"incomplete\",\n \"continue_url\":\"{base}/commerce/continue/…\",…}}\n\n\
         GET {path}/…\nAuthorization: Bearer ${key}\n\n\
         200 OK\n\n{{\"id\":\"…\",\"status\":\"completed\",…}}"
    );
    Section {
        anchor: PurchaseProtocol::Ucp.anchor(),
        heading: PurchaseProtocol::Ucp.name(),
        content: html! {
            p {
                "A checkout session. The account’s owner opens " code { "continue_url" } ", signs in, reviews the plan and its price, and approves at PayPal. "
                "The session is then " code { "completed" } "."
            }
            (parts::code("ucp-exchange", "Buying with UCP", &exchange))
            ul.bullets {
                li { "The same " code { "Idempotency-Key" } " gives the same session for 24 hours." }
                li { "404 with " code { "session_gone" } ": the session has expired or was canceled. Make a new one." }
                li {
                    "Platforms that support the Universal Commerce Protocol find its complete interface in "
                    code { (base) "/.well-known/ucp" } "."
                }
            }
        },
    }
}

/// The header for the account credential when `Authorization` carries a payment.
fn account_header(service: &str) -> String {
    let mut letters = service.chars();
    let first: String = letters
        .next()
        .map(|letter| letter.to_ascii_uppercase())
        .into_iter()
        .collect();
    format!("X-{first}{}-Authorization", letters.as_str())
}
