//! One request for a page, and who sent it.

use std::sync::atomic::{AtomicBool, Ordering};

use http::{HeaderMap, Method, StatusCode};
use tollgate_filter::{ClientAddress, Reply, Request};
use tollgate_identity::{Session, SessionValue, session};
use tollgate_money::Micros;
use tollgate_pages::{Page, Viewer};

use crate::cookie;
use crate::form::Form;
use crate::house::House;
use crate::next::Next;
use crate::routes::Params;
use crate::trouble::Trouble;

/// One request for a page.
pub(crate) struct Visit {
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
    pub(crate) request: String,
    /// Unix microseconds.
    pub(crate) now: i64,
    /// Who is signed in.
    pub(crate) session: Option<Session>,
    /// What the browser holds, or will hold after this answer.
    browser: SessionValue,
    /// The browser has to be given its value.
    give: AtomicBool,
}

impl Visit {
    /// Looks at who asks. The form is read, and not yet trusted.
    pub(crate) async fn open(
        house: &House,
        request: &Request,
        params: Params,
    ) -> Result<Visit, Trouble> {
        let now = house.now();
        let held = cookie::read(&request.headers, &house.cookie);
        let session = match &held {
            Some(value) => session::session(&house.store, value, now).await?,
            None => None,
        };
        let browser = held.unwrap_or_else(|| SessionValue::draw(house.draw()));
        let query = request.query.as_deref().unwrap_or("");
        Ok(Visit {
            method: match request.method {
                Method::HEAD => Method::GET,
                ref other => other.clone(),
            },
            path: request.path.to_string(),
            params,
            query: Form::read(query.as_bytes()),
            form: Form::read(&request.body),
            client: request.client,
            request: request.id.to_string(),
            now,
            session,
            browser,
            give: AtomicBool::new(false),
        })
    }

    /// What the browser holds: what its codes are bound to.
    pub(crate) fn browser(&self) -> &SessionValue {
        // Whoever binds something to it needs the browser to keep it.
        self.give.store(true, Ordering::Relaxed);
        &self.browser
    }

    /// The token for every form of the answer.
    pub(crate) fn csrf(&self, house: &House) -> String {
        house.signin.keys().form_token(self.browser())
    }

    /// Whether the form has the token of this browser.
    pub(crate) fn is_token_ours(&self, house: &House) -> bool {
        let token = self.form.text("csrf");
        house.signin.keys().is_form_token(&self.browser, token)
    }

    /// From here on the browser holds another value: at sign-in, at sign-out, and when somebody has confirmed who they are.
    pub(crate) fn renew(&mut self, value: SessionValue) {
        self.browser = value;
        self.give.store(true, Ordering::Relaxed);
    }

    /// Who is signed in, on pages that nobody else is shown.
    pub(crate) fn signed_in(&self) -> Result<&Session, Trouble> {
        // The table of routes let them in, so this is a mistake in the table.
        self.session.as_ref().ok_or(Trouble::NotFound)
    }

    /// What the frame of the dashboard shows of them.
    pub(crate) fn viewer(&self, house: &House) -> Result<Viewer, Trouble> {
        let session = self.signed_in()?;
        let available = house.ledger.available(session.account);
        Ok(Viewer {
            address: session.address.to_string(),
            available: available.unwrap_or(Micros::ZERO),
            csrf: self.csrf(house),
        })
    }

    /// Where they wanted to go.
    pub(crate) fn next(&self) -> Next {
        let next = self.form.find("next").or(self.query.find("next"));
        Next::read(next.unwrap_or("/"))
    }

    /// The fields of a form that waited until its sender had confirmed who they are; taken once.
    pub(crate) async fn draft(&self, house: &House) -> Result<Option<Form>, Trouble> {
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
        session::keep_draft(&house.store, session, None).await?;
        Ok(Some(Form::read(draft.form.as_bytes())))
    }

    /// A page as the answer.
    pub(crate) fn page(&self, house: &House, page: &Page) -> Reply {
        house.look.reply(StatusCode::OK, page)
    }

    /// A form that was refused, with what was typed.
    pub(crate) fn refused(&self, house: &House, page: Page) -> Reply {
        let page = page.refused();
        house.look.reply(StatusCode::UNPROCESSABLE_ENTITY, &page)
    }

    /// Another page as the answer.
    pub(crate) fn go(&self, house: &House, address: &str) -> Reply {
        house.look.see_other(address)
    }

    /// Gives the browser its value, where this answer needs it to hold one.
    pub(crate) fn close(&self, house: &House, headers: &mut HeaderMap) {
        if self.give.load(Ordering::Relaxed) {
            cookie::set(headers, &house.cookie, &self.browser);
        }
    }
}
