//! A page request: path parameters, form, session and CSRF token.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, Method, StatusCode};
use tollgate_clock::Timestamp;
use tollgate_filter::{ClientAddress, Reply, Request};
use tollgate_identity::signin::{CodeSource, KNOWN_SOURCE_LIFE};
use tollgate_identity::{Session, SessionValue, session};
use tollgate_money::Micros;
use tollgate_pages::{Page, Viewer};
use tollgate_store::{SubscriptionRow, reading};

use crate::context::PortalContext;
use crate::cookie;
use crate::form::Form;
use crate::page_error::PageError;
use crate::pages::plan::status;
use crate::path_pattern::Params;
use crate::return_path::ReturnPath;

/// One request for a page.
pub(crate) struct PageRequest {
    /// The method; `GET` for `HEAD`.
    pub(crate) method: Method,
    /// The request path.
    pub(crate) path: String,
    /// The path parameters.
    pub(crate) params: Params,
    pub(crate) query: Form,
    /// The form; empty for `GET`. Its CSRF token has been checked.
    pub(crate) form: Form,
    pub(crate) client: ClientAddress,
    /// The request id, as error pages show it.
    pub(crate) request_id: String,
    /// When it arrived.
    pub(crate) now: Timestamp,
    /// The session, if signed in.
    pub(crate) session: Option<Session>,
    /// The subscription of the session's account.
    subscription: Option<SubscriptionRow>,
    /// The cookie value of the browser, or the value to be set by this reply.
    browser: SessionValue,
    /// Whether the reply must set the cookie.
    set_cookie: AtomicBool,
    /// The mark of the browser, whether already present, and whether the reply must set the mark.
    mark: SessionValue,
    has_mark: bool,
    set_mark: bool,
}

impl PageRequest {
    /// Parses the request and loads its session. The form is not trusted yet.
    pub(crate) async fn open(
        context: &PortalContext,
        request: &Request,
        params: Params,
    ) -> Result<PageRequest, PageError> {
        let now = context.now();
        let sent = cookie::read(&request.headers, &context.cookie);
        let session = match &sent {
            Some(value) => session::session(&context.store, value, now).await?,
            None => None,
        };
        let mut subscription = None;
        if let Some(session) = &session {
            // Pages show the account's balance, and a failed payment of the plan.
            let account = session.account;
            let loaded = context.ledger.load(account).await;
            loaded.map_err(|error| PageError::Store(Box::new(error)))?;
            subscription =
                reading(&context.store, move |store| store.subscription(account)).await?;
        }
        let browser = sent.unwrap_or_else(|| SessionValue::draw(context.draw()));
        let mark = cookie::read(&request.headers, &context.mark_cookie);
        let query = request.query.as_deref().unwrap_or("");
        Ok(PageRequest {
            method: match request.method {
                Method::HEAD => Method::GET,
                ref other => other.clone(),
            },
            path: request.path.to_string(),
            params,
            query: Form::read(query.as_bytes()),
            form: Form::read(&request.body),
            client: request.client,
            request_id: request.id.to_string(),
            now,
            session,
            subscription,
            browser,
            set_cookie: AtomicBool::new(false),
            set_mark: false,
            has_mark: mark.is_some(),
            mark: mark.unwrap_or_else(|| SessionValue::draw(context.draw())),
        })
    }

    /// The cookie value, which codes are bound to.
    pub(crate) fn browser(&self) -> &SessionValue {
        // A value that something is bound to has to be kept by the browser.
        self.set_cookie.store(true, Ordering::Relaxed);
        &self.browser
    }

    /// The source of a request for a code, or of a typed code.
    pub(crate) fn source(&self) -> CodeSource<'_> {
        CodeSource {
            network: self.client.limited(),
            mark: Some(&self.mark),
        }
    }

    /// The CSRF token for every form on the page.
    pub(crate) fn csrf(&self, context: &PortalContext) -> String {
        context.signin.keys().form_token(self.browser())
    }

    /// Whether the form carries the CSRF token of this browser.
    pub(crate) fn has_valid_form_token(&self, context: &PortalContext) -> bool {
        let token = self.form.text("csrf");
        context.signin.keys().is_form_token(&self.browser, token)
    }

    /// Replaces the cookie value: at sign-in, sign-out and confirmation.
    pub(crate) fn rotate_session(&mut self, value: SessionValue) {
        self.browser = value;
        self.set_cookie.store(true, Ordering::Relaxed);
    }

    /// Has the browser keep its mark, at the first sign-in.
    pub(crate) fn keep_mark(&mut self) {
        self.set_mark = !self.has_mark;
    }

    /// The session, on pages with a required session.
    pub(crate) fn require_session(&self) -> Result<&Session, PageError> {
        // The route table requires a session, so a missing session is an error in the table.
        self.session.as_ref().ok_or(PageError::NotFound)
    }

    /// Account data for the frame of the dashboard.
    pub(crate) fn viewer(&self, context: &PortalContext) -> Result<Viewer, PageError> {
        let session = self.require_session()?;
        let available = context.ledger.available(session.account);
        Ok(Viewer {
            address: session.address.to_string(),
            available: available.unwrap_or(Micros::ZERO),
            sells_credits: context.sells_credits(),
            csrf: self.csrf(context),
            notice: status::notice(context.plans.plan(), self.subscription.as_ref(), self.now),
        })
    }

    pub(crate) fn return_path(&self) -> ReturnPath {
        let next = self.form.find("next").or(self.query.find("next"));
        ReturnPath::read(next.unwrap_or("/"))
    }

    /// The form stored before the identity check or after the session had ended; consumed by this call.
    pub(crate) async fn take_draft(
        &self,
        context: &PortalContext,
    ) -> Result<Option<Form>, PageError> {
        let Some(session) = &self.session else {
            return Ok(None);
        };
        let Some(draft) = session
            .draft
            .as_ref()
            .filter(|draft| draft.path == self.path)
        else {
            return Ok(None);
        };
        session::keep_draft(&context.store, session.digest, None).await?;
        Ok(Some(Form::read(draft.form.as_bytes())))
    }

    /// A page with status 200.
    pub(crate) fn page(&self, context: &PortalContext, page: &Page) -> Reply {
        context.renderer.reply(StatusCode::OK, page)
    }

    /// A page with status 422: the form with its problems and the values entered.
    pub(crate) fn refused(&self, context: &PortalContext, page: Page) -> Reply {
        let page = page.with_error_title();
        context
            .renderer
            .reply(StatusCode::UNPROCESSABLE_ENTITY, &page)
    }

    /// A redirect (303).
    pub(crate) fn redirect(&self, context: &PortalContext, address: &str) -> Reply {
        context.renderer.see_other(address)
    }

    /// Adds `Set-Cookie` if needed by this reply.
    pub(crate) fn write_cookie(&self, context: &PortalContext, headers: &mut HeaderMap) {
        if self.set_cookie.load(Ordering::Relaxed) {
            cookie::set(headers, &context.cookie, &self.browser, session::LIFE);
        }
        if self.set_mark {
            cookie::set(headers, &context.mark_cookie, &self.mark, KNOWN_SOURCE_LIFE);
        }
    }
}
