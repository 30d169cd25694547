//! `/sign-out`, and `/sign-out/everywhere`.

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::{SessionValue, session};
use tollgate_pages::{Page, format, parts};

use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

const APPS: &str = "apps";

/// Ends the session. The browser gets a new value, so that nothing it kept is worth anything.
pub(crate) async fn sign_out(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    // The session first: after it nothing new is given to it.
    session::end_session(&context.store, request.browser()).await?;
    if let Some(session) = &request.session {
        context
            .sandbox
            .end(context, session.lineage(), request.now)
            .await?;
    }
    request.rotate_session(SessionValue::draw(context.draw()));
    Ok(request.redirect(context, "/sign-in?out=1"))
}

/// `GET /sign-out/everywhere`
pub(crate) async fn confirm_everywhere(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let session = request.require_session()?;
    let content = html! {
        h1 { "Sign out everywhere?" }
        p.second {
            "Every browser that is signed in as " b { (format::line(&session.address)) }
            " is signed out at once, this one too. API keys go on working: revoke those you do not trust."
        }
        form.stack method="post" action="/sign-out/everywhere" {
            (parts::csrf(&request.csrf(context)))
            div.option {
                input type="checkbox" id=(APPS) name=(APPS) value="yes" aria-describedby="apps-more";
                div {
                    label for=(APPS) { "Remove access of all connected apps too" }
                    div.more id="apps-more" { "They are refused from their next request, and have to ask again." }
                }
            }
            div.actions {
                (parts::destroy("Sign out everywhere"))
                (parts::link_button("/", "Stay signed in", false))
            }
        }
    };
    Ok(request.page(context, &Page::solo("Sign out everywhere?", content)))
}

/// `POST /sign-out/everywhere`
pub(crate) async fn everywhere(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let account = request.require_session()?.account;
    // The sessions first: after them nothing can be given that would outlast what is taken here.
    match request.form.find(APPS) {
        Some(_) => session::end_sessions_and_apps(&context.store, account, request.now).await?,
        None => session::end_sessions(&context.store, account).await?,
    }
    context
        .sandbox
        .end_all(context, account, request.now)
        .await?;
    tracing::info!(%account, request = request.request_id, "somebody signed out everywhere");
    request.rotate_session(SessionValue::draw(context.draw()));
    Ok(request.redirect(context, "/sign-in?out=1"))
}
