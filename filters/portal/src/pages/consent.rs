//! `/consent/{id}`: a person decides what an app may do with their account.

use std::time::Duration;

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::{Reply, Resource, Resources, Scopes};
use tollgate_identity::oauth::{AuthorizationError, DecideError, Destination, Pending, PendingId};
use tollgate_money::Micros;
use tollgate_pages::{Failure, Page, failure, format, parts};

use super::words;
use crate::house::House;
use crate::next::Next;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// The box that allows buying, where that is a box.
const BUY: &str = "buy";

/// `GET /consent/{id}`
pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let session = visit.signed_in()?.lineage();
    let id = id(visit)?;
    match house.authorization.open_request(id, &session).await {
        Ok(pending) => {
            let page = Page::solo("Allow access", inside(house, visit, &pending)?)
                .ending_at(pending.form_action());
            Ok(visit.page(house, &page))
        }
        Err(error) => undecided(house, visit, error),
    }
}

/// `POST /consent/{id}`: what the person decided, and on to the app with it.
pub(crate) async fn decide(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let signed_in = visit.signed_in()?;
    let session = signed_in.lineage();
    let id = id(visit)?;
    let server = &house.authorization;
    let pending = match server.open_request(id, &session).await {
        Ok(pending) => pending,
        Err(error) => return undecided(house, visit, error),
    };
    let decided = match visit.form.text("decision") {
        "allow" => {
            let mut scopes = Scopes::from_bits(pending.scopes());
            if has_box(house, scopes) && visit.form.text(BUY).is_empty() {
                scopes = scopes.less(Scopes::BUYING);
            }
            server.allow(id, &signed_in.into(), scopes.bits()).await
        }
        "cancel" => server.deny(id, &session).await,
        _ => return Err(Trouble::Stale),
    };
    match decided {
        Ok(address) => Ok(visit.go(house, &address)),
        // The app is told that it is our fault, and may try again; nothing was decided.
        Err(DecideError::Store(error)) => {
            tracing::error!(%error, "a decision about an app was not written");
            let error = AuthorizationError::TemporarilyUnavailable;
            Ok(visit.go(house, &server.failure_address(&pending, error)))
        }
        Err(error) => undecided(house, visit, error),
    }
}

fn id(visit: &Visit) -> Result<PendingId, Trouble> {
    visit
        .params
        .get("id")
        .parse()
        .map_err(|_| Trouble::NotFound)
}

/// Whether buying is a box of its own: where the operator wants that, and there is something else to allow.
fn has_box(house: &House, scopes: Scopes) -> bool {
    house.tick_to_buy && scopes.has_any(Scopes::BUYING) && !scopes.less(Scopes::BUYING).is_empty()
}

/// There is nothing to decide on any more.
fn undecided(house: &House, visit: &Visit, error: DecideError) -> Result<Reply, Trouble> {
    let (status, heading, text) = match error {
        DecideError::Gone => (
            StatusCode::GONE,
            "This request has ended",
            "It was decided already, or its ten minutes are over. Begin again in the app.",
        ),
        DecideError::OtherSession => (
            StatusCode::FORBIDDEN,
            "This request belongs to another browser session",
            "Somebody who was signed in otherwise opened it first. Begin again in the app.",
        ),
        DecideError::NoClient => (
            StatusCode::GONE,
            "This app is not registered any more",
            "Begin again in the app; it registers by itself.",
        ),
        DecideError::SignedOut => return Err(Trouble::SignedOut),
        DecideError::Read(error) => return Err(error.into()),
        DecideError::Store(error) => return Err(error.into()),
        error => return Err(Trouble::Internal(Box::new(error))),
    };
    let told = Failure {
        status,
        heading,
        text: html! { p { (text) " Nothing was allowed." } },
        way_on: Some(("/apps", "See connected apps")),
        request: visit.request.clone(),
    };
    Ok(failure(&house.look, &told))
}

fn inside(house: &House, visit: &Visit, pending: &Pending) -> Result<Markup, Trouble> {
    let signed_in = visit.signed_in()?;
    let scopes = Scopes::from_bits(pending.scopes());
    let buys = scopes.has_any(Scopes::BUYING);
    let rest = scopes.less(Scopes::BUYING);
    let ticked = has_box(house, scopes);
    let resource = Resources::from_bits(pending.resource()).iter().next();
    let heading = match rest.is_empty() {
        true => "Allow this app to buy the Pro plan for you?",
        false => "Allow this app to use your account?",
    };
    let allow = match buys && !ticked {
        true => "Allow access and buying",
        false => "Allow access",
    };
    let available = house.ledger.available(signed_in.account);
    let empty = available.is_none_or(|available| available <= Micros::ZERO);
    let action = format!("/consent/{}", pending.id);
    Ok(html! {
        h1 { (heading) }
        p.second {
            "An app that calls itself " b { "“" (app_name(pending)) "”" }
            (what_it_asks(resource, rest))
        }
        (goes_to(pending))
        @if empty && resource == Some(Resource::Api) {
            (parts::notice(parts::Tone::Warn, "You have no credits.", html! {
                "The app can connect, but its requests will be refused until you add some. "
                a href=(Next::read(&action).after("/credits/add")) { "Add credits first" }
            }))
        }
        form.stack method="post" action=(action) {
            (parts::csrf(&visit.csrf(house)))
            @if !rest.is_empty() {
                div {
                    h2 { "The app will be able to" }
                    ul.may {
                        @for scope in rest.iter() {
                            @let (may, about) = words::of(scope);
                            li { (check()) div { b { (may) } p.small.second { (about) } } }
                        }
                    }
                    p.fine { (words::at(resource)) }
                }
            }
            @if buys { (buying(ticked)) }
            p.small.second {
                "It will " b { "not" } " see your keys, your payment details or your other apps. "
                (ends(house, pending)) " Allowing costs nothing."
            }
            div.actions {
                button.button.filled type="submit" name="decision" value="allow" { (allow) }
                button.button type="submit" name="decision" value="cancel" { "Cancel" }
            }
        }
        p.rule.small.second { "Signed in as " b { (format::line(&signed_in.address)) } "." }
    })
}

fn app_name(pending: &Pending) -> String {
    match pending.client_name() {
        Some(name) => format::line(name),
        None => String::from("an app without a name"),
    }
}

fn what_it_asks(resource: Option<Resource>, rest: Scopes) -> &'static str {
    match resource {
        _ if rest.is_empty() => " asks to spend your money.",
        Some(Resource::Api) => " asks to send requests and spend your credits.",
        Some(Resource::McpAndroid) => " asks to use your Android devices.",
        _ => " asks to work with what is yours.",
    }
}

/// The one thing on the page that is certain.
fn goes_to(pending: &Pending) -> Markup {
    let destination = pending.destination();
    html! {
        section.goes-to aria-labelledby="goes-to" {
            h2.figure-name #goes-to { "Access goes to" }
            @match &destination {
                Destination::Loopback => p.host { "An application on this computer" },
                Destination::Host { host, .. } => p.host { (broken_at_dots(host)) },
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
                "Nobody checks the name above: the app’s maker typed it. "
                @if destination == Destination::Loopback {
                    "Only this is certain: a program on this computer gets access. "
                    b { "If you did not start one just now, choose Cancel." }
                } @else {
                    "Only this address is certain. "
                    b { "If you do not know it, choose Cancel." }
                }
            }
            @if pending.document() {
                p.small.second { "It is described at " code { (broken_at_dots(pending.client())) } "." }
            }
        }
    }
}

/// A name that may be broken behind its dots before it is broken anywhere else.
fn broken_at_dots(name: &str) -> Markup {
    html! {
        @for (at, piece) in name.split_inclusive('.').enumerate() {
            @if at > 0 { wbr; }
            (piece)
        }
    }
}

fn buying(ticked: bool) -> Markup {
    const WHAT: &str = "Buy or renew the Pro plan, 199 USD a month";
    html! {
        div.buying {
            h2 { "It also asks to buy for you" }
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

fn check() -> Markup {
    html! {
        svg aria-hidden="true" viewBox="0 0 16 16" width="16" height="16" { path d="M2.5 8.5 6 12l7.5-8" {} }
    }
}

/// When access ends by itself.
fn ends(house: &House, pending: &Pending) -> String {
    let settings = house.authorization.settings();
    let life = match settings.refresh {
        Some(refresh) if pending.refresh() => refresh.absolute,
        _ => settings.access_token,
    };
    format!(
        "Access ends after {}, or sooner when you remove the app under Connected apps.",
        span(life)
    )
}

/// A time in the largest unit that tells it whole.
fn span(time: Duration) -> String {
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
    fn times_are_told_in_the_largest_unit_that_fits() {
        for (secs, told) in [
            (3600, "1 hour"),
            (900, "15 minutes"),
            (90, "90 seconds"),
            (90 * 86_400, "90 days"),
            (36 * 3600, "36 hours"),
        ] {
            assert_eq!(span(Duration::from_secs(secs)), told);
        }
    }

    #[test]
    fn a_name_breaks_behind_its_dots() {
        let shown = broken_at_dots("a.b<.example").into_string();
        assert_eq!(shown, "a.<wbr>b&lt;.<wbr>example");
    }
}
