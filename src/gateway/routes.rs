//! The routes of the settings with their filter chains.

use std::sync::Arc;

use http::Method;
use tollgate_chain::{Chain, Route};
use tollgate_clock::Timestamp;
use tollgate_filter::{ErrorPage, ErrorShape, Filter, RouteFacts, RouteLifecycle, RouteList};
use tollgate_module::{BuildError, Built, RouteContext};

use super::StartError;
use crate::config::{self, Settings};
use crate::proxy::{LifecycleHeaders, RouteEntry, Routes};

/// The routes as modules see them.
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

/// Builds the chain of every route.
pub(super) fn routes(
    settings: &Settings,
    built: &Built,
    pages: &ErrorPage,
) -> Result<Routes, StartError> {
    let entries = settings
        .routes
        .iter()
        .enumerate()
        .map(|(index, route)| {
            let chain = chain(route, built).map_err(|source| StartError::Filter {
                route: route.path.to_string(),
                source,
            })?;
            Ok(entry(index, route, chain, pages))
        })
        .collect::<Result<Vec<_>, StartError>>()?;
    Ok(Routes::new(entries))
}

fn chain(route: &config::Route, built: &Built) -> Result<Chain, BuildError> {
    let context = RouteContext {
        path: route.path.as_str(),
        body_bytes_max: route.body_bytes_max,
        access: route.access,
        class: route.class.as_deref(),
        chain: &route.chain,
        services: &built.services,
    };
    let filters = route
        .chain
        .iter()
        .map(|name| filter(name, &context, built))
        .collect::<Result<Vec<_>, _>>()?;
    Ok(Chain::new(filters))
}

fn filter(
    name: &str,
    context: &RouteContext<'_>,
    built: &Built,
) -> Result<Arc<dyn Filter>, BuildError> {
    match built.filters.iter().find(|(known, _)| *known == name) {
        Some((_, build)) => build(context),
        None => {
            let names: Vec<&str> = built.filters.iter().map(|(known, _)| *known).collect();
            let names = names.join("`, `");
            Err(BuildError::new(format!(
                "there is no filter `{name}`; use one of `{names}`"
            )))
        }
    }
}

fn entry(index: usize, route: &config::Route, chain: Chain, pages: &ErrorPage) -> RouteEntry {
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
        methods,
        cors: route.cors,
        lifecycle: lifecycle.map(|end| Arc::new(LifecycleHeaders::of(end))),
        pages: (route.errors == ErrorShape::Page).then(|| pages.clone()),
    }
}
