//! The route table: path, method, access requirement and handler of every page.

use std::future::Future;
use std::pin::Pin;

use tollgate_filter::Reply;

use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::pages::{
    apps, checkout, consent, credits, docs, keys, overview, plan, sandbox, sign_in, sign_out, usage,
};
use crate::path_pattern::{Params, match_path};

/// Access requirement of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// No session required.
    Public,
    /// A session; requests without a session are redirected to sign-in, and back.
    SignedIn,
    /// A session confirmed by a code in the last minutes. Other sessions are asked for a code and then get the sent form back.
    SignedInRecently,
}

/// The page handler.
pub(crate) type Handler = for<'a> fn(&'a PortalContext, &'a mut PageRequest) -> Answer<'a>;

/// A pending reply.
pub(crate) type Answer<'a> = Pin<Box<dyn Future<Output = Result<Reply, PageError>> + Send + 'a>>;

/// One row of the route table.
pub(crate) struct Route {
    /// `GET` (which answers `HEAD` too) or `POST`.
    pub(crate) method: &'static str,
    /// Path pattern; `{name}` matches one segment.
    pub(crate) path: &'static str,
    /// Access requirement.
    pub(crate) access: Access,
    /// The page handler.
    pub(crate) handler: Handler,
}

macro_rules! routes {
    ($($method:ident $path:literal $access:ident $handler:path;)*) => {
        /// All routes.
        pub(crate) const ROUTES: &[Route] = &[$(Route {
            method: stringify!($method),
            path: $path,
            access: Access::$access,
            handler: |context, request| Box::pin($handler(context, request)),
        },)*];
    };
}

routes! {
    GET  "/"                   SignedIn  overview::show;
    GET  "/sign-up"            Public   sign_in::show_sign_up;
    POST "/sign-up"            Public   sign_in::sign_up;
    GET  "/sign-in"            Public   sign_in::show;
    POST "/sign-in"            Public   sign_in::sign_in;
    GET  "/sign-in/code"       Public   sign_in::code::show;
    POST "/sign-in/code"       Public   sign_in::code::verify;
    POST "/sign-in/code/again" Public   sign_in::code::resend;
    GET  "/confirm"            SignedIn  sign_in::confirm::show;
    POST "/confirm"            SignedIn  sign_in::confirm::send_code;
    POST "/sign-out"           Public   sign_out::sign_out;
    GET  "/sign-out/everywhere" SignedIn sign_out::confirm_everywhere;
    POST "/sign-out/everywhere" SignedIn sign_out::everywhere;
    GET  "/keys"               SignedIn  keys::show;
    GET  "/keys/create"        SignedIn  keys::create::show;
    POST "/keys/create"        SignedInRecently keys::create::create;
    GET  "/keys/{id}/edit"     SignedIn  keys::edit::show;
    POST "/keys/{id}/edit"     SignedInRecently keys::edit::change;
    GET  "/keys/{id}/revoke"   SignedIn  keys::revoke::show;
    POST "/keys/{id}/revoke"   SignedIn  keys::revoke::revoke;
    GET  "/usage"              SignedIn  usage::show;
    GET  "/usage.csv"          SignedIn  usage::file;
    GET  "/credits"            SignedIn  credits::show;
    GET  "/credits/add"        SignedIn  credits::add::show;
    POST "/credits/add"        SignedInRecently credits::add::order;
    GET  "/credits/add/{id}"   SignedIn  credits::order::show;
    GET  "/plan"               SignedIn  plan::show;
    GET  "/plan/begin"         SignedIn  plan::begin::show;
    POST "/plan/begin"         SignedInRecently plan::begin::begin;
    GET  "/plan/back/{id}"     SignedIn  plan::approval::show;
    GET  "/plan/cancel"        SignedIn  plan::cancel::confirm;
    POST "/plan/cancel"        SignedIn  plan::cancel::cancel;
    GET  "/plan/resume"        SignedIn  plan::resume::confirm;
    POST "/plan/resume"        SignedInRecently plan::resume::resume;
    GET  "/sandbox"            SignedIn  sandbox::show;
    POST "/sandbox"            SignedIn  sandbox::submit;
    POST "/sandbox/token"      SignedIn  sandbox::token;
    GET  "/docs"               Public   docs::first;
    GET  "/docs/{chapter}"     Public   docs::chapter;
    GET  "/consent/{id}"       SignedIn  consent::show;
    POST "/consent/{id}"       SignedIn  consent::decide;
    POST "/consent/{id}/account" SignedIn consent::change_account;
    GET  "/commerce/continue/{id}" SignedIn checkout::show;
    POST "/commerce/continue/{id}" SignedInRecently checkout::agree;
    GET  "/apps"               SignedIn  apps::show;
    GET  "/apps/{id}/remove"   SignedIn  apps::confirm;
    POST "/apps/{id}/remove"   SignedIn  apps::remove;
}

/// Result of a route lookup.
pub(crate) enum RouteMatch {
    /// A route.
    Found(&'static Route, Params),
    /// The path exists for other methods only; the value of `Allow`.
    MethodNotAllowed(String),
    /// No such path.
    NotFound,
}

/// Looks up a route. `HEAD` matches `GET` routes.
pub(crate) fn find(method: &str, path: &str) -> RouteMatch {
    let method = if method == "HEAD" { "GET" } else { method };
    let mut others = Vec::new();
    for route in ROUTES {
        if let Some(params) = match_path(route.path, path) {
            if route.method == method {
                return RouteMatch::Found(route, params);
            }
            others.push(route.method);
            if route.method == "GET" {
                others.push("HEAD");
            }
        }
    }
    match others.is_empty() {
        true => RouteMatch::NotFound,
        false => RouteMatch::MethodNotAllowed(others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_unique() {
        let mut seen = BTreeSet::new();
        for route in ROUTES {
            assert!(
                seen.insert((route.method, route.path)),
                "{} {}",
                route.method,
                route.path
            );
        }
    }

    #[test]
    fn every_confirmed_post_has_a_form_page() {
        for route in ROUTES
            .iter()
            .filter(|route| route.access == Access::SignedInRecently)
        {
            let page = find("GET", route.path);
            assert!(
                matches!(page, RouteMatch::Found(..)),
                "{} has no page to come back to",
                route.path
            );
        }
    }
}
