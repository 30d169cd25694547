//! `/consent/{id}`: the OAuth consent page, and its change to another account.

use std::time::Duration;

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::{CreditsStep, Reply, Resource, Resources, Scopes};
use tollgate_identity::oauth::{AuthorizationError, DecideError, Destination, Pending, PendingId};
use tollgate_money::Micros;
use tollgate_pages::{Failure, Page, failure, format, parts};

use super::scope_text;
use super::sign_out::end;
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::return_path::ReturnPath;

/// Name of the checkbox that permits buying.
const BUY: &str = "buy";

/// `GET /consent/{id}`
pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let session = request.require_session()?.lineage();
    let id = id(request)?;
    match context.authorization.open_request(id, &session).await {
        Ok(pending) => {
            let (title, content) = match needs_credits_first(context, request, &pending)? {
                true => ("Add credits", credits_step(context, request, &pending)),
                false => ("Allow access", content(context, request, &pending)?),
            };
            let page = Page::card(title, content).allow_form_action(pending.form_action());
            Ok(request.page(context, &page))
        }
        Err(error) => decision_error_page(context, request, error),
    }
}

/// `POST /consent/{id}`: records the decision and redirects to the app.
pub(crate) async fn decide(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let signed_in = request.require_session()?;
    let session = signed_in.lineage();
    let id = id(request)?;
    let server = &context.authorization;
    let pending = match server.open_request(id, &session).await {
        Ok(pending) => pending,
        Err(error) => return decision_error_page(context, request, error),
    };
    let decided = match request.form.text("decision") {
        "allow" if needs_credits_first(context, request, &pending)? => {
            return Ok(request.redirect(context, &format!("/consent/{id}")));
        }
        "allow" => {
            let mut scopes = Scopes::from_bits(pending.scopes());
            if has_buy_checkbox(context, scopes) && request.form.text(BUY).is_empty() {
                scopes = scopes.less(Scopes::BUYING);
            }
            server.allow(id, &signed_in.into(), scopes.bits()).await
        }
        "cancel" => server.deny(id, &session).await,
        _ => return Err(PageError::InvalidFormToken),
    };
    match decided {
        Ok(address) => Ok(request.redirect(context, &address)),
        // The app receives `server_error` and may retry; no decision was made.
        Err(DecideError::Store(error)) => {
            tracing::error!(%error, "storing consent decision failed");
            let error = AuthorizationError::TemporarilyUnavailable;
            Ok(request.redirect(context, &server.failure_address(&pending, error)))
        }
        Err(error) => decision_error_page(context, request, error),
    }
}

/// `POST /consent/{id}/account`: signs out, and continues the authorization request with the next signed-in account.
pub(crate) async fn change_account(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let session = request.require_session()?.lineage();
    let id = match context.authorization.reissue(id(request)?, &session).await {
        Ok(id) => id,
        Err(error) => return decision_error_page(context, request, error),
    };
    end(context, request).await?;
    let next = ReturnPath::read(&format!("/consent/{id}"));
    Ok(request.redirect(context, &next.append_to("/sign-in")))
}

fn id(request: &PageRequest) -> Result<PendingId, PageError> {
    request
        .params
        .get("id")
        .parse()
        .map_err(|_| PageError::NotFound)
}

/// Whether buying is a separate checkbox: required by the operator, and another scope exists to allow.
fn has_buy_checkbox(context: &PortalContext, scopes: Scopes) -> bool {
    context.settings.buy_needs_checkbox
        && scopes.has_any(Scopes::BUYING)
        && !scopes.less(Scopes::BUYING).is_empty()
}

/// Whether the account has no credits for what the app asks for.
fn lacks_credits(
    context: &PortalContext,
    request: &PageRequest,
    pending: &Pending,
) -> Result<bool, PageError> {
    let available = context.ledger.available(request.require_session()?.account);
    let is_empty = available.is_none_or(|available| available <= Micros::ZERO);
    Ok(is_empty && Resources::from_bits(pending.resource()).has(Resource::Api))
}

/// Whether credits have to be added before the decision.
fn needs_credits_first(
    context: &PortalContext,
    request: &PageRequest,
    pending: &Pending,
) -> Result<bool, PageError> {
    let step = context.settings.credits_step;
    // Without credits on sale, this page would lead nowhere.
    let is_asked = step == CreditsStep::Required && context.sells_credits();
    Ok(is_asked && lacks_credits(context, request, pending)?)
}

/// The page before consent for an account without credits (`oauth.credits_step = "required"`).
fn credits_step(context: &PortalContext, request: &PageRequest, pending: &Pending) -> Markup {
    let action = format!("/consent/{}", pending.id);
    let add = ReturnPath::read(&action).append_to("/credits/add");
    html! {
        h1 { "Add credits first" }
        p.second {
            "An app that calls itself " b { "“" (app_name(pending)) "”" }
            " asks to send requests from your account, which has no credits. Add some, and you come back to decide on its access."
        }
        form.stack method="post" action=(action) {
            (parts::csrf(&request.csrf(context)))
            div.actions {
                (parts::link_button(&add, "Add credits", true))
                button.button type="submit" name="decision" value="cancel" { "Cancel" }
            }
        }
        (account_form(context, request, &action))
    }
}

/// The account that decides, and a way to decide with another.
fn account_form(context: &PortalContext, request: &PageRequest, action: &str) -> Markup {
    let address = request
        .session
        .as_ref()
        .map_or("", |session| &session.address);
    html! {
        form.rule.small.second method="post" action={ (action) "/account" } {
            (parts::csrf(&request.csrf(context)))
            "Signed in as " b { (format::single_line(address)) } ". "
            button.link type="submit" { "Use another account" }
        }
    }
}

/// The error page of a request that can no longer be decided.
fn decision_error_page(
    context: &PortalContext,
    request: &PageRequest,
    error: DecideError,
) -> Result<Reply, PageError> {
    let (status, heading, text) = match error {
        DecideError::Gone => (
            StatusCode::GONE,
            "This request has ended",
            "It was already decided, or it has expired after ten minutes. Start again in the app.",
        ),
        DecideError::OtherSession => (
            StatusCode::FORBIDDEN,
            "This request belongs to another browser session",
            "It was opened first in a session of another account. Start again in the app.",
        ),
        DecideError::NoClient => (
            StatusCode::GONE,
            "This app is no longer registered",
            "Start again in the app; it registers automatically.",
        ),
        DecideError::SignedOut => return Err(PageError::SignedOut),
        DecideError::Read(error) => return Err(error.into()),
        DecideError::Store(error) => return Err(error.into()),
        error => return Err(PageError::Internal(Box::new(error))),
    };
    let details = Failure {
        status,
        heading,
        text: html! { p { (text) " Nothing was allowed." } },
        link: Some(("/apps", "See connected apps")),
        request: request.request_id.clone(),
    };
    Ok(failure(&context.renderer, &details))
}

fn content(
    context: &PortalContext,
    request: &PageRequest,
    pending: &Pending,
) -> Result<Markup, PageError> {
    let scopes = Scopes::from_bits(pending.scopes());
    let buys = scopes.has_any(Scopes::BUYING);
    let rest = scopes.less(Scopes::BUYING);
    let ticked = has_buy_checkbox(context, scopes);
    let resource = Resources::from_bits(pending.resource()).iter().next();
    let heading = match rest.is_empty() {
        true => "Allow this app to buy the Pro plan for you?",
        false => "Allow this app to use your account?",
    };
    let allow = match buys && !ticked {
        true => "Allow access and buying",
        false => "Allow access",
    };
    let action = format!("/consent/{}", pending.id);
    Ok(html! {
        h1 { (heading) }
        p.second {
            "An app that calls itself " b { "“" (app_name(pending)) "”" }
            (request_summary(resource, rest))
        }
        (destination_panel(pending))
        @if lacks_credits(context, request, pending)? {
            (parts::notice(parts::Tone::Warn, "You have no credits.", html! {
                "The app can connect, but its requests will be refused until you have some. "
                @if context.sells_credits() {
                    a href=(ReturnPath::read(&action).append_to("/credits/add")) { "Add credits first" }
                }
            }))
        }
        form.stack method="post" action=(action) {
            (parts::csrf(&request.csrf(context)))
            @if !rest.is_empty() {
                div {
                    h2 { "The app will be able to" }
                    ul.may {
                        @for scope in rest.iter() {
                            @let (may, about) = scope_text::of(scope);
                            li { (check_mark()) div { b { (may) } p.small.second { (about) } } }
                        }
                    }
                    p.fine { (scope_text::at(resource)) }
                }
            }
            @if buys { (buying_panel(ticked, rest.is_empty())) }
            p.small.second {
                "It will " b { "not" } " see your keys, your payment details or your other apps. "
                (access_expiry(context, pending)) " Allowing costs nothing."
            }
            div.actions {
                button.button.filled type="submit" name="decision" value="allow" { (allow) }
                button.button type="submit" name="decision" value="cancel" { "Cancel" }
            }
        }
        (account_form(context, request, &action))
    })
}

fn app_name(pending: &Pending) -> String {
    match pending.client_name() {
        Some(name) => format::single_line(name),
        None => String::from("an app without a name"),
    }
}

fn request_summary(resource: Option<Resource>, rest: Scopes) -> &'static str {
    match resource {
        _ if rest.is_empty() => " asks to spend your money.",
        Some(Resource::Api) => " asks to send requests and spend your credits.",
        Some(Resource::McpAndroid) => " asks to use your Android devices.",
        _ => " asks to work with what is yours.",
    }
}

/// The redirect destination, the only verified fact about the app.
fn destination_panel(pending: &Pending) -> Markup {
    let destination = pending.destination();
    html! {
        section.goes-to aria-labelledby="goes-to" {
            h2.figure-name #goes-to { "Access goes to" }
            @match &destination {
                Destination::Loopback => p.host { "An application on this computer" },
                Destination::Host { host, .. } => p.host { (break_after_dots(host)) },
            }
            @match &destination {
                Destination::Host { unicode: Some(unicode), .. } => {
                    (parts::notice(parts::Tone::Warn, "This address is written with unusual letters.", html! {
                        "Elsewhere it may be shown as “" bdi { (unicode) } "”. Letters of another script can look like those of a name you know."
                    }))
                },
                _ => {},
            }
            p.small.second {
                "The name above is not verified: the app’s maker chose it. "
                @if destination == Destination::Loopback {
                    "Only this is certain: a program on this computer gets access. "
                    b { "If you did not start one just now, choose Cancel." }
                } @else {
                    "Only this address is certain. "
                    b { "If you do not know it, choose Cancel." }
                }
            }
            @if pending.document() {
                p.small.second { "It is described at " code { (break_after_dots(pending.client())) } "." }
            }
        }
    }
}

/// A host name with line-break opportunities after its dots.
fn break_after_dots(name: &str) -> Markup {
    html! {
        @for (at, piece) in name.split_inclusive('.').enumerate() {
            @if at > 0 { wbr; }
            (piece)
        }
    }
}

/// `alone`: the app asks for nothing else.
fn buying_panel(ticked: bool, alone: bool) -> Markup {
    const WHAT: &str = "Buy or renew the Pro plan, 199 USD a month";
    html! {
        div.buying {
            h2 { "It " @if !alone { "also " } "asks to buy for you" }
            @if ticked {
                div.option {
                    input type="checkbox" #buy name=(BUY) value="1" aria-describedby="buy-about";
                    div {
                        label for="buy" { (WHAT) }
                        p.fine #buy-about { "Off unless you tick it. " (BUYING) }
                    }
                }
            } @else {
                p { b { (WHAT) } }
                p.fine { (BUYING) }
            }
        }
    }
}

const BUYING: &str = "You approve a PayPal payment yourself; an app that pays from its own wallet does not ask you again.";

fn check_mark() -> Markup {
    html! {
        svg aria-hidden="true" viewBox="0 0 16 16" width="16" height="16" { path d="M2.5 8.5 6 12l7.5-8" {} }
    }
}

fn access_expiry(context: &PortalContext, pending: &Pending) -> String {
    let settings = context.authorization.settings();
    let ends = match settings.refresh.filter(|_| pending.refresh()) {
        Some(refresh) if refresh.idle < refresh.absolute => format!(
            "{}, after {} without use",
            duration_words(refresh.absolute),
            duration_words(refresh.idle)
        ),
        Some(refresh) => duration_words(refresh.absolute),
        None => duration_words(settings.access_token),
    };
    format!("Access ends after {ends}, or sooner when you remove the app under Connected apps.")
}

/// A duration in the largest unit without remainder.
fn duration_words(time: Duration) -> String {
    let secs = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
    for (unit, word) in [(86_400, "day"), (3600, "hour"), (60, "minute")] {
        if secs % unit == 0 && secs > 0 {
            return format::plural(secs / unit, word);
        }
    }
    format::plural(secs, "second")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_use_the_largest_unit_that_divides_them() {
        for (secs, details) in [
            (3600, "1 hour"),
            (900, "15 minutes"),
            (90, "90 seconds"),
            (90 * 86_400, "90 days"),
            (36 * 3600, "36 hours"),
        ] {
            assert_eq!(duration_words(Duration::from_secs(secs)), details);
        }
    }

    #[test]
    fn a_host_name_breaks_after_its_dots() {
        let shown = break_after_dots("a.b<.example").into_string();
        assert_eq!(shown, "a.<wbr>b&lt;.<wbr>example");
    }
}
