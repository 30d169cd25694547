//! `/sign-out`: ends the session; `/sign-out/everywhere`: ends all sessions of the account.

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::{SessionValue, session};
use tollgate_pages::{Page, format, parts};

use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::pages::sandbox::tokens;

const APPS: &str = "apps";

/// `POST /sign-out`
pub(crate) async fn sign_out(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    end(context, request).await?;
    Ok(request.redirect(context, "/sign-in?out=1"))
}

/// Ends the session and rotates the cookie value, so that copies of the old value are useless.
pub(super) async fn end(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<(), PageError> {
    // The session first: an ended session is issued no further tokens.
    session::end_session(&context.store, request.browser()).await?;
    if let Some(session) = &request.session {
        tokens::end(context, session.account, Some(session), request.now).await?;
    }
    request.rotate_session(SessionValue::draw(context.draw()));
    Ok(())
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
            "Every browser that is signed in as " b { (format::single_line(&session.address)) }
            " is signed out at once, including this one. API keys keep working: revoke those you do not trust."
        }
        form.stack method="post" action="/sign-out/everywhere" {
            (parts::csrf(&request.csrf(context)))
            div.option {
                input type="checkbox" id=(APPS) name=(APPS) value="yes" aria-describedby="apps-more";
                div {
                    label for=(APPS) { "Remove access of all connected apps too" }
                    div.more id="apps-more" { "They are refused from their next request and must ask for access again." }
                }
            }
            div.actions {
                (parts::destroy("Sign out everywhere"))
                (parts::link_button("/", "Stay signed in", false))
            }
        }
    };
    Ok(request.page(context, &Page::card("Sign out everywhere?", content)))
}

/// `POST /sign-out/everywhere`
pub(crate) async fn everywhere(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let account = request.require_session()?.account;
    // The sessions first: an ended session gets no tokens that would outlive this revocation.
    match request.form.find(APPS) {
        Some(_) => session::end_sessions_and_apps(&context.store, account, request.now).await?,
        None => session::end_sessions(&context.store, account).await?,
    }
    tokens::end(context, account, None, request.now).await?;
    tracing::info!(%account, request = request.request_id, "ended all sessions of account");
    request.rotate_session(SessionValue::draw(context.draw()));
    Ok(request.redirect(context, "/sign-in?out=1"))
}
