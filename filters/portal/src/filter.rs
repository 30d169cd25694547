//! The filter `portal`: routing, access control, CSRF protection, and the page handlers.

use std::sync::Arc;

use http::Method;
use http::header::CONTENT_TYPE;
use tollgate_filter::{
    Body, Contract, Exchange, FailureMode, Filter, Outcome, Phase, Phases, Reply, Request, Step,
};
use tollgate_identity::session::keep_draft;
use tollgate_store::Draft;

use crate::context::{PortalContext, PortalDeps, PortalSettings};
use crate::origin;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::return_path::ReturnPath;
use crate::routes::{Access, Route, RouteMatch, find};

/// Maximum size of a form, in bytes.
const FORM_BYTES: usize = 64 * 1024;

/// A larger form is not stored as a draft while its sender confirms their identity or signs in.
const DRAFT_BYTES: usize = 16 * 1024;

const ASSETS: &str = "/assets/";

/// Serves the dashboard pages.
pub struct Portal {
    context: Arc<PortalContext>,
}

impl Portal {
    /// Creates the filter.
    pub fn new(deps: PortalDeps) -> Portal {
        Portal {
            context: Arc::new(PortalContext::new(deps)),
        }
    }

    /// This filter with other settings and otherwise shared state.
    pub(crate) fn with_settings(&self, settings: PortalSettings) -> Portal {
        Portal {
            context: Arc::new(self.context.with_settings(settings)),
        }
    }
}

impl Filter for Portal {
    fn name(&self) -> &'static str {
        "portal"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phases::from(Phase::Request),
            body: Body::Bytes {
                bytes_max: FORM_BYTES,
            },
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let request = &exchange.request;
        let context = &*self.context;
        if let Some(file) = request.path.strip_prefix(ASSETS) {
            let reply = match context.renderer.asset(file) {
                Some(file) => file.reply(request),
                None => error_page(context, request, &PageError::NotFound),
            };
            return Step::now(Outcome::reply(reply));
        }
        Step::later(async move {
            let reply = match handle(context, request).await {
                Ok(reply) => reply,
                Err(error) => error_page(context, request, &error),
            };
            Ok(Outcome::reply(reply))
        })
    }
}

fn error_page(context: &PortalContext, request: &Request, error: &PageError) -> Reply {
    error.page(&context.renderer, &request.id.to_string())
}

async fn handle(context: &PortalContext, request: &Request) -> Result<Reply, PageError> {
    let (route, params) = match find(request.method.as_str(), &request.path) {
        RouteMatch::Found(route, params) => (route, params),
        RouteMatch::MethodNotAllowed(allow) => return Err(PageError::MethodNotAllowed(allow)),
        RouteMatch::NotFound => return Err(PageError::NotFound),
    };
    if request.method == Method::POST {
        if !is_form(request) {
            return Err(PageError::NotAForm);
        }
        if !origin::is_same_origin(&request.headers, &context.origins) {
            return Err(PageError::CrossOrigin);
        }
    }
    let mut page_request = PageRequest::open(context, request, params).await?;
    if page_request.method == Method::POST
        && !page_request.has_valid_form_token(context)
        && !is_kept_only(&page_request, route, request)
    {
        return Err(PageError::InvalidFormToken);
    }
    let mut reply = match require_access(context, &page_request, route, request).await? {
        Some(reply) => reply,
        None => (route.handler)(context, &mut page_request).await?,
    };
    page_request.write_cookie(context, &mut reply.headers);
    Ok(context.public_pages.reply(reply, request))
}

/// Whether a form without a token of this browser may be kept for the sender, who then sees the filled form and decides. Two conditions:
/// the session has ended, and the browser reports a page of ours as the source. The token belonged to the session.
fn is_kept_only(page_request: &PageRequest, route: &Route, request: &Request) -> bool {
    page_request.session.is_none()
        && route.access != Access::Public
        && origin::is_stated(&request.headers)
}

/// The redirect for a request without the access required by its page: to sign-in, or to confirmation.
async fn require_access(
    context: &PortalContext,
    page_request: &PageRequest,
    route: &Route,
    request: &Request,
) -> Result<Option<Reply>, PageError> {
    if route.access == Access::Public {
        return Ok(None);
    }
    let here = match (&page_request.method, request.query.as_deref()) {
        (&Method::GET, Some(query)) => ReturnPath::read(&format!("{}?{query}", page_request.path)),
        _ => ReturnPath::read(&page_request.path),
    };
    let Some(session) = &page_request.session else {
        if let Some(draft) = draft(page_request, request) {
            context
                .drafts
                .keep(page_request.browser(), draft, page_request.now);
        }
        return Ok(Some(
            page_request.redirect(context, &here.append_to("/sign-in")),
        ));
    };
    if route.access == Access::SignedIn || session.is_recent(page_request.now) {
        return Ok(None);
    }
    if let Some(draft) = draft(page_request, request) {
        keep_draft(&context.store, session.digest, Some(draft)).await?;
    }
    Ok(Some(
        page_request.redirect(context, &here.append_to("/confirm")),
    ))
}

/// The typed fields of a form with a page to return to; `None` if too large.
fn draft(page_request: &PageRequest, request: &Request) -> Option<Draft> {
    let has_page = matches!(find("GET", &page_request.path), RouteMatch::Found(..));
    let is_kept =
        page_request.method == Method::POST && has_page && request.body.len() <= DRAFT_BYTES;
    is_kept.then(|| Draft {
        path: page_request.path.clone(),
        form: page_request.form.write_without("csrf"),
    })
}

/// Whether the body has the content type of a browser form.
fn is_form(request: &Request) -> bool {
    let kind = request.headers.get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}
