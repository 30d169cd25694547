//! `/sign-in` and `/sign-up`: an address goes in, a code goes out.

pub(crate) mod code;
pub(crate) mod confirm;

use http::{HeaderValue, StatusCode, header};
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_identity::Login;
use tollgate_identity::signin::{CodeRequest, SendCodeError};
use tollgate_money::Micros;
use tollgate_pages::{Page, format, parts};
use tollgate_store::{CodePurpose, LoginKind};

use crate::house::House;
use crate::next::Next;
use crate::trouble::Trouble;
use crate::visit::Visit;

const ADDRESS: &str = "address";

/// `GET /sign-in`
pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    if visit.session.is_some() {
        return Ok(visit.go(house, visit.next().as_str()));
    }
    let asker = asker(house, visit).await?;
    let page = form(house, visit, CodePurpose::SignIn, asker.as_deref(), "", &[]);
    Ok(visit.page(house, &page))
}

/// `GET /sign-up`
pub(crate) async fn show_sign_up(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    if !house.sign_up {
        return Err(Trouble::NotFound);
    }
    if visit.session.is_some() {
        return Ok(visit.go(house, visit.next().as_str()));
    }
    let asker = asker(house, visit).await?;
    let page = form(house, visit, CodePurpose::SignUp, asker.as_deref(), "", &[]);
    Ok(visit.page(house, &page))
}

/// `POST /sign-in`
pub(crate) async fn sign_in(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    ask(house, visit, CodePurpose::SignIn).await
}

/// `POST /sign-up`
pub(crate) async fn sign_up(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    if !house.sign_up {
        return Err(Trouble::NotFound);
    }
    ask(house, visit, CodePurpose::SignUp).await
}

async fn ask(house: &House, visit: &mut Visit, purpose: CodePurpose) -> Result<Reply, Trouble> {
    let typed = visit.form.text(ADDRESS).to_owned();
    let asker = asker(house, visit).await?;
    let asker = asker.as_deref();
    let wrong = |text: &str| {
        let problem = parts::Problem::new(ADDRESS, text);
        visit.refused(
            house,
            form(house, visit, purpose, asker, &typed, &[problem]),
        )
    };
    let Ok(login) = Login::read(&typed) else {
        return Ok(wrong(
            "Enter an e-mail address like name@example.com, or a phone number that starts with + and the country.",
        ));
    };
    match login.kind() {
        LoginKind::Email if !house.channels.email => {
            return Ok(wrong(
                "Codes cannot be sent by e-mail here. Use a phone number.",
            ));
        }
        LoginKind::Phone if !house.channels.phone => {
            return Ok(wrong(
                "Codes cannot be sent to phones here. Use an e-mail address.",
            ));
        }
        _ => {}
    }
    match send(house, visit, &login, purpose).await? {
        None => Ok(visit.go(house, &visit.next().after("/sign-in/code"))),
        Some(wait) => {
            let problem = parts::Problem::new(ADDRESS, too_many(wait));
            let page = form(house, visit, purpose, asker, &typed, &[problem]);
            Ok(throttled(house, page, wait))
        }
    }
}

/// Sends a code; gives the wait (microseconds) where too many were asked for.
async fn send(
    house: &House,
    visit: &Visit,
    login: &Login,
    purpose: CodePurpose,
) -> Result<Option<i64>, Trouble> {
    let request = CodeRequest {
        login,
        purpose,
        browser: visit.browser(),
        network: visit.client.limited(),
        now: visit.now,
    };
    match house.signin.send_code(&request, house.draw()).await {
        Ok(()) => Ok(None),
        Err(SendCodeError::TooMany { until }) => Ok(Some(until - visit.now)),
        Err(error) => Err(error.into()),
    }
}

fn too_many(wait: i64) -> String {
    format!(
        "Too many codes were asked for. Try again in {}.",
        format::wait(wait)
    )
}

/// A form that was sent too often.
fn throttled(house: &House, page: Page, wait: i64) -> Reply {
    let mut reply = house
        .look
        .reply(StatusCode::TOO_MANY_REQUESTS, &page.refused());
    let secs = wait.max(1).unsigned_abs().div_ceil(1_000_000);
    reply
        .headers
        .insert(header::RETRY_AFTER, HeaderValue::from(secs));
    reply
}

/// The app that waits for a decision, where that is what comes after signing in.
async fn asker(house: &House, visit: &Visit) -> Result<Option<String>, Trouble> {
    let next = visit.next();
    let id = next.as_str().strip_prefix("/consent/");
    let Some(Ok(id)) = id.map(str::parse) else {
        return Ok(None);
    };
    let name = house.authorization.pending_client_name(id).await?;
    Ok(name.map(|name| format::line(&name)))
}

fn form(
    house: &House,
    visit: &Visit,
    purpose: CodePurpose,
    asker: Option<&str>,
    typed: &str,
    problems: &[parts::Problem],
) -> Page {
    let next = visit.next();
    let up = purpose == CodePurpose::SignUp;
    let (title, path) = if up {
        ("Create your account", "/sign-up")
    } else {
        ("Sign in", "/sign-in")
    };
    let channels = house.channels;
    let none = !channels.email && !channels.phone;
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
    let inside = html! {
        (parts::problems(problems))
        @if visit.query.find("out").is_some() {
            (parts::notice(parts::Tone::Good, "You are signed out.", html! {}))
        }
        h1 { (title) }
        @if up {
            p.second { (welcome(house)) }
        } @else {
            p.second { "There is no password. We send a code to the address of your account." }
        }
        @if let Some(asker) = asker {
            p.second { "Then you decide about “" (asker) "”." }
        }
        @if none {
            (parts::notice(parts::Tone::Warn, "Signing in is off.", html! {
                "Whoever runs this service has set up no way to send codes."
            }))
        } @else {
            form.stack method="post" action=(path) {
                (parts::csrf(&visit.csrf(house)))
                (hand_on(&next))
                (field.show())
                (parts::submit("Send code", true))
            }
        }
        @if up {
            (terms(house))
            p.rule { "You have an account? " a href=(next.after("/sign-in")) { "Sign in" } }
        } @else if house.sign_up {
            p.rule { "New here? " a href=(next.after("/sign-up")) { "Create an account" } }
        }
    };
    Page::solo(title, inside)
}

/// What a new account brings.
fn welcome(house: &House) -> String {
    let grant = house.signin.rules().grant;
    let name = &house.look.brand().name;
    if grant > Micros::ZERO {
        format!(
            "An account at {name} starts with {} credits. There is no password: we send you a code.",
            format::credits_2(grant)
        )
    } else {
        format!("An account at {name} costs nothing. There is no password: we send you a code.")
    }
}

fn terms(house: &House) -> Markup {
    let brand = house.look.brand();
    html! {
        @match (&brand.terms_url, &brand.privacy_url) {
            (None, None) => {},
            (Some(terms), None) => p.fine { "By creating an account you agree to the " a href=(terms) { "terms of use" } "." },
            (None, Some(privacy)) => p.fine { "What we keep about you is in the " a href=(privacy) { "privacy notice" } "." },
            (Some(terms), Some(privacy)) => p.fine {
                "By creating an account you agree to the " a href=(terms) { "terms of use" }
                ". What we keep about you is in the " a href=(privacy) { "privacy notice" } "."
            },
        }
    }
}

/// The hidden field that says where to go afterwards.
fn hand_on(next: &Next) -> Markup {
    html! {
        @if next.is_elsewhere() { input type="hidden" name="next" value=(next); }
    }
}
