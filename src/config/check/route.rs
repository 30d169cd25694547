//! `[[route]]`.

use std::sync::Arc;

use http::Method;
use tollgate_filter::settings::{At, Problems};
use tollgate_filter::{ErrorShape, RequiredAccess, Scope, Scopes};
use tollgate_rate_limit::Limits;

use super::{CheckContext, lifecycle, number, required, word};
use crate::config::document::words;
use crate::config::raw::RawRoute;
use crate::config::settings::{Cors, Route, Service};

/// Default maximum size of a request's body in bytes.
const BODY_BYTES: u64 = 64 * 1024;
const BODY_BYTES_MAX: u64 = 1 << 30;
/// Maximum body size of the built-in completion routes: large enough for images.
const COMPLETION_BYTES: usize = 20 * 1024 * 1024;
/// Maximum body size of the built-in MCP routes: large enough for the arguments of a tool, which may be a document.
const MCP_BYTES: usize = 4 * 1024 * 1024;
const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
const SHAPES: &[(&str, ErrorShape)] = &[
    ("envelope", ErrorShape::Envelope),
    ("oauth", ErrorShape::OAuth),
    ("page", ErrorShape::Page),
    ("ucp", ErrorShape::Ucp),
];
const CORS: &[(&str, Cors)] = &[
    ("none", Cors::None),
    ("public", Cors::Public),
    ("api", Cors::Api),
];

const SHOWN: &[Method] = &[Method::GET];
const SENT: &[Method] = &[Method::GET, Method::POST];

/// Checkouts of the Universal Commerce Protocol, version 2026-04-08.
const UCP: &[(&str, &[Method])] = &[
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

/// The default route table; the shipped file contains the same one.
fn built_in(service: &Service) -> Vec<Route> {
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
        body_bytes_max: BODY_BYTES as usize,
        chain: chain.iter().map(|name| Arc::from(*name)).collect(),
        errors: ErrorShape::Page,
        access: None,
        class: None,
        cors: Cors::None,
        lifecycle: None,
    };
    let mut routes = vec![
        route(
            "/v1/chat/completions",
            Method::POST,
            COMPLETION_BYTES,
            Scope::ApiChat,
            COMPLETION,
        ),
        route(
            "/v1/completions",
            Method::POST,
            COMPLETION_BYTES,
            Scope::ApiCompletions,
            COMPLETION,
        ),
        route(
            "/v1/models",
            Method::GET,
            BODY_BYTES as usize,
            Scope::ApiModels,
            MODELS,
        ),
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
    ];
    for way in ["x402", "mpp"] {
        routes.push(route(
            &format!("/commerce/subscriptions/{{plan}}/{way}"),
            Method::POST,
            BODY_BYTES as usize,
            Scope::CommerceSubscribe,
            &["address-limit", "auth", "rate-limit", "pay"],
        ));
    }
    for path in ["/commerce/products/{plan}", "/.well-known/ucp"] {
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
            BODY_BYTES as usize,
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
    const PAGE: &[&str] = &["rate-limit", "portal"];
    for (path, methods) in PAGES {
        routes.push(page(path, methods, PAGE));
    }
    // Assets of pages are not counted: one page requests several.
    routes.push(page("/assets/{*file}", &[Method::GET], &["portal"]));
    routes.extend(oauth(path_of(service.base_url.as_str())));
    routes
}

/// The routes of the authorization server. Where the service's address has a path, a proxy in front of the gateway may or may not have
/// removed it.
fn oauth(base_path: &str) -> Vec<Route> {
    let route = |path: String, method, class: Option<&str>, cors| Route {
        path: path.parse().expect("the built-in paths are patterns"),
        body_bytes_max: if method == Method::POST {
            BODY_BYTES as usize
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
    let endpoint = |path: String, class| route(path, Method::POST, Some(class), Cors::Api);
    let document = |path: String| route(path, Method::GET, None, Cors::Public);
    let mut prefixes = vec![""];
    prefixes.extend((!base_path.is_empty()).then_some(base_path));
    let mut routes = Vec::new();
    for prefix in prefixes {
        let authorize = format!("{prefix}/oauth/authorize");
        routes.extend([
            endpoint(format!("{prefix}/oauth/register"), "register"),
            route(authorize, Method::GET, Some("authorize"), Cors::None),
            endpoint(format!("{prefix}/oauth/token"), "oauth"),
            endpoint(format!("{prefix}/oauth/revoke"), "oauth"),
        ]);
        for name in [
            "oauth-authorization-server",
            "oauth-protected-resource",
            "openid-configuration",
        ] {
            routes.push(document(format!("{prefix}/.well-known/{name}")));
            routes.push(document(format!("{prefix}/.well-known/{name}/{{*rest}}")));
        }
        routes.push(document(format!("{prefix}/.well-known/jwks.json")));
    }
    routes
}

/// The part of an address after its host.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("", |slash| &rest[slash..])
}

pub(super) fn routes(
    raw: &[RawRoute],
    service: &Service,
    context: &CheckContext<'_>,
    limits: Option<&Limits>,
    problems: &mut Problems,
) -> Vec<Route> {
    if raw.is_empty() {
        return built_in(service);
    }
    // With its index in the file: one that cannot be parsed is left out.
    let mut routes: Vec<(usize, Route)> = Vec::new();
    for (index, one) in raw.iter().enumerate() {
        let key = |name: &str| format!("route.{index}.{name}");
        let path = required(
            problems,
            key("path"),
            one.path.as_ref(),
            "`path = \"/v1/models\"`",
        );
        let pattern = path.and_then(|at| problems.parse(key("path"), at));
        let methods = methods(index, one, problems);
        let chain = chain(index, one, context, problems);
        let access = access(index, one, &chain, problems);
        let errors = word(problems, key("errors"), one.errors.as_ref(), SHAPES);
        let cors = word(problems, key("cors"), one.cors.as_ref(), CORS);
        let body_bytes_max = number(
            problems,
            key("body_bytes_max"),
            one.body_bytes_max.as_ref(),
            BODY_BYTES,
            0..=BODY_BYTES_MAX,
        );
        let (Some(at), Some(pattern)) = (path, pattern) else {
            continue;
        };
        let route = Route {
            path: pattern,
            methods,
            body_bytes_max: body_bytes_max as usize,
            chain,
            errors: errors.unwrap_or_default(),
            access,
            class: class(index, one, limits, problems),
            cors: cors.unwrap_or(Cors::None),
            lifecycle: lifecycle::lifecycle(index, one, service.base_url.as_str(), problems),
        };
        if let Some((first, _)) = routes.iter().find(|(_, other)| overlaps(other, &route)) {
            problems.note(
                key("path"),
                at,
                format_args!(
                    "is `{}`, as `route.{first}` already is for the same method; remove one of them",
                    at.value
                ),
            );
        }
        routes.push((index, route));
    }
    routes.into_iter().map(|(_, route)| route).collect()
}

fn overlaps(one: &Route, other: &Route) -> bool {
    one.path == other.path
        && one
            .methods
            .iter()
            .any(|method| other.methods.contains(method))
}

fn methods(index: usize, raw: &RawRoute, problems: &mut Problems) -> Vec<Method> {
    let key = format!("route.{index}.methods");
    let list = required(
        problems,
        &key,
        raw.methods.as_ref(),
        "`methods = [\"POST\"]`",
    );
    let Some(list) = list else { return Vec::new() };
    if list.value.is_empty() {
        problems.note(&key, list, "is empty; name the methods it answers");
    }
    let mut methods = Vec::new();
    for (number, at) in list.value.iter().enumerate() {
        match METHODS.iter().find(|known| **known == at.value) {
            Some(known) => methods.extend(known.parse::<Method>().ok()),
            None => problems.note(
                format!("{key}.{number}"),
                at,
                format_args!("is `{}`; use {}", at.value, words(METHODS)),
            ),
        }
    }
    methods
}

fn chain(
    index: usize,
    raw: &RawRoute,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Vec<Arc<str>> {
    let key = format!("route.{index}.chain");
    let list = required(
        problems,
        &key,
        raw.chain.as_ref(),
        "the names of filters, outermost first",
    );
    let Some(list) = list else { return Vec::new() };
    if list.value.is_empty() {
        problems.note(
            &key,
            list,
            "is empty; name at least the filter that answers",
        );
    }
    for (number, at) in list.value.iter().enumerate() {
        let key = format!("{key}.{number}");
        if !context.filters.contains(&at.value.as_str()) {
            problems.note(
                key,
                at,
                format_args!(
                    "is `{}`, which is not a filter; use {}",
                    at.value,
                    words(context.filters)
                ),
            );
        } else if is_repeated(&list.value[..number], &at.value) {
            problems.note(
                key,
                at,
                format_args!("is `{}` again; name each filter once", at.value),
            );
        }
    }
    list.value
        .iter()
        .map(|at| Arc::from(at.value.as_str()))
        .collect()
}

fn is_repeated(before: &[At<String>], name: &str) -> bool {
    before.iter().any(|at| at.value == name)
}

/// A credential's scope is checked by `auth`, so a scope requires `auth`: without it the scope would not be enforced.
fn access(
    index: usize,
    raw: &RawRoute,
    chain: &[Arc<str>],
    problems: &mut Problems,
) -> Option<RequiredAccess> {
    let key = |name: &str| format!("route.{index}.{name}");
    let known: Vec<(&str, Scope)> = Scope::ALL
        .into_iter()
        .map(|scope| (scope.name(), scope))
        .collect();
    let has_auth = chain.iter().any(|name| **name == *"auth");
    if !has_auth && !chain.is_empty() {
        let message =
            "is set, but the chain has no `auth` to enforce it; add `auth`, or leave the scope out";
        if let Some(at) = &raw.scope {
            problems.note(key("scope"), at, message);
        }
        if let Some(at) = &raw.scopes_any {
            problems.note(key("scopes_any"), at, message);
        }
        return None;
    }
    match (&raw.scope, &raw.scopes_any) {
        (None, None) => {
            if has_auth {
                problems.note_missing(
                    key("scope"),
                    "is missing, and the chain has `auth`; name the scope that a credential must have, such as `api:chat`",
                );
            }
            None
        }
        (Some(_), Some(at)) => {
            problems.note(
                key("scopes_any"),
                at,
                "is set beside `scope`; keep one of them",
            );
            None
        }
        (one @ Some(_), None) => {
            word(problems, key("scope"), one.as_ref(), &known).map(RequiredAccess::of)
        }
        (None, Some(at)) => {
            let mut scopes = Scopes::NONE;
            for (number, one) in at.value.iter().enumerate() {
                let key = format!("{}.{number}", key("scopes_any"));
                scopes = scopes.with(word(problems, key, Some(one), &known)?);
            }
            let access = RequiredAccess::any_of(scopes);
            if let Err(error) = &access {
                problems.note(key("scopes_any"), at, error);
            }
            access.ok()
        }
    }
}

fn class(
    index: usize,
    raw: &RawRoute,
    limits: Option<&Limits>,
    problems: &mut Problems,
) -> Option<Arc<str>> {
    let at = raw.class.as_ref()?;
    let limits = limits?;
    let found = limits.class(&at.value);
    if found.is_none() {
        let known: Vec<&str> = limits.classes().iter().map(|class| &*class.name).collect();
        problems.note(
            format!("route.{index}.class"),
            at,
            format_args!(
                "is `{}`, which is not a class; use {}",
                at.value,
                words(&known)
            ),
        );
    }
    found.map(|class| class.name.clone())
}
