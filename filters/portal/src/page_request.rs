//! One request for a page, and who sent it.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, Method, StatusCode};
use tollgate_filter::{ClientAddress, Reply, Request};
use tollgate_identity::{Session, SessionValue, session};
use tollgate_money::Micros;
use tollgate_pages::{Page, Viewer};

use crate::context::PortalContext;
use crate::cookie;
use crate::form::Form;
use crate::page_error::PageError;
use crate::return_path::ReturnPath;
use crate::routes::Params;

/// One request for a page.
pub(crate) struct PageRequest {
    /// The method; `GET` for a `HEAD`.
    pub(crate) method: Method,
    /// The path, as it was sent.
    pub(crate) path: String,
    /// What the path's pattern leaves open.
    pub(crate) params: Params,
    /// The query.
    pub(crate) query: Form,
    /// The form; empty for a `GET`. Its token has been checked.
    pub(crate) form: Form,
    /// The sender's address.
    pub(crate) client: ClientAddress,
    /// The id of the request, as people may quote it.
    pub(crate) request_id: String,
    /// Unix microseconds.
    pub(crate) now: i64,
    /// Who is signed in.
    pub(crate) session: Option<Session>,
    /// What the browser holds, or will hold after this answer.
    browser: SessionValue,
    /// The browser has to be given its value.
    set_cookie: AtomicBool,
}

impl PageRequest {
    /// Looks at who asks. The form is read, and not yet trusted.
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
        let browser = sent.unwrap_or_else(|| SessionValue::draw(context.draw()));
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
            browser,
            set_cookie: AtomicBool::new(false),
        })
    }

    /// What the browser holds: what its codes are bound to.
    pub(crate) fn browser(&self) -> &SessionValue {
        // Whoever binds something to it needs the browser to keep it.
        self.set_cookie.store(true, Ordering::Relaxed);
        &self.browser
    }

    /// The token for every form of the answer.
    pub(crate) fn csrf(&self, context: &PortalContext) -> String {
        context.signin.keys().form_token(self.browser())
    }

    /// Whether the form has the token of this browser.
    pub(crate) fn has_valid_form_token(&self, context: &PortalContext) -> bool {
        let token = self.form.text("csrf");
        context.signin.keys().is_form_token(&self.browser, token)
    }

    /// From here on the browser holds another value: at sign-in, at sign-out, and when somebody has confirmed who they are.
    pub(crate) fn rotate_session(&mut self, value: SessionValue) {
        self.browser = value;
        self.set_cookie.store(true, Ordering::Relaxed);
    }

    /// Who is signed in, on pages that nobody else is shown.
    pub(crate) fn require_session(&self) -> Result<&Session, PageError> {
        // The table of routes let them in, so this is a mistake in the table.
        self.session.as_ref().ok_or(PageError::NotFound)
    }

    /// What the frame of the dashboard shows of them.
    pub(crate) fn viewer(&self, context: &PortalContext) -> Result<Viewer, PageError> {
        let session = self.require_session()?;
        let available = context.ledger.available(session.account);
        Ok(Viewer {
            address: session.address.to_string(),
            available: available.unwrap_or(Micros::ZERO),
            csrf: self.csrf(context),
        })
    }

    /// Where they wanted to go.
    pub(crate) fn return_path(&self) -> ReturnPath {
        let next = self.form.find("next").or(self.query.find("next"));
        ReturnPath::read(next.unwrap_or("/"))
    }

    /// The fields of a form that waited until its sender had confirmed who they are; taken once.
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
        session::keep_draft(&context.store, session, None).await?;
        Ok(Some(Form::read(draft.form.as_bytes())))
    }

    /// A page as the answer.
    pub(crate) fn page(&self, context: &PortalContext, page: &Page) -> Reply {
        context.look.reply(StatusCode::OK, page)
    }

    /// A form that was refused, with what was typed.
    pub(crate) fn refused(&self, context: &PortalContext, page: Page) -> Reply {
        let page = page.refused();
        context.look.reply(StatusCode::UNPROCESSABLE_ENTITY, &page)
    }

    /// Another page as the answer.
    pub(crate) fn redirect(&self, context: &PortalContext, address: &str) -> Reply {
        context.look.see_other(address)
    }

    /// Gives the browser its value, where this answer needs it to hold one.
    pub(crate) fn write_cookie(&self, context: &PortalContext, headers: &mut HeaderMap) {
        if self.set_cookie.load(Ordering::Relaxed) {
            cookie::set(headers, &context.cookie, &self.browser);
        }
    }
}
