//! `/sign-in/code`: the code that was sent is typed.

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::Login;
use tollgate_identity::signin::{CodeOutcome, PendingCode};
use tollgate_pages::{Page, format, parts};
use tollgate_store::{CodePurpose, LoginKind};

use super::{hand_on, send, throttled, too_many};
use crate::house::House;
use crate::promise::keep_promises;
use crate::trouble::Trouble;
use crate::visit::Visit;

const CODE: &str = "code";

/// A new code may be asked for so long after the last (microseconds).
const AGAIN: i64 = 30_000_000;

/// `GET /sign-in/code`
pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    match house
        .signin
        .pending_code(visit.browser(), visit.now)
        .await?
    {
        Some(awaited) => {
            let page = form(house, visit, &awaited, &[]);
            Ok(visit.page(house, &page))
        }
        None => Ok(visit.go(house, &visit.next().after(start(visit)))),
    }
}

/// `POST /sign-in/code`
pub(crate) async fn judge(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let Some(awaited) = house
        .signin
        .pending_code(visit.browser(), visit.now)
        .await?
    else {
        let page = ended(visit);
        return Ok(visit.refused(house, page));
    };
    let length = house.signin.rules().length;
    let Some(code) = length.read(visit.form.text(CODE)) else {
        let text = format!("Enter the {} digits of the code.", length.digits());
        return Ok(wrong(house, visit, &awaited, text));
    };
    let verdict = house
        .signin
        .verify_code(
            visit.browser(),
            visit.session.as_ref(),
            &code,
            visit.now,
            house.draw(),
        )
        .await?;
    match verdict {
        CodeOutcome::Accepted(entered) => {
            tracing::info!(
                account = %entered.account,
                purpose = ?entered.purpose,
                new = entered.is_new,
                request = visit.request,
                "somebody typed the right code"
            );
            if entered.is_new {
                keep_promises(&house.signin, &house.ledger, &house.clock, &house.entropy).await;
            }
            visit.renew(entered.value);
            Ok(visit.go(house, visit.next().as_str()))
        }
        CodeOutcome::Wrong { tries_left } => {
            let left = match tries_left {
                1 => "1 try".to_owned(),
                more => format!("{more} tries"),
            };
            let text = format!("That code is not right. You have {left} left.");
            Ok(wrong(house, visit, &awaited, text))
        }
        CodeOutcome::LockedOut { until } => {
            let wait = until - visit.now;
            let text = format!(
                "Too many wrong codes were typed. Try again in {}.",
                format::wait(wait)
            );
            let problem = parts::Problem::new(CODE, text);
            let page = form(house, visit, &awaited, &[problem]);
            Ok(throttled(house, page, wait))
        }
        CodeOutcome::Suspended => {
            let text = "This account is suspended. Ask whoever runs this service.".to_owned();
            Ok(wrong(house, visit, &awaited, text))
        }
        _ => {
            let page = ended(visit);
            Ok(visit.refused(house, page))
        }
    }
}

/// `POST /sign-in/code/again`
pub(crate) async fn again(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let Some(awaited) = house
        .signin
        .pending_code(visit.browser(), visit.now)
        .await?
    else {
        return Ok(visit.go(house, &visit.next().after(start(visit))));
    };
    let login = match awaited.kind {
        LoginKind::Phone => Login::phone(&awaited.address),
        _ => Login::email(&awaited.address),
    };
    let Ok(login) = login else {
        return Ok(visit.go(house, &visit.next().after(start(visit))));
    };
    match send(house, visit, &login, awaited.purpose).await? {
        None => {
            let address = visit.next().after("/sign-in/code");
            Ok(visit.go(house, &address))
        }
        Some(wait) => {
            let problem = parts::Problem::new("again", too_many(wait));
            let page = form(house, visit, &awaited, &[problem]);
            Ok(throttled(house, page, wait))
        }
    }
}

fn wrong(house: &House, visit: &Visit, awaited: &PendingCode, text: String) -> Reply {
    let problem = parts::Problem::new(CODE, text);
    visit.refused(house, form(house, visit, awaited, &[problem]))
}

/// Where another code is asked for.
fn start(visit: &Visit) -> &'static str {
    match visit.session {
        Some(_) => "/confirm",
        None => "/sign-in",
    }
}

fn form(house: &House, visit: &Visit, awaited: &PendingCode, problems: &[parts::Problem]) -> Page {
    let next = visit.next();
    let digits = house.signin.rules().length.digits();
    let address = format::line(&awaited.address);
    let from = awaited.sent_at + AGAIN;
    let inside = html! {
        (parts::problems(problems))
        h1 { "Enter the code we sent" }
        p.second {
            @match awaited.purpose {
                CodePurpose::SignIn => { "If " b { (address) } " has an account here, an " (digits) "-digit code is on its way." },
                _ => { "An " (digits) "-digit code is on its way to " b { (address) } "." },
            }
            " It works in this browser for 10 minutes."
        }
        form.stack method="post" action="/sign-in/code" {
            (parts::csrf(&visit.csrf(house)))
            (hand_on(&next))
            (parts::Field::new(CODE, "Code")
                .kind(parts::FieldKind::Code)
                .autocomplete("one-time-code")
                .problem(problems)
                .show())
            (parts::submit("Continue", true))
        }
        div.rule {
            form method="post" action="/sign-in/code/again" {
                (parts::csrf(&visit.csrf(house)))
                (hand_on(&next))
                div.actions.again {
                    button.link #again type="submit" { "Send a new code" }
                    @if visit.session.is_none() {
                        a href=(next.after("/sign-in")) { "Use another address" }
                    }
                }
            }
            @if visit.now < from {
                p.fine { "A new code can be sent from " (format::time_of_day(from)) "." }
            }
        }
    };
    Page::solo("Enter the code we sent", inside)
}

/// The code is over; only a new one helps.
fn ended(visit: &Visit) -> Page {
    let problem = [parts::Problem::new(
        "again",
        "That code has ended. Send a new one.",
    )];
    let next = visit.next();
    let address = next.after(start(visit));
    let inside = html! {
        (parts::problems(&problem))
        h1 { "Enter the code we sent" }
        p.second { "A code works for 10 minutes, in the browser that asked for it, and for five tries." }
        p.actions { a.button.filled #again href=(address) { "Send a new code" } }
    };
    Page::solo("Enter the code we sent", inside)
}
