//! `[[route]]` and `[[route_change]]`: the route table, the changes of the table, and the order of filters in the chains.

mod fields;
mod lifecycle;
mod table;

use tollgate_filter::settings::{At, Number, OptionalWord, Problems, Warning};
use tollgate_module::{RouteChange, misplaced};
use tollgate_rate_limit::Limits;

use super::CheckContext;
use super::values::required;
use crate::config::raw::{RawRoute, RawSettings};
use crate::config::settings::{Route, Service};

/// Default maximum size of a request's body in bytes.
const BODY_BYTES: usize = 64 * 1024;

/// Inputs of a route's check.
struct Inputs<'a> {
    service: &'a Service,
    context: &'a CheckContext<'a>,
    limits: Option<&'a Limits>,
}

/// Where a route is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// `[[route]]`.
    Table,
    Program,
    /// `[[route_change]]`.
    Change,
}

/// A route as written: in the file, or by the program.
#[derive(Clone)]
struct Written<'a> {
    origin: Origin,
    /// The prefix of the route's keys: `route.3`.
    key: String,
    raw: &'a RawRoute,
}

impl Written<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.key)
    }
}

/// A route of the table, with the places of the route (or its last change) and of the chain; without places for a built-in route.
struct Entry<'a> {
    route: Route,
    written: Option<Written<'a>>,
    chain: Option<Written<'a>>,
}

/// The route table: from the file or built in, with the routes of the program and the changes of the file.
pub(super) fn routes(
    raw: &RawSettings,
    service: &Service,
    context: &CheckContext<'_>,
    limits: Option<&Limits>,
    warnings: &mut Vec<Warning>,
    problems: &mut Problems,
) -> Vec<Route> {
    let inputs = Inputs {
        service,
        context,
        limits,
    };
    let of_program: Vec<RawRoute> = context.modules.routes.iter().map(raw_route).collect();
    let mut table: Vec<Entry<'_>> = Vec::new();
    if raw.route.is_empty() {
        table.extend(table::built_in().into_iter().map(|route| Entry {
            route,
            written: None,
            chain: None,
        }));
    }
    for (index, one) in raw.route.iter().enumerate() {
        let written = Written {
            origin: Origin::Table,
            key: format!("route.{index}"),
            raw: one,
        };
        add(written, &mut table, &inputs, problems);
    }
    for one in &of_program {
        let path = one.path.as_ref().map_or("", |at| &at.value);
        let written = Written {
            origin: Origin::Program,
            key: format!("route `{path}` of the program"),
            raw: one,
        };
        // A table in the file is complete; the program adds only absent routes.
        let of_file = table.iter().find(|entry| {
            let written = entry.written.as_ref();
            is_of_path(&entry.route, one)
                && written.is_some_and(|written| written.origin == Origin::Table)
        });
        match of_file.and_then(|entry| entry.written.as_ref()) {
            Some(of_file) => warnings.push(Warning {
                key: of_file.key("chain"),
                message: "is used in place of the program's own route of this path; add the program's filters to it, or remove the table \
                          of routes from the file"
                    .into(),
            }),
            None => change(written, &mut table, &inputs, problems),
        }
    }
    for (index, one) in raw.route_change.iter().enumerate() {
        let written = Written {
            origin: Origin::Change,
            key: format!("route_change.{index}"),
            raw: one,
        };
        change(written, &mut table, &inputs, problems);
    }
    for entry in &table {
        order(entry, context, problems);
    }
    table.into_iter().map(|entry| entry.route).collect()
}

/// Adds a route as written.
fn add<'a>(
    written: Written<'a>,
    table: &mut Vec<Entry<'a>>,
    inputs: &Inputs<'_>,
    problems: &mut Problems,
) {
    let Some(route) = fields::route(&written, None, inputs, problems) else {
        return;
    };
    let same = table.iter().find(|entry| overlaps(&entry.route, &route));
    if let (
        Some(Entry {
            written: Some(first),
            ..
        }),
        Some(at),
    ) = (same, &written.raw.path)
    {
        let message = format_args!(
            "is `{}`, as `{}` already is for the same method; remove one of them",
            at.value, first.key
        );
        problems.note(written.key("path"), at, message);
    }
    table.push(Entry {
        route,
        chain: Some(written.clone()),
        written: Some(written),
    });
}

/// Changes the route of this path and these methods, or adds the route to the table.
fn change<'a>(
    written: Written<'a>,
    table: &mut Vec<Entry<'a>>,
    inputs: &Inputs<'_>,
    problems: &mut Problems,
) {
    let raw = written.raw;
    let methods = raw.methods.as_ref().map(|list| names(&list.value));
    let of_path: Vec<usize> = (0..table.len())
        .filter(|&at| is_of_path(&table[at].route, raw))
        .collect();
    let shares = |at: &&usize| match &methods {
        None => true,
        Some(methods) => table[**at]
            .route
            .methods
            .iter()
            .any(|method| methods.contains(&method.as_str())),
    };
    let matching: Vec<usize> = of_path.iter().filter(shares).copied().collect();
    let [at] = matching[..] else {
        match matching.is_empty() {
            true => add(written, table, inputs, problems),
            false => ambiguous(&written, &matching, table, problems),
        }
        return;
    };
    let entry = &table[at];
    let has_other_methods = methods.as_ref().is_some_and(|methods| {
        methods.len() != entry.route.methods.len()
            || !entry
                .route
                .methods
                .iter()
                .all(|method| methods.contains(&method.as_str()))
    });
    if has_other_methods {
        return ambiguous(&written, &matching, table, problems);
    }
    if let (Some(first), Some(path)) = (&entry.written, &raw.path)
        && first.origin == written.origin
    {
        let message = format_args!(
            "is `{}`, which `{}` already adds or changes; write both as one",
            path.value, first.key
        );
        problems.note(written.key("path"), path, message);
    }
    if let Some(route) = fields::route(&written, Some(&entry.route), inputs, problems) {
        let entry = &mut table[at];
        entry.route = route;
        if raw.chain.is_some() {
            entry.chain = Some(written.clone());
        }
        entry.written = Some(written);
    }
}

/// Notes that a change names neither a single route nor a new route.
fn ambiguous(
    written: &Written<'_>,
    matching: &[usize],
    table: &[Entry<'_>],
    problems: &mut Problems,
) {
    let Some(path) = required(problems, written.key("path"), written.raw.path.as_ref(), "") else {
        return;
    };
    let routes: Vec<String> = matching
        .iter()
        .map(|&at| {
            let methods = &table[at].route.methods;
            let methods: Vec<String> = methods.iter().map(|one| format!("\"{one}\"")).collect();
            format!("`methods = [{}]`", methods.join(", "))
        })
        .collect();
    let message = format_args!(
        "is `{}`, which the table has with {}; name exactly the methods of the route to change, or none that it has",
        path.value,
        routes.join(" and ")
    );
    problems.note(written.key("path"), path, message);
}

/// The filters of a chain must follow their declared order.
fn order(entry: &Entry<'_>, context: &CheckContext<'_>, problems: &mut Problems) {
    let chain: Vec<&str> = entry.route.chain.iter().map(|name| &**name).collect();
    let written = entry.chain.as_ref();
    let places = written.and_then(|written| Some((written, written.raw.chain.as_ref()?)));
    for wrong in misplaced(&chain, &context.modules.filters) {
        let position = wrong.position;
        match places {
            Some((written, list)) => {
                let key = written.key(&format!("chain.{position}"));
                problems.note(key, &list.value[position], wrong.message);
            }
            None => {
                let key = format!("route `{}`.chain.{position}", entry.route.path);
                problems.note_missing(key, wrong.message);
            }
        }
    }
}

fn overlaps(one: &Route, other: &Route) -> bool {
    one.path == other.path
        && one
            .methods
            .iter()
            .any(|method| other.methods.contains(method))
}

fn is_of_path(route: &Route, raw: &RawRoute) -> bool {
    let pattern = raw.path.as_ref().and_then(|at| at.value.parse().ok());
    pattern.is_some_and(|pattern| route.path == pattern)
}

fn names(list: &[At<String>]) -> Vec<&str> {
    list.iter().map(|at| at.value.as_str()).collect()
}

/// A route of the program, as if it were written in the file.
fn raw_route(change: &RouteChange) -> RawRoute {
    let text = |text: &Option<String>| text.clone().map(At::without_span);
    let list = |list: &Option<Vec<String>>| {
        let list = list.as_ref()?;
        Some(At::without_span(
            list.iter().cloned().map(At::without_span).collect(),
        ))
    };
    RawRoute {
        path: Some(At::without_span(change.path.clone())),
        methods: list(&change.methods),
        chain: list(&change.chain),
        body_bytes_max: Number::without_span(change.body_bytes_max),
        scope: text(&change.scope),
        scopes_any: list(&change.scopes_any),
        class: text(&change.class),
        cors: OptionalWord::without_span(change.cors.clone()),
        errors: OptionalWord::without_span(change.errors.clone()),
        ..RawRoute::default()
    }
}

#[cfg(test)]
mod tests;
