//! `/sign-in/code`: entry of the one-time code.

use std::time::Duration;

use maud::html;
use tollgate_filter::Reply;
use tollgate_identity::Login;
use tollgate_identity::session::keep_draft;
use tollgate_identity::signin::{CodeOutcome, PendingCode, SignedIn};
use tollgate_pages::{Page, format, parts};
use tollgate_store::{CodePurpose, LoginKind};

use super::{next_field, send, throttled, too_many};
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::signup_grant::book_signup_grants;

const CODE: &str = "code";

/// Minimum time between two codes.
const RESEND_AFTER: Duration = Duration::from_secs(30);

/// `GET /sign-in/code`
pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    match context
        .signin
        .pending_code(request.browser(), request.now)
        .await?
    {
        Some(awaited) => {
            let page = form(context, request, &awaited, &[]);
            Ok(request.page(context, &page))
        }
        None => Ok(request.redirect(
            context,
            &request.return_path().append_to(request_path(request)),
        )),
    }
}

/// `POST /sign-in/code`
pub(crate) async fn verify(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let Some(awaited) = context
        .signin
        .pending_code(request.browser(), request.now)
        .await?
    else {
        let page = ended(request, "That code has expired or is used up.");
        return Ok(request.refused(context, page));
    };
    let length = context.signin.rules().length;
    let Some(code) = length.read(request.form.text(CODE)) else {
        let text = format!("Enter the {} digits of the code.", length.digits());
        return Ok(wrong_code(context, request, &awaited, text));
    };
    let verdict = context
        .signin
        .verify_code(
            request.browser(),
            request.source(),
            request.session.as_ref(),
            &code,
            request.now,
            context.draw(),
        )
        .await?;
    match verdict {
        CodeOutcome::Accepted(entered) => Ok(let_in(context, request, entered).await),
        CodeOutcome::Wrong { tries_left } => {
            let left = match tries_left {
                1 => "1 try".to_owned(),
                more => format!("{more} tries"),
            };
            let text = format!("That code is not right. You have {left} left.");
            Ok(wrong_code(context, request, &awaited, text))
        }
        CodeOutcome::LockedOut { until } => {
            let wait = until.duration_since(request.now);
            let text = format!(
                "Too many wrong codes were entered. Try again in {}.",
                format::duration(wait)
            );
            let problem = parts::Problem::new(CODE, text);
            let page = form(context, request, &awaited, &[problem]);
            Ok(throttled(context, page, wait))
        }
        CodeOutcome::Suspended => {
            let text =
                "This account is suspended. Contact the operator of this service.".to_owned();
            Ok(wrong_code(context, request, &awaited, text))
        }
        CodeOutcome::NoTriesLeft => {
            let page = ended(
                request,
                "That code is not right, and you have no tries left.",
            );
            Ok(request.refused(context, page))
        }
        _ => {
            let page = ended(request, "That code has expired.");
            Ok(request.refused(context, page))
        }
    }
}

/// Begins the session of an accepted code, with the form that its browser had filled in before.
async fn let_in(context: &PortalContext, request: &mut PageRequest, entered: SignedIn) -> Reply {
    tracing::info!(
        account = %entered.account,
        purpose = ?entered.purpose,
        new = entered.is_new,
        request = request.request_id,
        "sign-in code accepted"
    );
    if entered.is_new {
        book_signup_grants(
            &context.signin,
            &context.ledger,
            &context.clock,
            &context.entropy,
        )
        .await;
    }
    if let Some(draft) = context.drafts.take(request.browser(), request.now) {
        let kept = keep_draft(&context.store, entered.value.digest(), Some(draft));
        if let Err(error) = kept.await {
            tracing::warn!(%error, "storing form for new session failed");
        }
    }
    request.keep_mark();
    request.rotate_session(entered.value);
    request.redirect(context, request.return_path().as_str())
}

/// `POST /sign-in/code/again`
pub(crate) async fn resend(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let Some(awaited) = context
        .signin
        .pending_code(request.browser(), request.now)
        .await?
    else {
        return Ok(request.redirect(
            context,
            &request.return_path().append_to(request_path(request)),
        ));
    };
    let login = match awaited.kind {
        LoginKind::Phone => Login::phone(&awaited.address),
        _ => Login::email(&awaited.address),
    };
    let Ok(login) = login else {
        return Ok(request.redirect(
            context,
            &request.return_path().append_to(request_path(request)),
        ));
    };
    match send(context, request, &login, awaited.purpose).await? {
        None => {
            let address = request.return_path().append_to("/sign-in/code");
            Ok(request.redirect(context, &address))
        }
        Some(wait) => {
            let problem = parts::Problem::new("again", too_many(wait));
            let page = form(context, request, &awaited, &[problem]);
            Ok(throttled(context, page, wait))
        }
    }
}

fn wrong_code(
    context: &PortalContext,
    request: &PageRequest,
    awaited: &PendingCode,
    text: String,
) -> Reply {
    let problem = parts::Problem::new(CODE, text);
    request.refused(context, form(context, request, awaited, &[problem]))
}

/// The page that requests another code.
fn request_path(request: &PageRequest) -> &'static str {
    match request.session {
        Some(_) => "/confirm",
        None => "/sign-in",
    }
}

fn form(
    context: &PortalContext,
    request: &PageRequest,
    awaited: &PendingCode,
    problems: &[parts::Problem],
) -> Page {
    let next = request.return_path();
    let digits = context.signin.rules().length.digits();
    let address = format::single_line(&awaited.address);
    let from = awaited.sent_at + RESEND_AFTER;
    let content = html! {
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
            (parts::csrf(&request.csrf(context)))
            (next_field(&next))
            (parts::Field::new(CODE, "Code")
                .kind(parts::FieldKind::Code)
                .autocomplete("one-time-code")
                .problem(problems)
                .show())
            (parts::submit("Continue", true))
        }
        div.rule {
            form method="post" action="/sign-in/code/again" {
                (parts::csrf(&request.csrf(context)))
                (next_field(&next))
                div.actions.again {
                    button.link #again type="submit" { "Send a new code" }
                    @if request.session.is_none() {
                        a href=(next.append_to("/sign-in")) { "Use another address" }
                    }
                }
            }
            @if request.now < from {
                p.fine { "A new code can be sent from " (format::time_of_day(from)) "." }
            }
        }
    };
    Page::card("Enter the code we sent", content)
}

/// The code has expired or is used up; a new one is needed.
fn ended(request: &PageRequest, reason: &str) -> Page {
    let problem = [parts::Problem::new(
        "again",
        format!("{reason} Send a new one."),
    )];
    let next = request.return_path();
    let address = next.append_to(request_path(request));
    let content = html! {
        (parts::problems(&problem))
        h1 { "Enter the code we sent" }
        p.second { "A code works for 10 minutes and five tries, in the browser that requested it." }
        p.actions { a.button.filled #again href=(address) { "Send a new code" } }
    };
    Page::card("Enter the code we sent", content)
}
