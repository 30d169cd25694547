//! The built-in route table.

use std::sync::Arc;

use http::Method;
use tollgate_filter::{ErrorShape, RequiredAccess, Scope, Scopes};
use tollgate_openai::Family;

use super::BODY_BYTES;
use crate::config::settings::{Cors, Route};

/// Maximum body size of the built-in completion routes: large enough for images.
const COMPLETION_BYTES: usize = 20 * 1024 * 1024;
/// Maximum body size of the built-in MCP routes: large enough for the arguments of a tool, which may be a document.
const MCP_BYTES: usize = 4 * 1024 * 1024;
const SHOWN: &[Method] = &[Method::GET];
const SENT: &[Method] = &[Method::GET, Method::POST];

/// Checkouts of the Universal Commerce Protocol, in each supported version.
const UCP: &[(&str, &[Method])] = &[
    ("/ucp/2026-08-25/checkout-sessions", &[Method::POST]),
    (
        "/ucp/2026-08-25/checkout-sessions/{session}",
        &[Method::GET, Method::PUT],
    ),
    (
        "/ucp/2026-08-25/checkout-sessions/{session}/complete",
        &[Method::POST],
    ),
    (
        "/ucp/2026-08-25/checkout-sessions/{session}/cancel",
        &[Method::POST],
    ),
    ("/ucp/2026-04-08/checkout-sessions", &[Method::POST]),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}",
        &[Method::GET, Method::PUT],
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}/complete",
        &[Method::POST],
    ),
    (
        "/ucp/2026-04-08/checkout-sessions/{session}/cancel",
        &[Method::POST],
    ),
];

/// Pages for people.
const PAGES: &[(&str, &[Method])] = &[
    ("/", SHOWN),
    ("/sign-up", SENT),
    ("/sign-in", SENT),
    ("/sign-in/{*step}", SENT),
    ("/confirm", SENT),
    ("/sign-out", SENT),
    ("/sign-out/{*step}", SENT),
    ("/keys", SENT),
    ("/keys/{*step}", SENT),
    ("/usage", SHOWN),
    ("/usage.csv", SHOWN),
    ("/credits", SHOWN),
    ("/credits/{*step}", SENT),
    ("/plan", SENT),
    ("/plan/{*step}", SENT),
    ("/apps", SENT),
    ("/apps/{*step}", SENT),
    ("/sandbox", SENT),
    ("/sandbox/{*step}", SENT),
    ("/docs", SHOWN),
    ("/docs/{*page}", SHOWN),
    ("/consent/{*request}", SENT),
    ("/commerce/continue/{session}", SENT),
];

/// The default route table, equal to the table of the shipped file.
pub(super) fn built_in() -> Vec<Route> {
    let route = |path: &str, method, body_bytes_max, scope, chain: &[&str]| Route {
        path: path.parse().expect("the built-in paths are patterns"),
        methods: vec![method],
        body_bytes_max,
        chain: chain.iter().map(|name| Arc::from(*name)).collect(),
        errors: ErrorShape::Envelope,
        access: Some(RequiredAccess::of(scope)),
        class: None,
        cors: Cors::Api,
        lifecycle: None,
    };
    const COMPLETION: &[&str] = &[
        "address-limit",
        "auth",
        "rate-limit",
        "completions",
        "idempotency",
        "meter",
        "cache",
    ];
    const MODELS: &[&str] = &["address-limit", "auth", "rate-limit", "models"];
    let models = |path| {
        let bytes_max = BODY_BYTES;
        route(path, Method::GET, bytes_max, Scope::ApiModels, MODELS)
    };
    let mcp = |path: &str, scopes: &[Scope]| {
        let scopes = scopes.iter().copied().fold(Scopes::NONE, Scopes::with);
        Route {
            path: path.parse().expect("the built-in paths are patterns"),
            methods: vec![Method::POST, Method::GET, Method::DELETE],
            body_bytes_max: MCP_BYTES,
            chain: ["address-limit", "auth", "rate-limit", "mcp"]
                .map(Arc::from)
                .to_vec(),
            errors: ErrorShape::Envelope,
            access: RequiredAccess::any_of(scopes).ok(),
            class: Some(Arc::from("mcp")),
            cors: Cors::Api,
            lifecycle: None,
        }
    };
    let document = |path: &str| Route {
        path: path.parse().expect("the built-in paths are patterns"),
        methods: vec![Method::GET],
        body_bytes_max: 0,
        chain: ["rate-limit", "onboarding"].map(Arc::from).to_vec(),
        errors: ErrorShape::Envelope,
        access: None,
        class: None,
        cors: Cors::Public,
        lifecycle: None,
    };
    let page = |path: &str, methods: &[Method], chain: &[&str]| Route {
        path: path.parse().expect("the built-in paths are patterns"),
        methods: methods.to_vec(),
        body_bytes_max: BODY_BYTES,
        chain: chain.iter().map(|name| Arc::from(*name)).collect(),
        errors: ErrorShape::Page,
        access: None,
        class: None,
        cors: Cors::None,
        lifecycle: None,
    };
    let family = |family: &Family| {
        let path = format!("/v1{}", family.path);
        let scope = Scope::named(family.scope).expect("the scope of a family is defined");
        route(&path, Method::POST, COMPLETION_BYTES, scope, COMPLETION)
    };
    let mut routes: Vec<Route> = Family::ALL.into_iter().map(family).collect();
    routes.extend([
        models("/v1/models"),
        // An id may have slashes.
        models("/v1/models/{*model}"),
        mcp(
            "/mcp",
            &[Scope::McpChat, Scope::McpProjects, Scope::McpDevices],
        ),
        mcp("/mcp/android", &[Scope::McpAndroid]),
        document("/developer/onboarding"),
        document("/.well-known/mcp/server-card.json"),
        document("/.well-known/mcp/android/server-card.json"),
        document("/.well-known/security.txt"),
        document("/llms.txt"),
        document("/robots.txt"),
        document("/openapi.json"),
    ]);
    for way in ["x402", "mpp"] {
        routes.push(route(
            &format!("/commerce/subscriptions/{{plan}}/{way}"),
            Method::POST,
            BODY_BYTES,
            Scope::CommerceSubscribe,
            &["address-limit", "auth", "rate-limit", "pay"],
        ));
    }
    for path in [
        "/commerce/products/{plan}",
        "/.well-known/ucp",
        "/.well-known/ucp/2026-08-25",
    ] {
        routes.push(Route {
            chain: ["rate-limit", "commerce"].map(Arc::from).to_vec(),
            ..document(path)
        });
    }
    let checkout = |path, methods: &[Method]| Route {
        methods: methods.to_vec(),
        ..route(
            path,
            Method::POST,
            BODY_BYTES,
            Scope::CommerceSubscribe,
            &["address-limit", "auth", "rate-limit", "commerce"],
        )
    };
    for (path, methods) in [
        ("/ucp/v1/checkout-sessions", &[Method::POST] as &[Method]),
        ("/ucp/v1/checkout-sessions/{session}", SHOWN),
    ] {
        routes.push(checkout(path, methods));
    }
    for (path, methods) in UCP {
        routes.push(Route {
            errors: ErrorShape::Ucp,
            access: RequiredAccess::any_of(Scopes::BUYING).ok(),
            ..checkout(path, methods)
        });
    }
    let notices = page(
        "/webhooks/paypal",
        &[Method::POST],
        &["rate-limit", "commerce"],
    );
    routes.push(Route {
        class: Some(Arc::from("webhooks")),
        errors: ErrorShape::Envelope,
        ..notices
    });
    let revocation = page(
        "/keys/revoke",
        &[Method::POST],
        &["rate-limit", "key-revocation"],
    );
    routes.push(Route {
        errors: ErrorShape::Envelope,
        cors: Cors::Api,
        ..revocation
    });
    const PAGE: &[&str] = &["rate-limit", "portal"];
    for (path, methods) in PAGES {
        routes.push(page(path, methods, PAGE));
    }
    // Assets of pages are not counted: one page requests several.
    routes.push(page("/assets/{*file}", &[Method::GET], &["portal"]));
    routes.extend(oauth());
    routes
}

/// The routes of the authorization server.
fn oauth() -> Vec<Route> {
    let route = |path: &str, method, class: Option<&str>, cors| Route {
        path: path.parse().expect("the built-in paths are patterns"),
        body_bytes_max: if method == Method::POST {
            BODY_BYTES
        } else {
            0
        },
        methods: vec![method],
        chain: ["rate-limit", "oauth"].map(Arc::from).to_vec(),
        errors: ErrorShape::OAuth,
        access: None,
        class: class.map(Arc::from),
        cors,
        lifecycle: None,
    };
    let endpoint = |path: &str, class| route(path, Method::POST, Some(class), Cors::Api);
    let document = |path: &str| route(path, Method::GET, None, Cors::Public);
    let mut routes = vec![
        endpoint("/oauth/register", "register"),
        // The destination of a browser.
        Route {
            errors: ErrorShape::Page,
            ..route(
                "/oauth/authorize",
                Method::GET,
                Some("authorize"),
                Cors::None,
            )
        },
        endpoint("/oauth/token", "oauth"),
        endpoint("/oauth/revoke", "oauth"),
    ];
    for name in [
        "oauth-authorization-server",
        "oauth-protected-resource",
        "openid-configuration",
    ] {
        routes.push(document(&format!("/.well-known/{name}")));
        routes.push(document(&format!("/.well-known/{name}/{{*rest}}")));
    }
    routes.push(document("/.well-known/jwks.json"));
    routes
}
