//! The filter: finds the page, lets in who may, and answers.

use std::sync::Arc;

use http::Method;
use http::header::CONTENT_TYPE;
use tollgate_filter::{
    Body, Contract, Exchange, FailureMode, Filter, Outcome, Phase, Phases, Reply, Request, Step,
};
use tollgate_identity::session::keep_draft;
use tollgate_store::Draft;

use crate::house::{House, Parts};
use crate::next::Next;
use crate::origin;
use crate::routes::{Access, Found, Row, find};
use crate::trouble::Trouble;
use crate::visit::Visit;

/// Bytes of a form.
const FORM_BYTES: usize = 64 * 1024;

/// A form of more bytes is not kept until its sender has confirmed who they are.
const DRAFT_BYTES: usize = 16 * 1024;

const ASSETS: &str = "/assets/";

/// Answers with pages.
pub struct Portal {
    house: Arc<House>,
}

impl Portal {
    /// The pages of one gateway.
    pub fn new(parts: Parts) -> Portal {
        Portal {
            house: Arc::new(House::new(parts)),
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
        let house = &*self.house;
        if let Some(file) = request.path.strip_prefix(ASSETS) {
            let file = house.look.asset(file);
            let reply = file.unwrap_or_else(|| trouble(house, request, &Trouble::NotFound));
            return Step::now(Outcome::reply(reply));
        }
        Step::later(async move {
            let reply = match answer(house, request).await {
                Ok(reply) => reply,
                Err(why) => trouble(house, request, &why),
            };
            Ok(Outcome::reply(reply))
        })
    }
}

fn trouble(house: &House, request: &Request, why: &Trouble) -> Reply {
    why.page(&house.look, &request.id.to_string())
}

async fn answer(house: &House, request: &Request) -> Result<Reply, Trouble> {
    let (row, params) = match find(request.method.as_str(), &request.path) {
        Found::Row(row, params) => (row, params),
        Found::OtherMethods(allow) => return Err(Trouble::Method(allow)),
        Found::Nothing => return Err(Trouble::NotFound),
    };
    if request.method == Method::POST {
        if !is_form(request) {
            return Err(Trouble::NoForm);
        }
        if !origin::is_ours(&request.headers, &house.origins) {
            return Err(Trouble::Forged);
        }
    }
    let mut visit = Visit::open(house, request, params).await?;
    if visit.method == Method::POST && !visit.is_token_ours(house) {
        return Err(Trouble::Stale);
    }
    let mut reply = match stop(house, &visit, row, request).await? {
        Some(reply) => reply,
        None => (row.handler)(house, &mut visit).await?,
    };
    visit.close(house, &mut reply.headers);
    Ok(reply)
}

/// Where somebody is led who may not use a page yet.
async fn stop(
    house: &House,
    visit: &Visit,
    row: &Row,
    request: &Request,
) -> Result<Option<Reply>, Trouble> {
    if row.access == Access::Anybody {
        return Ok(None);
    }
    let here = match (&visit.method, request.query.as_deref()) {
        (&Method::GET, Some(query)) => Next::read(&format!("{}?{query}", visit.path)),
        _ => Next::read(&visit.path),
    };
    let Some(session) = &visit.session else {
        return Ok(Some(visit.go(house, &here.after("/sign-in"))));
    };
    if row.access == Access::SignedIn || session.is_recent(visit.now) {
        return Ok(None);
    }
    if visit.method == Method::POST && request.body.len() <= DRAFT_BYTES {
        let draft = Draft {
            path: visit.path.clone(),
            form: visit.form.write_without("csrf"),
        };
        keep_draft(&house.store, session, Some(draft)).await?;
    }
    Ok(Some(visit.go(house, &here.after("/confirm"))))
}

/// Whether the body is what a browser makes of a form.
fn is_form(request: &Request) -> bool {
    let kind = request.headers.get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
    let kind = kind.split(';').next().unwrap_or("").trim();
    kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}
