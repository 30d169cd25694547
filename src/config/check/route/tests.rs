//! Tests of the route table: changes of it, and the order of filters.

use std::path::Path;

use tollgate_module::{Declarations, FilterType, RouteChange};

use crate::config::{Environment, Route, load_text};

/// What the built-in modules declare.
fn modules() -> Declarations {
    crate::registry::declarations(&crate::registry::modules())
}

/// The route table of these settings, or the problems with them.
fn table(text: &str, declared: &Declarations) -> Result<Vec<Route>, String> {
    load_text(Path::new("t.toml"), text, &Environment::default(), declared)
        .map(|settings| settings.routes)
        .map_err(|report| report.to_string())
}

/// The routes of these settings below the path, or the problems with them.
fn routes_of(
    text: &str,
    declared: &Declarations,
    path: &str,
) -> Result<Vec<(String, String)>, String> {
    let chosen = table(text, declared)?
        .into_iter()
        .filter(|route| route.path.as_str() == path);
    Ok(chosen
        .map(|route| (format!("{:?}", route.methods), route.chain.join(" ")))
        .collect())
}

/// The keys of the warnings of these settings.
fn warnings(text: &str, declared: &Declarations) -> Vec<String> {
    let settings = load_text(Path::new("t.toml"), text, &Environment::default(), declared);
    let warnings = settings.expect("valid").warnings();
    warnings.into_iter().map(|warning| warning.key).collect()
}

#[test]
fn a_change_of_a_lifecycle_keeps_the_fields_that_it_does_not_name() {
    let route = "[[route]]\npath = '/v1/models'\nmethods = ['GET']\nscope = 'api:models'\nchain = ['auth', 'models']\n\
                 deprecated_at = '2027-01-01T00:00:00Z'\nsuccessor = '/v2'\nnotice = 'https://example.com/changes'\n";
    let change = |line: &str| {
        let text = format!("{route}[[route_change]]\npath = '/v1/models'\n{line}\n");
        table(&text, &modules()).map(|routes| routes[0].lifecycle.clone().expect("a lifecycle"))
    };
    let before = change("class = 'free'").expect("valid");
    let after = change("sunset_at = '2027-07-01T00:00:00Z'").expect("valid");
    assert!(after.sunset_at.is_some() && before.sunset_at.is_none());
    assert_eq!(after.deprecated_at, before.deprecated_at);
    assert_eq!(after.successor, before.successor);
    assert_eq!(after.notice, before.notice);
    let successor = change("successor = '/v3'").expect("no date is needed beside it");
    assert_ne!(successor.successor, before.successor);
    let refused = change("sunset_at = '2026-07-01T00:00:00Z'").expect_err("before its deprecation");
    assert!(
        refused.contains("route_change.0.sunset_at: is "),
        "{refused}"
    );
}

#[test]
fn a_chain_in_the_wrong_order_is_refused_with_both_filters_and_the_remedy() {
    let chain = |chain: &str| {
        let text = format!("[[route_change]]\npath = '/v1/chat/completions'\nchain = {chain}\n");
        routes_of(&text, &modules(), "/v1/chat/completions").expect_err("the wrong order")
    };
    assert_eq!(
        chain("['auth', 'meter', 'completions']"),
        ("t.toml:3:18: route_change.0.chain.1: is `meter`, which has to come after `completions`; move `meter` after `completions`")
    );
    assert_eq!(
        chain("['auth', 'meter']"),
        ("t.toml:3:18: route_change.0.chain.1: is `meter`, which needs `completions`, and the chain has none; add `completions` before `meter`")
    );
    let own = FilterType::named("models").before(&["auth"]);
    let mut declared = modules();
    let known = declared.filters.iter_mut();
    for filter in known.filter(|filter| filter.name() == "models") {
        *filter = own;
    }
    let refused = routes_of("", &declared, "/").expect_err("a built-in route");
    for path in ["/v1/models", "/v1/models/{*model}"] {
        let line = format!(
            "route `{path}`.chain.3: is `models`, which has to come before `auth`; move `models` before `auth`"
        );
        assert!(refused.contains(&line), "{refused}");
    }
}

#[test]
fn a_route_is_added_or_changed_without_the_rest_of_the_table() {
    let count = table("", &modules()).expect("the built-in table").len();
    let text = "[[route_change]]\npath = '/v1/models'\nchain = ['auth', 'models']\n\
                [[route_change]]\npath = '/v1/models'\nmethods = ['DELETE']\nchain = ['portal']\n";
    let routes = routes_of(text, &modules(), "/v1/models").expect("two routes");
    let wanted = [("[GET]", "auth models"), ("[DELETE]", "portal")];
    assert_eq!(
        routes,
        wanted.map(|(methods, chain)| (methods.to_owned(), chain.to_owned()))
    );
    let all = table(text, &modules()).expect("valid");
    assert_eq!(all.len(), count + 1);
    let models = all.iter().find(|route| route.path.as_str() == "/v1/models");
    assert!(
        models.is_some_and(|route| route.access.is_some()),
        "its scope stays"
    );

    let refused = |text: &str| routes_of(text, &modules(), "/").expect_err("refused");
    let twice = "[[route_change]]\npath = '/v1/models'\nclass = 'free'\n".repeat(2);
    assert!(
        refused(&twice).contains("route_change.1.path: is `/v1/models`, which `route_change.0` already adds or changes; write both as one"),
        "{}", refused(&twice)
    );
    let part = "[[route_change]]\npath = '/sign-in'\nmethods = ['GET']\nchain = ['portal']\n";
    assert!(
        refused(part).contains("route_change.0.path: is `/sign-in`, which the table has with `methods = [\"GET\", \"POST\"]`; name exactly"),
        "{}", refused(part)
    );
    let neither = refused("[[route_change]]\npath = '/v1/model'\nclass = 'free'\n");
    assert!(
        neither.contains("route_change.0.methods: is missing"),
        "{neither}"
    );
    let open =
        refused("[[route_change]]\npath = '/openapi.json'\nchain = ['auth', 'onboarding']\n");
    assert!(
        open.contains("route_change.0.scope: is missing, and the chain has `auth`"),
        "{open}"
    );
}

#[test]
fn a_route_of_the_program_is_in_every_table_but_does_not_change_one_of_the_file() {
    let mut declared = modules();
    declared.routes = vec![
        RouteChange::of("/v1/models").chain(&["auth", "models"]),
        RouteChange::of("/hours")
            .methods(&["GET"])
            .chain(&["portal"]),
    ];
    let get = |chain: &str| vec![("[GET]".to_owned(), chain.to_owned())];
    assert_eq!(
        routes_of("", &declared, "/v1/models"),
        Ok(get("auth models"))
    );
    assert_eq!(routes_of("", &declared, "/hours"), Ok(get("portal")));
    let table = "[[route]]\npath = '/v1/models'\nmethods = ['GET']\nscope = 'api:models'\n\
                 chain = ['auth', 'rate-limit', 'models']\n";
    let whole = get("auth rate-limit models");
    assert_eq!(routes_of(table, &declared, "/v1/models"), Ok(whole));
    assert_eq!(routes_of(table, &declared, "/hours"), Ok(get("portal")));
    assert_eq!(warnings(table, &declared), ["route.0.chain"]);
    assert!(warnings("", &declared).is_empty());
    // Two of the program's routes of one path: neither is of the file.
    let post = RouteChange::of("/hours")
        .methods(&["POST"])
        .chain(&["portal"]);
    declared.routes.push(post);
    let both = routes_of(table, &declared, "/hours").map(|routes| routes.len());
    assert_eq!(both, Ok(2));
    declared.routes.pop();
    let change = "[[route_change]]\npath = '/hours'\nchain = ['rate-limit', 'portal']\n";
    assert_eq!(
        routes_of(change, &declared, "/hours"),
        Ok(get("rate-limit portal"))
    );
    declared.routes = vec![RouteChange::of("/hours").methods(&["GET"])];
    let refused = routes_of("", &declared, "/hours").expect_err("no chain");
    assert!(
        refused.contains("route `/hours` of the program.chain: is missing"),
        "{refused}"
    );
}
