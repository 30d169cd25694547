//! `/confirm`: identity check with a new code before a key is created or a payment is made, for sessions that signed in a while ago.

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::{Login, Session};
use tollgate_pages::{Page, format, parts};
use tollgate_store::{CodePurpose, LoginKind};

use super::{next_field, send, throttled, too_many};
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

/// `GET /confirm`
pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let page = form(context, request, request.require_session()?, &[]);
    Ok(request.page(context, &page))
}

/// `POST /confirm`
pub(crate) async fn send_code(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let session = request.require_session()?;
    let login = match session.kind {
        LoginKind::Phone => Login::phone(&session.address),
        _ => Login::email(&session.address),
    };
    let login = login.map_err(|error| PageError::Internal(Box::new(error)))?;
    match send(context, request, &login, CodePurpose::Confirm).await? {
        None => Ok(request.redirect(context, &request.return_path().append_to("/sign-in/code"))),
        Some(wait) => {
            let problem = parts::Problem::new("send", too_many(wait));
            let page = form(context, request, session, &[problem]);
            Ok(throttled(context, page, wait))
        }
    }
}

fn form(
    context: &PortalContext,
    request: &PageRequest,
    session: &Session,
    problems: &[parts::Problem],
) -> Page {
    let content = html! {
        (parts::problems(problems))
        h1 { "Confirm it is you" }
        p.second {
            "You signed in a while ago. Before you create a key or pay, we send a code to "
            b { (format::single_line(&session.address)) } "."
        }
        form.stack method="post" action="/confirm" {
            (parts::csrf(&request.csrf(context)))
            (next_field(&request.return_path()))
            button.button.filled #send type="submit" { "Send code" }
        }
        p.rule { a href="/" { "Go to the overview" } }
    };
    Page::card("Confirm it is you", content)
}
