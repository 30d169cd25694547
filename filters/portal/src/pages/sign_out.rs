//! `/sign-out`, and `/sign-out/everywhere`.

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::{SessionValue, session};
use tollgate_pages::{Page, format, parts};

use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

const APPS: &str = "apps";

/// Ends the session. The browser gets a new value, so that nothing it kept is worth anything.
pub(crate) async fn sign_out(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    // The session first: after it nothing new is given to it.
    session::end_session(&house.store, visit.browser()).await?;
    if let Some(session) = &visit.session {
        house
            .sandbox
            .end(house, session.lineage(), visit.now)
            .await?;
    }
    visit.renew(SessionValue::draw(house.draw()));
    Ok(visit.go(house, "/sign-in?out=1"))
}

/// `GET /sign-out/everywhere`
pub(crate) async fn ask(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let session = visit.signed_in()?;
    let inside = html! {
        h1 { "Sign out everywhere?" }
        p.second {
            "Every browser that is signed in as " b { (format::line(&session.address)) }
            " is signed out at once, this one too. API keys go on working: revoke those you do not trust."
        }
        form.stack method="post" action="/sign-out/everywhere" {
            (parts::csrf(&visit.csrf(house)))
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
    Ok(visit.page(house, &Page::solo("Sign out everywhere?", inside)))
}

/// `POST /sign-out/everywhere`
pub(crate) async fn everywhere(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let account = visit.signed_in()?.account;
    // The sessions first: after them nothing can be given that would outlast what is taken here.
    match visit.form.find(APPS) {
        Some(_) => session::end_sessions_and_apps(&house.store, account, visit.now).await?,
        None => session::end_sessions(&house.store, account).await?,
    }
    house.sandbox.end_all(house, account, visit.now).await?;
    tracing::info!(%account, request = visit.request, "somebody signed out everywhere");
    visit.renew(SessionValue::draw(house.draw()));
    Ok(visit.go(house, "/sign-in?out=1"))
}
