//! The routes of the settings with their filter chains.

use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::Value;
use tollgate_chain::{Chain, Route};
use tollgate_clock::Timestamp;
use tollgate_filter::{
    ErrorPage, ErrorShape, Filter, Reply, Resource, RouteFacts, RouteLifecycle, RouteList, Scopes,
};
use tollgate_module::{BuildError, BuildFilter, RouteContext, Services};
use tollgate_purchase::plan::{PaymentState, RetryAction};

use super::error::StartError;
use crate::config::{self, Settings};
use crate::proxy::{LifecycleHeaders, RouteEntry, Routes};
use crate::telemetry::Telemetry;

/// A filter by its name in chains, and the function that builds the filter for a route.
pub(super) type NamedFilter = (&'static str, BuildFilter);

/// The routes from the modules' view.
pub(super) fn route_list(routes: &[config::Route]) -> RouteList {
    let facts = routes.iter().map(|route| RouteFacts {
        path: route.path.as_str().into(),
        methods: route.methods.clone(),
        body_bytes_max: route.body_bytes_max,
        access: route.access,
        lifecycle: route.lifecycle.as_ref().map(|lifecycle| RouteLifecycle {
            deprecated_at: lifecycle.deprecated_at.map(Timestamp::from),
            sunset_at: lifecycle.sunset_at.map(Timestamp::from),
            successor: lifecycle.successor.clone(),
        }),
    });
    RouteList(facts.collect())
}

/// Builds the chain of every route, and adds new routes to the metrics.
pub(super) fn routes(
    settings: &Settings,
    (filters, services): (&[NamedFilter], &Services),
    pages: &ErrorPage,
    telemetry: &Telemetry,
) -> Result<Routes, StartError> {
    telemetry.add_routes(settings);
    let entries = settings
        .routes
        .iter()
        .map(|route| {
            let chain = chain(route, filters, services).map_err(|source| StartError::Filter {
                route: route.path.to_string(),
                source,
            })?;
            let index = telemetry.route(route.path.as_str());
            Ok(entry(index, route, chain, pages))
        })
        .collect::<Result<Vec<_>, StartError>>()?;
    Ok(Routes::new(entries))
}

fn chain(
    route: &config::Route,
    filters: &[NamedFilter],
    services: &Services,
) -> Result<Chain, BuildError> {
    let context = RouteContext {
        path: route.path.as_str(),
        body_bytes_max: route.body_bytes_max,
        access: route.access,
        class: route.class.as_deref(),
        chain: &route.chain,
        services,
    };
    let chain = route
        .chain
        .iter()
        .map(|name| filter(name, &context, filters))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Chain::new(chain))
}

fn filter(
    name: &str,
    context: &RouteContext<'_>,
    filters: &[NamedFilter],
) -> Result<Arc<dyn Filter>, BuildError> {
    match filters.iter().find(|(known, _)| *known == name) {
        Some((_, build)) => build(context),
        None => {
            let names: Vec<&str> = filters.iter().map(|(known, _)| *known).collect();
            let names = names.join("`, `");
            Err(BuildError::new(format!(
                "there is no filter `{name}`; use one of `{names}`"
            )))
        }
    }
}

fn entry(
    index: Option<usize>,
    route: &config::Route,
    chain: Chain,
    pages: &ErrorPage,
) -> RouteEntry {
    let mut methods = route.methods.clone();
    if methods.contains(&Method::GET) && !methods.contains(&Method::HEAD) {
        methods.push(Method::HEAD);
    }
    let lifecycle = route.lifecycle.as_ref();
    RouteEntry {
        index,
        route: Route {
            name: route.path.as_str().into(),
            chain,
            body_bytes_max: route.body_bytes_max,
            errors: route.errors,
        },
        path: route.path.clone(),
        // Clients are configured with an MCP resource's address with or without the slash. The authorization server accepts either address.
        is_also_slashed: (route.access).is_some_and(|access| access.resource != Resource::Api),
        methods,
        cors: route.cors,
        lifecycle: lifecycle.map(|end| Arc::new(LifecycleHeaders::of(end))),
        pages: match route.errors {
            ErrorShape::Page => Some(pages.clone()),
            shape if buys(route) => Some(purchase_errors(shape)),
            _ => None,
        },
    }
}

/// Whether requests on the route buy the plan.
fn buys(route: &config::Route) -> bool {
    (route.access).is_some_and(|access| access.any_of.has_any(Scopes::BUYING))
}

/// Errors of a route that buys, for a refusal by any part: a 400 is no reason to pay, and the body of the error says so.
fn purchase_errors(shape: ErrorShape) -> ErrorPage {
    ErrorPage::new(move |error, _| {
        let mut body = error.body(shape);
        if error.status() == StatusCode::BAD_REQUEST
            && let Ok(Value::Object(mut members)) = serde_json::from_slice(&body)
        {
            let state = PaymentState::Required.word();
            members.insert("payment_state".into(), state.into());
            let action = RetryAction::FixRequest.word();
            members.insert("retry_action".into(), action.into());
            body = Value::Object(members).to_string().into();
        }
        Reply::of(error.status(), "application/json", body)
    })
}
