//! `/sandbox`: real requests, paid from the balance.
//!
//! With a script the browser asks the API itself, with a token that it fetches here, and the answer streams. Without one the form is sent
//! here, the API is asked from within ([`crate::inside`]), and the page shows the whole answer; the conversation travels in the form.

mod ask;
mod talk;
mod tokens;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, header};
use maud::{Markup, html};
use serde_json::json;
use tollgate_filter::{Model, Reply};
use tollgate_money::Micros;
use tollgate_pages::format::{self, count, credits_4};
use tollgate_pages::parts::{self, Field, FieldKind, Problem, Tone};
use tollgate_pages::{Page, Place, Script};

pub(crate) use self::ask::ask;
use self::talk::{Facts, Role, Said};
pub(crate) use self::tokens::SandboxTokens;
use crate::house::House;
use crate::samples::{ChatExample, Spoken};
use crate::trouble::Trouble;
use crate::visit::Visit;

/// Where the sandbox asks.
const CHAT: &str = "/v1/chat/completions";

/// What stands in the form at first.
const TEMPERATURE: &str = "0.7";
const MAX_TOKENS: &str = "256";

/// A message of this many bytes is what the first price is worked out for, before anything is typed.
const SHORT_MESSAGE: usize = 300;

/// What the page shows.
struct Shown<'a> {
    talk: &'a [Said],
    model: Option<&'a Arc<Model>>,
    temperature: &'a str,
    max_tokens: &'a str,
    cache: bool,
    message: &'a str,
    problems: &'a [Problem],
    /// What the API refused: its code and its message.
    refused: Option<(&'a str, &'a str)>,
}

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let asked = visit.query.text("model");
    let shown = Shown {
        talk: &[],
        model: house
            .facts
            .catalog
            .get(asked)
            .or_else(|| first_model(house)),
        temperature: TEMPERATURE,
        max_tokens: MAX_TOKENS,
        cache: true,
        message: "",
        problems: &[],
        refused: None,
    };
    Ok(visit.page(house, &page(house, visit, &shown)?))
}

/// A token for the script, which asks the API itself.
pub(crate) async fn token(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let session = visit.signed_in()?;
    let issued = house.sandbox.issue(house, session, visit.now).await?;
    let body = json!({
        "token": issued.secret.expose(),
        "expires_in": (issued.expires_at - visit.now) / 1_000_000,
    });
    let mut reply = Reply::json(Bytes::from(body.to_string()));
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        reply.headers.insert(name, HeaderValue::from_static(value));
    }
    Ok(reply)
}

fn first_model(house: &House) -> Option<&Arc<Model>> {
    house
        .facts
        .catalog
        .default_model()
        .or(house.facts.catalog.models().first())
}

fn page(house: &House, visit: &Visit, shown: &Shown<'_>) -> Result<Page, Trouble> {
    let viewer = visit.viewer(house)?;
    let new = html! { a.button href="/sandbox" { "New conversation" } };
    let inside = html! {
        (parts::problems(shown.problems))
        @if let Some((code, message)) = shown.refused { (refusal(code, message)) }
        (parts::heading("Sandbox", Some(new)))
        p.lead { "Real requests, paid from your balance. What you see here is what the API does." }
        div.sandbox #sandbox data-api=(CHAT) data-metadata={ "x_" (house.service.name) } data-base=(house.address.api())
            data-variable=(house.address.variable())
        {
            div.talk {
                section.panel.conversation #conversation aria-label="Conversation" tabindex="0" {
                    @for said in shown.talk { (said_block(said, shown)) }
                    @if shown.talk.is_empty() { p.second #nothing-said { "Ask something." @if let Some(model) = shown.model { " " (this_model_costs(model)) } } }
                }
                p.unseen #sandbox-status role="status" {}
                (composer(house, visit, &viewer.csrf, shown))
            }
            div.talk-side {
                (settings(house, shown))
                section.panel { (parts::samples("request", "The same request in code", &example(shown).samples(&house.address))) }
            }
        }
    };
    let page = Page::framed("Sandbox", Place::Sandbox, viewer, inside);
    let page = page.with_script(Script::Copy).with_script(Script::Sandbox);
    Ok(if shown.problems.is_empty() {
        page
    } else {
        page.refused()
    })
}

fn said_block(said: &Said, shown: &Shown<'_>) -> Markup {
    let name = match said.role {
        Role::User => "You".to_owned(),
        Role::Assistant => shown
            .model
            .map_or("Answer".to_owned(), |model| format::line(&model.id)),
    };
    html! {
        div.said.you[said.role == Role::User] data-role=(said.role.word()) {
            p.said-by { (name) }
            p.said-text { (said.content) }
            @if let Some(facts) = &said.facts { (facts_list(facts)) }
        }
    }
}

fn facts_list(facts: &Facts) -> Markup {
    html! {
        dl.facts {
            div { dt { "Cost" } dd { b { (credits_4(facts.cost)) } " credits" } }
            div { dt { "Tokens" } dd { (count(facts.tokens_in)) " in, " (count(facts.tokens_out)) " out" } }
            div { dt { "Cache" } dd {
                @if facts.cached { (parts::pill(Tone::Info, "From cache")) } @else { (parts::pill(Tone::Off, "Not cached")) }
            } }
            div { dt { "Answer" } dd { (count(facts.took_ms)) " ms" } }
        }
    }
}

fn composer(house: &House, visit: &Visit, csrf: &str, shown: &Shown<'_>) -> Markup {
    let mut id = [0; 16];
    house.entropy.fill(&mut id);
    let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    html! {
        form.panel.composer #composer method="post" action="/sandbox" {
            (parts::csrf(csrf))
            // Sent again, the same form is the same request: answered again, and charged once.
            input type="hidden" name="once" value=(id);
            @for said in shown.talk {
                input type="hidden" name=(said.role.word()) value=(said.content);
                @if let Some(facts) = &said.facts { input type="hidden" name="facts" value=(facts.write()); }
            }
            (Field::new("message", "Message").kind(FieldKind::Lines(3)).value(shown.message).problem(shown.problems).show())
            div.composer-foot {
                p.hint #most { @if let Some(most) = most(shown) { "At most " b { (credits_4(most)) } " credits for this request" } }
                button.button.filled #send type="submit" { "Send" }
                button.button #stop type="button" hidden { "Stop" }
            }
        }
        @if visit.session.is_none() { p { "Sign in to send." } }
    }
}

fn settings(house: &House, shown: &Shown<'_>) -> Markup {
    let chosen = shown.model.map(|model| &*model.id);
    let field = |name, label, value| {
        let field = Field::new(name, label)
            .kind(FieldKind::Decimal)
            .value(value)
            .quiet();
        field.form("composer").problem(shown.problems).show()
    };
    html! {
        section.panel.settings {
            div.panel-head { h2 { "Settings" } a href="/sandbox" { "Reset" } }
            div.field {
                label for="model" { "Model" }
                select #model name="model" form="composer" aria-describedby="model-price" {
                    @for model in house.facts.catalog.models() {
                        option value=(model.id) selected[chosen == Some(&*model.id)] data-in=(model.price.input.per_million().get())
                            data-out=(model.price.output.per_million().get()) data-request=(model.price.request.get())
                            data-price=(price(model)) data-max=(model.limits.output_tokens_default.get()) { (format::line(&model.id)) }
                    }
                }
                div.hint #model-price { @if let Some(model) = shown.model { (price(model)) } }
            }
            div.two {
                (field("temperature", "Temperature", shown.temperature))
                (field("max_tokens", "Max tokens", shown.max_tokens))
            }
            div.option hidden #stream-option {
                input #stream type="checkbox" checked autocomplete="off";
                label for="stream" { "Stream the answer" }
            }
            div.option {
                input #cache type="checkbox" name="cache" value="yes" form="composer" checked[shown.cache];
                label for="cache" { "Allow cached answers" }
            }
        }
    }
}

/// What a model costs, as `60 credits per million tokens in, 72 out`.
fn price(model: &Model) -> String {
    let price = &model.price;
    let mut words = format!(
        "{} credits per million tokens in, {} out",
        format::price(price.input.per_million()),
        format::price(price.output.per_million())
    );
    if price.request.is_positive() {
        words += &format!(", {} for each request", format::price(price.request));
    }
    words
}

fn this_model_costs(model: &Model) -> String {
    format!("This model costs {}.", price(model))
}

/// The most that the request can cost, worked out as the gateway does before it asks a model.
fn most(shown: &Shown<'_>) -> Option<Micros> {
    let model = shown.model?;
    let said: usize = shown.talk.iter().map(|said| said.content.len()).sum();
    let bytes = said + shown.message.len().max(SHORT_MESSAGE);
    let tokens_in = bytes.div_ceil(3) + 8 * (shown.talk.len() + 1) + 64;
    let tokens_out = shown
        .max_tokens
        .parse()
        .unwrap_or(model.limits.output_tokens_default.get());
    Some(model.price.quote(tokens_in as u64, tokens_out))
}

/// The request that this form sends, as an example.
fn example<'a>(shown: &Shown<'a>) -> ChatExample<'a> {
    let mut messages: Vec<Spoken<'a>> = shown
        .talk
        .iter()
        .map(|said| Spoken {
            role: said.role.word(),
            content: &said.content,
        })
        .collect();
    if !shown.message.is_empty() || messages.is_empty() {
        messages.push(Spoken {
            role: Role::User.word(),
            content: if shown.message.is_empty() {
                "Hello"
            } else {
                shown.message
            },
        });
    }
    ChatExample {
        model: shown.model.map_or("MODEL", |model| &model.id),
        temperature: serde_json::from_str(shown.temperature).ok(),
        max_tokens: shown.max_tokens.parse().ok(),
        stream: None,
        cache: (!shown.cache).then_some(false),
        messages,
    }
}

/// What the API refused, in its words, and what to do.
fn refusal(code: &str, message: &str) -> Markup {
    parts::notice(
        Tone::Bad,
        code,
        html! {
            (message)
            @match code {
                "insufficient_credits" => { " " a href="/credits/add" { "Add credits" } }
                _ => { " " a href={ "/docs/errors#" (code) } { "What it means" } }
            }
        },
    )
}
