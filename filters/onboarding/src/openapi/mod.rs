//! The OpenAPI 3.1 document of the service: the fragments of the folder `openapi` of this crate, one for each family of endpoints and each
//! rail, filled with the settings and the tables and types of the implementation.

mod fragment;
mod members;
mod schema;
mod values;

use serde_json::{Value, json};
use tollgate_purchase::plan::PlanProtocols;

use self::fragment::{Filling, merge, parse};
use crate::config::OnboardingSettings;
use crate::installation::{Deprecated, Installation};

macro_rules! fragment {
    ($name:literal) => {
        include_str!(concat!("../../openapi/", $name))
    };
}

/// Fragments of every installation.
const FRAGMENTS: [&str; 9] = [
    fragment!("document.yaml"),
    fragment!("common.yaml"),
    fragment!("models.yaml"),
    fragment!("completions.yaml"),
    fragment!("chat.yaml"),
    fragment!("text.yaml"),
    fragment!("onboarding.yaml"),
    fragment!("plan.yaml"),
    fragment!("access.yaml"),
];

/// The fragment of each rail, and whether the rail is installed.
fn rails(protocols: PlanProtocols) -> [(bool, &'static str); 3] {
    let PlanProtocols { x402, mpp, paypal } = protocols;
    [
        (x402, fragment!("x402.yaml")),
        (mpp, fragment!("mpp.yaml")),
        (paypal, fragment!("ucp.yaml")),
    ]
}

/// Generates the document.
pub fn document(settings: &OnboardingSettings, installation: &Installation) -> Value {
    let filling = Filling {
        parts: parse(fragment!("parts.yaml")),
        values: values::all(settings, installation),
    };
    let rails = rails(installation.protocols);
    let rails = rails.into_iter().filter(|(is_installed, _)| *is_installed);
    let mut document = json!({});
    for text in FRAGMENTS.into_iter().chain(rails.map(|(_, text)| text)) {
        merge(&mut document, filling.fill(&parse(text)));
    }
    for Deprecated { method, path } in &installation.deprecated {
        let method = method.as_str().to_ascii_lowercase();
        let path = path.replace("{plan}", &installation.plan.slug);
        let described = document["paths"].get_mut(path);
        if let Some(described) = described.and_then(|path| path.get_mut(method)) {
            described["deprecated"] = json!(true);
        }
    }
    document
}

#[cfg(test)]
mod tests {
    use tollgate_filter::{
        CODES, ErrorType, RateClasses, Resource, Resources, Scope, ServiceIdentity,
    };
    use tollgate_module::{Services, check_text};
    use tollgate_purchase::plan::Plan;

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
                _ if values::UNREAD_STATUSES.contains(&status) => {
                    &document["components"]["responses"]["Error4XX"]
                }
                _ => &document["components"]["responses"][format!("Error{status}")],
            };
            let description = answer["description"].as_str().expect("words");
            assert!(
                description.contains(&format!("`{}`", code.word())),
                "{description}"
            );
        }
    }

    #[test]
    fn every_placeholder_has_a_value_and_every_part_is_used() {
        let text = documents().to_string();
        assert!(!text.contains("{{"), "{text}");
        let fragments = FRAGMENTS.into_iter();
        let rails = rails(PlanProtocols::ALL).map(|(_, text)| text);
        let parts = parse(fragment!("parts.yaml"));
        let all: Vec<Value> = fragments
            .chain(rails)
            .map(parse)
            .chain([parts.clone()])
            .collect();
        let mut used = Vec::new();
        each(&json!(all), "", &mut |path, value| {
            if let Some((_, place)) = path.rsplit_once("/<<")
                && let Some(name) = value.as_str()
                && !place[1.min(place.len())..].contains('/')
            {
                assert!(parts[name].is_object(), "{path}: {name} is no part");
                used.push(name.to_owned());
            }
        });
        for name in parts.as_object().expect("an object").keys() {
            assert!(used.contains(name), "the part {name} is used nowhere");
        }
    }

    #[test]
    fn every_scope_of_the_api_has_a_description() {
        let document = documents();
        let flows = &document["components"]["securitySchemes"]["oauth"]["flows"];
        let described = flows["authorizationCode"]["scopes"].as_object();
        let described: Vec<&String> = described.expect("an object").keys().collect();
        let mut scopes: Vec<&str> = Scope::ALL
            .into_iter()
            .filter(|scope| scope.resource() == Resource::Api)
            .map(Scope::name)
            .collect();
        scopes.sort_unstable();
        assert_eq!(described, scopes);
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
