//! `/sign-in` and `/sign-up`: send a one-time code to an address.

pub(crate) mod code;
pub(crate) mod confirm;

use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_identity::Login;
use tollgate_identity::signin::{CodeRequest, SendCodeError};
use tollgate_money::Micros;
use tollgate_pages::{Page, format, parts};
use tollgate_store::{CodePurpose, LoginKind};

use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::return_path::ReturnPath;

const ADDRESS: &str = "address";

/// `GET /sign-in`
pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    if request.session.is_some() {
        return Ok(request.redirect(context, request.return_path().as_str()));
    }
    let waiting_app = waiting_app(context, request).await?;
    let page = form(
        context,
        request,
        CodePurpose::SignIn,
        waiting_app.as_deref(),
        "",
        &[],
    );
    Ok(request.page(context, &page))
}

/// `GET /sign-up`
pub(crate) async fn show_sign_up(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    if !context.signin.rules().sign_up {
        return Err(PageError::NotFound);
    }
    if request.session.is_some() {
        return Ok(request.redirect(context, request.return_path().as_str()));
    }
    let waiting_app = waiting_app(context, request).await?;
    let page = form(
        context,
        request,
        CodePurpose::SignUp,
        waiting_app.as_deref(),
        "",
        &[],
    );
    Ok(request.page(context, &page))
}

/// `POST /sign-in`
pub(crate) async fn sign_in(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    request_code(context, request, CodePurpose::SignIn).await
}

/// `POST /sign-up`
pub(crate) async fn sign_up(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    if !context.signin.rules().sign_up {
        return Err(PageError::NotFound);
    }
    request_code(context, request, CodePurpose::SignUp).await
}

async fn request_code(
    context: &PortalContext,
    request: &mut PageRequest,
    purpose: CodePurpose,
) -> Result<Reply, PageError> {
    let typed = request.form.text(ADDRESS).to_owned();
    let waiting_app = waiting_app(context, request).await?;
    let waiting_app = waiting_app.as_deref();
    let wrong = |text: &str| {
        let problem = parts::Problem::new(ADDRESS, text);
        request.refused(
            context,
            form(context, request, purpose, waiting_app, &typed, &[problem]),
        )
    };
    let Ok(login) = Login::read(&typed) else {
        return Ok(wrong(
            "Enter an e-mail address like name@example.com, or a phone number that starts with + and the country.",
        ));
    };
    match login.kind() {
        LoginKind::Email if !context.settings.channels.email => {
            return Ok(wrong(
                "Codes cannot be sent by e-mail here. Use a phone number.",
            ));
        }
        LoginKind::Phone if !context.settings.channels.phone => {
            return Ok(wrong(
                "Codes cannot be sent to phones here. Use an e-mail address.",
            ));
        }
        _ => {}
    }
    match send(context, request, &login, purpose).await? {
        None => Ok(request.redirect(context, &request.return_path().append_to("/sign-in/code"))),
        Some(wait) => {
            let problem = parts::Problem::new(ADDRESS, too_many(wait));
            let page = form(context, request, purpose, waiting_app, &typed, &[problem]);
            Ok(throttled(context, page, wait))
        }
    }
}

/// Sends a code; returns the wait if the limit is exceeded.
async fn send(
    context: &PortalContext,
    request: &PageRequest,
    login: &Login,
    purpose: CodePurpose,
) -> Result<Option<Duration>, PageError> {
    let code_request = CodeRequest {
        login,
        purpose,
        browser: request.browser(),
        source: request.source(),
        now: request.now,
    };
    match context
        .signin
        .send_code(&code_request, context.draw())
        .await
    {
        Ok(()) => Ok(None),
        Err(SendCodeError::TooMany { until }) => Ok(Some(until.duration_since(request.now))),
        Err(error) => Err(error.into()),
    }
}

fn too_many(wait: Duration) -> String {
    format!(
        "Too many codes were requested. Try again in {}.",
        format::duration(wait)
    )
}

/// Status 429 with `Retry-After`.
fn throttled(context: &PortalContext, page: Page, wait: Duration) -> Reply {
    let mut reply = context
        .renderer
        .reply(StatusCode::TOO_MANY_REQUESTS, &page.with_error_title());
    let secs = wait.as_micros().max(1).div_ceil(1_000_000);
    let secs = u64::try_from(secs).unwrap_or(u64::MAX);
    reply
        .headers
        .insert(header::RETRY_AFTER, HeaderValue::from(secs));
    reply
}

/// Name of the app that waits for consent, if the return path leads to its consent page.
async fn waiting_app(
    context: &PortalContext,
    request: &PageRequest,
) -> Result<Option<String>, PageError> {
    let next = request.return_path();
    let id = next.as_str().strip_prefix("/consent/");
    let Some(Ok(id)) = id.map(str::parse) else {
        return Ok(None);
    };
    let name = context.authorization.pending_client_name(id).await?;
    Ok(name.map(|name| format::single_line(&name)))
}

fn form(
    context: &PortalContext,
    request: &PageRequest,
    purpose: CodePurpose,
    waiting_app: Option<&str>,
    typed: &str,
    problems: &[parts::Problem],
) -> Page {
    let next = request.return_path();
    let is_sign_up = purpose == CodePurpose::SignUp;
    let (title, path) = if is_sign_up {
        ("Create your account", "/sign-up")
    } else {
        ("Sign in", "/sign-in")
    };
    let channels = context.settings.channels;
    let is_off = !channels.email && !channels.phone;
    let hint = match (channels.email, channels.phone) {
        (true, false) => Some("Codes go out by e-mail here."),
        (false, true) => Some("Codes go out by text message here."),
        _ => None,
    };
    let mut field = parts::Field::new(ADDRESS, "E-mail or phone number")
        .value(typed)
        .autocomplete("username")
        .problem(problems);
    if let Some(hint) = hint {
        field = field.hint(html! { (hint) });
    }
    let content = html! {
        (parts::problems(problems))
        @if request.query.find("out").is_some() {
            (parts::notice(parts::Tone::Good, "You are signed out.", html! {}))
        }
        h1 { (title) }
        @if is_sign_up {
            p.second { (welcome(context)) }
        } @else {
            p.second { "There is no password. We send a code to the address of your account." }
        }
        @if let Some(waiting_app) = waiting_app {
            p.second { "Then you decide on access for “" (waiting_app) "”." }
        }
        @if is_off {
            (parts::notice(parts::Tone::Warn, "Signing in is off.", html! {
                "The operator of this service has not configured a way to send codes."
            }))
        } @else {
            form.stack method="post" action=(path) {
                (parts::csrf(&request.csrf(context)))
                (next_field(&next))
                (field.show())
                (parts::submit("Send code", true))
            }
        }
        @if is_sign_up {
            (terms(context))
            p.rule { "You have an account? " a href=(next.append_to("/sign-in")) { "Sign in" } }
        } @else if context.signin.rules().sign_up {
            p.rule { "New here? " a href=(next.append_to("/sign-up")) { "Create an account" } }
        }
    };
    Page::card(title, content)
}

/// Text about a new account.
fn welcome(context: &PortalContext) -> String {
    let grant = context.signin.rules().grant;
    let brand = context.renderer.brand();
    let name = &brand.name;
    if grant > Micros::ZERO {
        format!(
            "An account at {name} starts with {} credits, once for each person. There is no password: we send you a code.",
            format::credits_2(grant)
        )
    } else {
        format!("An account at {name} costs nothing. There is no password: we send you a code.")
    }
}

fn terms(context: &PortalContext) -> Markup {
    let brand = context.renderer.brand();
    html! {
        @match (&brand.terms_url, &brand.privacy_url) {
            (None, None) => {},
            (Some(terms), None) => p.fine { "By creating an account you agree to the " a href=(terms) { "terms of use" } "." },
            (None, Some(privacy)) => p.fine { "How we use your data is described in the " a href=(privacy) { "privacy notice" } "." },
            (Some(terms), Some(privacy)) => p.fine {
                "By creating an account you agree to the " a href=(terms) { "terms of use" }
                ". How we use your data is described in the " a href=(privacy) { "privacy notice" } "."
            },
        }
    }
}

/// The hidden `next` field.
fn next_field(next: &ReturnPath) -> Markup {
    html! {
        @if next.has_target() { input type="hidden" name="next" value=(next); }
    }
}
