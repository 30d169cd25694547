//! The OpenAPI 3.1 document of the service.
//!
//! Generated from the tables and types of the implementation: request members, error codes, scopes, and the types that
//! `DeveloperOnboarding`, the plan and subscriptions are serialised from.

mod access;
mod operation;
mod operations;
mod purchase;
mod responses;
mod schema;
mod schemas;

use serde_json::{Map, Value, json};
use tollgate_filter::{Scope, ServiceIdentity};

use crate::config::OnboardingSettings;
use crate::installation::Installation;

/// Version of the interface, not of the program.
const VERSION: &str = "1.0.0";

/// Generates the document.
pub fn document(settings: &OnboardingSettings, installation: &Installation) -> Value {
    let service = &installation.service;
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": settings.service,
            "version": VERSION,
            "description": format!(
                "Text generation behind an OpenAI-compatible interface, paid with credits.{plan} What is deprecated, and what will end: {base}/docs/lifecycle.",
                base = service.base_url,
                plan = match installation.protocols.is_any() {
                    true => format!(" How programs buy the monthly plan: {}/docs/paying.", service.base_url),
                    false => String::new(),
                },
            ),
        },
        "servers": [{"url": service.base_url}],
        "externalDocs": {"url": settings.documentation_url},
        "x-service-info": {"categories": ["ai", "compute"], "docs": {
            "homepage": settings.documentation_url,
            "apiReference": settings.openapi_url,
            "llms": format!("{}/llms.txt", service.base_url),
        }},
        "tags": [
            {"name": "models", "description": "The models for sale."},
            {"name": "completions", "description": "Text generation."},
            {"name": "commerce", "description": "The monthly plan, and the protocols for buying it."},
            {"name": "onboarding", "description": "Sign-up, keys and discovery."},
            {"name": "access", "description": "The authorization server and its discovery documents."},
        ],
        "paths": operations::paths(installation),
        "components": {
            "securitySchemes": security_schemes(service),
            "schemas": schemas::all(installation),
            "responses": responses::all(),
            "headers": responses::headers(),
        },
    })
}

fn security_schemes(service: &ServiceIdentity) -> Value {
    let scopes: Map<String, Value> = Scope::ALL
        .into_iter()
        .filter(|scope| scope.resource() == tollgate_filter::Resource::Api)
        .map(|scope| (scope.name().to_owned(), json!(meaning(scope))))
        .collect();
    let (name, base) = (&service.name, &service.base_url);
    json!({
        "apiKey": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": format!("sk-{name}-"),
            "description": "A key created by a signed-in person.",
        },
        "oauth": {
            "type": "oauth2",
            "description": format!("An access token for the resource {base}/v1 (RFC 8707), by authorization code with PKCE (S256)."),
            "flows": {"authorizationCode": {
                "authorizationUrl": format!("{base}/oauth/authorize"),
                "tokenUrl": format!("{base}/oauth/token"),
                "scopes": scopes,
            }},
        },
    })
}

/// Description of a scope.
fn meaning(scope: Scope) -> &'static str {
    match scope {
        Scope::ApiModels => "See models and the balance",
        Scope::ApiChat => "Send chat requests",
        Scope::ApiCompletions => "Send text requests (older form)",
        Scope::CommerceSubscribe => "Buy or renew the plan",
        Scope::CheckoutManage => "Buy the plan by a checkout of the Universal Commerce Protocol",
        Scope::McpAndroid => "Set up and command Android devices",
        Scope::McpChat => "Use chats",
        Scope::McpProjects => "Use projects",
        Scope::McpDevices => "Use devices",
    }
}

#[cfg(test)]
mod tests {
    use tollgate_filter::{CODES, ErrorType, RateClasses, Resources};
    use tollgate_module::{Services, check_text};
    use tollgate_purchase::plan::{Plan, PlanProtocols};

    use super::*;
    use crate::config::RawOnboarding;
    use crate::installation::Deprecated;

    fn plan() -> Plan {
        Plan {
            product: "svc-pro-monthly".into(),
            slug: "svc-pro".into(),
            name: "Pro".into(),
            class: "pro".into(),
            monthly_credits: tollgate_money::Micros::ZERO,
            renewal_days: 7,
            device_slots: None,
            computer_use_tasks: Some(5),
            features: std::sync::Arc::from([]),
        }
    }

    fn documents() -> Value {
        let plan = plan();
        let service = ServiceIdentity {
            name: "svc".to_owned(),
            base_url: "https://api.example.com".to_owned(),
            root_url: "https://example.com".to_owned(),
        };
        let mut checked = Services::default();
        checked.provide(service.clone());
        let settings = check_text::<RawOnboarding>("", &checked).expect("defaults are good");
        let installation = Installation {
            service,
            plan,
            classes: RateClasses::default(),
            protocols: PlanProtocols::ALL,
            offered: Resources::API,
            sign_up: true,
            usdc: String::from("0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"),
            deprecated: vec![Deprecated {
                method: http::Method::POST,
                path: "/v1/completions".to_owned(),
            }],
        };
        document(&settings, &installation)
    }

    #[test]
    fn a_deprecated_operation_says_so_and_no_other_does() {
        let document = documents();
        let operation = |path: &str| &document["paths"][path]["post"];
        assert_eq!(operation("/v1/completions")["deprecated"], true);
        assert!(operation("/v1/chat/completions")["deprecated"].is_null());
    }

    /// Visits every value of the document with its path.
    fn each(value: &Value, path: &str, see: &mut impl FnMut(&str, &Value)) {
        see(path, value);
        match value {
            Value::Object(members) => {
                for (name, member) in members {
                    each(member, &format!("{path}/{name}"), see);
                }
            }
            Value::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    each(item, &format!("{path}/{at}"), see);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn every_reference_resolves_and_every_component_is_used() {
        let document = documents();
        let mut used = Vec::new();
        each(&document, "", &mut |path, value| {
            if let Some(target) = path.ends_with("/$ref").then(|| value.as_str()).flatten() {
                let target = target.strip_prefix('#').expect("of this document");
                assert!(document.pointer(target).is_some(), "{path}: {target}");
                used.push(target.to_owned());
            }
        });
        for kind in ["schemas", "headers"] {
            let all = document["components"][kind].as_object().expect("an object");
            for name in all.keys() {
                let target = format!("/components/{kind}/{name}");
                assert!(used.contains(&target), "{target} is used nowhere");
            }
        }
    }

    #[test]
    fn every_code_is_described_with_its_status() {
        let document = documents();
        for code in CODES {
            let status = code.status().as_u16();
            let answer = match code.kind() {
                ErrorType::PaymentRequired => {
                    &document["paths"]["/commerce/subscriptions/svc-pro/mpp"]["post"]["responses"]["402"]
                }
                _ => &document["components"]["responses"][responses::name(status)],
            };
            let description = answer["description"].as_str().expect("words");
            assert!(
                description.contains(&format!("`{}`", code.word())),
                "{description}"
            );
        }
    }

    #[test]
    fn the_offers_match_the_plan() {
        let document = documents();
        let post = |way: &str| {
            let path = format!("/commerce/subscriptions/svc-pro/{way}");
            document["paths"][path]["post"].clone()
        };
        let offer = |way: &str| post(way)["x-payment-info"]["offers"][0].clone();
        for (way, method, amount, currency) in [
            ("mpp", "paypal", "19900", "USD"),
            (
                "x402",
                "evm",
                "199000000",
                "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
            ),
        ] {
            let offer = offer(way);
            assert_eq!(offer["intent"], "charge");
            assert_eq!(offer["method"], method);
            assert_eq!(offer["amount"], amount);
            assert_eq!(offer["currency"], currency);
            assert!(post(way)["responses"]["402"].is_object());
        }
        let request = &document["components"]["schemas"]["CommercePaymentRequest"];
        assert_eq!(request["additionalProperties"], false);
        let product = &document["components"]["schemas"]["CommerceProduct"];
        assert_eq!(product["additionalProperties"], true);
        assert_eq!(product["properties"]["id"]["const"], "svc-pro-monthly");
        assert_eq!(product["properties"]["price_usd"]["const"], 199);
        assert_eq!(
            product["properties"]["included_device_slots"]["type"],
            "integer"
        );
        assert_eq!(
            product["properties"]["purchase"]["additionalProperties"]["format"],
            "uri"
        );
    }

    #[test]
    fn the_document_fits_the_registry_limit() {
        let size = documents().to_string().len();
        assert!(size < 64 * 1024, "{size} bytes");
    }

    #[test]
    fn every_operation_declares_its_security() {
        let document = documents();
        let security = |path: &str| document["paths"][path]["post"]["security"].clone();
        assert_eq!(
            security("/v1/chat/completions"),
            json!([{"apiKey": []}, {"oauth": ["api:chat"]}])
        );
        assert_eq!(
            security("/v1/completions"),
            json!([{"apiKey": []}, {"oauth": ["api:completions"]}])
        );
        let models = &document["paths"]["/v1/models"]["get"]["security"];
        assert_eq!(models[1]["oauth"], json!(["api:models"]));
        let known = &document["components"]["securitySchemes"]["oauth"]["flows"];
        for scope in ["api:models", "api:chat", "api:completions"] {
            assert!(known["authorizationCode"]["scopes"][scope].is_string());
        }
    }

    #[test]
    fn the_onboarding_schema_is_closed_and_complete() {
        let schema = documents()["components"]["schemas"]["DeveloperOnboarding"].clone();
        assert_eq!(schema["additionalProperties"], false, "{schema}");
        assert_eq!(schema["properties"]["status"]["const"], "self_service");
        assert_eq!(schema["properties"]["signup_url"]["format"], "uri");
        let required = schema["required"].as_array().expect("a list").len();
        assert_eq!(required, 9);
        let tier = &schema["properties"]["free_tier"];
        assert_eq!(tier["required"].as_array().map(Vec::len), Some(7));
        assert_eq!(tier["properties"]["included_devices"]["minimum"], 1);
    }
}
