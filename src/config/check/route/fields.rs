//! The values of a route, or of a change of a route. In a change, the changed route supplies the absent values.

use std::sync::Arc;

use http::Method;
use tollgate_filter::settings::{At, Problems, words};
use tollgate_filter::{RequiredAccess, Scope, Scopes};
use tollgate_module::FilterType;
use tollgate_rate_limit::Limits;

use super::{BODY_BYTES, Inputs, Written, lifecycle};
use crate::config::check::values::{CheckContext, required, word};
use crate::config::settings::Route;

const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// The route as written; `base`, the changed route, supplies the absent values.
pub(super) fn route(
    written: &Written<'_>,
    base: Option<&Route>,
    inputs: &Inputs<'_>,
    problems: &mut Problems,
) -> Option<Route> {
    let raw = written.raw;
    let path = required(
        problems,
        written.key("path"),
        raw.path.as_ref(),
        "`path = \"/v1/models\"`",
    );
    let pattern = path.and_then(|at| problems.parse(written.key("path"), at));
    let methods = match (base, &raw.methods) {
        (Some(base), None) => base.methods.clone(),
        _ => methods(written, problems),
    };
    let chain = match (base, &raw.chain) {
        (Some(base), None) => base.chain.clone(),
        _ => chain(written, inputs.context, problems),
    };
    let access = access(written, base, &chain, problems);
    let errors = raw.errors.check(written.key("errors"), problems);
    let cors = raw.cors.check(written.key("cors"), problems);
    let body = raw
        .body_bytes_max
        .check(written.key("body_bytes_max"), problems);
    let class = class(written, inputs.limits, problems);
    let base_url = inputs.service.base_url.as_str();
    let former = base.and_then(|base| base.lifecycle.as_ref());
    let lifecycle = lifecycle::lifecycle(written, former, base_url, problems);
    Some(Route {
        path: pattern?,
        methods,
        body_bytes_max: body.map_or_else(
            || base.map_or(BODY_BYTES, |base| base.body_bytes_max),
            |bytes| bytes as usize,
        ),
        chain,
        errors: errors.or(base.map(|base| base.errors)).unwrap_or_default(),
        access,
        class: class.or_else(|| base?.class.clone()),
        cors: cors.or(base.map(|base| base.cors)).unwrap_or_default(),
        lifecycle,
    })
}

fn methods(written: &Written<'_>, problems: &mut Problems) -> Vec<Method> {
    let key = written.key("methods");
    let list = required(
        problems,
        &key,
        written.raw.methods.as_ref(),
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
    written: &Written<'_>,
    context: &CheckContext<'_>,
    problems: &mut Problems,
) -> Vec<Arc<str>> {
    let key = written.key("chain");
    let list = required(
        problems,
        &key,
        written.raw.chain.as_ref(),
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
    let filters: Vec<&str> = context
        .modules
        .filters
        .iter()
        .map(FilterType::name)
        .collect();
    for (number, at) in list.value.iter().enumerate() {
        let key = format!("{key}.{number}");
        if !filters.contains(&at.value.as_str()) {
            problems.note(
                key,
                at,
                format_args!(
                    "is `{}`, which is not a filter; use {}",
                    at.value,
                    words(&filters)
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

/// The filter `auth` checks a credential's scope, so a scope requires `auth`: otherwise the scope would not be enforced.
fn access(
    written: &Written<'_>,
    base: Option<&Route>,
    chain: &[Arc<str>],
    problems: &mut Problems,
) -> Option<RequiredAccess> {
    let (raw, key) = (written.raw, |name: &str| written.key(name));
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
            let former = base.and_then(|base| base.access);
            if former.is_some() {
                return former.filter(|_| has_auth);
            }
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
    written: &Written<'_>,
    limits: Option<&Limits>,
    problems: &mut Problems,
) -> Option<Arc<str>> {
    let at = written.raw.class.as_ref()?;
    let limits = limits?;
    let found = limits.class(&at.value);
    if found.is_none() {
        let known: Vec<&str> = limits.classes().iter().map(|class| &*class.name).collect();
        problems.note(
            written.key("class"),
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
