//! `/confirm`: somebody who signed in a while ago types a code once more before they make a key or pay.

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::{Login, Session};
use tollgate_pages::{Page, format, parts};
use tollgate_store::{CodePurpose, LoginKind};

use super::{hand_on, send, throttled, too_many};
use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// `GET /confirm`
pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let page = form(house, visit, visit.signed_in()?, &[]);
    Ok(visit.page(house, &page))
}

/// `POST /confirm`
pub(crate) async fn send_code(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let session = visit.signed_in()?;
    let login = match session.kind {
        LoginKind::Phone => Login::phone(&session.address),
        _ => Login::email(&session.address),
    };
    let login = login.map_err(|error| Trouble::Internal(Box::new(error)))?;
    match send(house, visit, &login, CodePurpose::Confirm).await? {
        None => Ok(visit.go(house, &visit.next().after("/sign-in/code"))),
        Some(wait) => {
            let problem = parts::Problem::new("send", too_many(wait));
            let page = form(house, visit, session, &[problem]);
            Ok(throttled(house, page, wait))
        }
    }
}

fn form(house: &House, visit: &Visit, session: &Session, problems: &[parts::Problem]) -> Page {
    let inside = html! {
        (parts::problems(problems))
        h1 { "Confirm it is you" }
        p.second {
            "You signed in a while ago. Before a key is made or something is paid we send a code to "
            b { (format::line(&session.address)) } "."
        }
        form.stack method="post" action="/confirm" {
            (parts::csrf(&visit.csrf(house)))
            (hand_on(&visit.next()))
            button.button.filled #send type="submit" { "Send code" }
        }
        p.rule { a href="/" { "Go to the overview" } }
    };
    Page::solo("Confirm it is you", inside)
}
