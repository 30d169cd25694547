//! `/sandbox`: a chat form that sends real requests, paid from the balance.
//!
//! With JavaScript, the browser calls the API itself with a token from this page, and the answer streams. Without it, the form is posted
//! here, the handler calls the API in process ([`crate::in_process_api`]) and the page shows the complete answer; the form carries the
//! conversation.

mod chat;
mod submit;
pub(super) mod tokens;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, header};
use maud::{Markup, html};
use secrecy::ExposeSecret;
use serde_json::json;
use tollgate_filter::{Model, Reply};
use tollgate_money::Micros;
use tollgate_pages::format::{self, count, credits_4};
use tollgate_pages::parts::{self, Field, FieldKind, Problem, Tone};
use tollgate_pages::{NavItem, Page, Script};

use self::chat::{AnswerStats, ChatMessage, Role};
pub(crate) use self::submit::submit;
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::samples::{ChatExample, ExampleMessage};

/// Path of the API operation.
const CHAT_PATH: &str = "/v1/chat/completions";

/// Initial values of the form.
const TEMPERATURE: &str = "0.7";
const MAX_TOKENS: &str = "256";

/// Message size assumed for the cost estimate while the field is empty, in bytes.
const SHORT_MESSAGE: usize = 300;

/// State of the page.
struct SandboxState<'a> {
    history: &'a [ChatMessage],
    model: Option<&'a Arc<Model>>,
    temperature: &'a str,
    max_tokens: &'a str,
    cache: bool,
    message: &'a str,
    problems: &'a [Problem],
    /// Error of the API: code and message.
    refused: Option<(&'a str, &'a str)>,
    /// The body of the request that was sent.
    sent: Option<&'a str>,
}

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    // A message that was sent after the session had ended.
    let draft = request.take_draft(context).await?;
    let form = draft.as_ref().unwrap_or(&request.query);
    let history = chat::read_messages(form);
    let catalog = &context.settings.installation.catalog;
    let model = catalog.get(form.text("model"));
    let state = SandboxState {
        history: &history,
        model: model.or_else(|| first_model(context)),
        temperature: form.find("temperature").unwrap_or(TEMPERATURE),
        max_tokens: form.find("max_tokens").unwrap_or(MAX_TOKENS),
        cache: draft.is_none() || form.text("cache") == "yes",
        message: form.text("message"),
        problems: &[],
        refused: None,
        sent: None,
    };
    Ok(request.page(context, &page(context, request, &state)?))
}

/// `POST /sandbox/token`: an access token for the script.
pub(crate) async fn token(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let session = request.require_session()?;
    let issued = tokens::issue(context, session, request.now).await?;
    let body = json!({
        "token": issued.secret.expose_secret(),
        "expires_in": issued.expires_at.duration_since(request.now).as_secs(),
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

fn first_model(context: &PortalContext) -> Option<&Arc<Model>> {
    context
        .settings
        .installation
        .catalog
        .default_model()
        .or(context.settings.installation.catalog.models().first())
}

fn page(
    context: &PortalContext,
    request: &PageRequest,
    state: &SandboxState<'_>,
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let new = html! { a.button href="/sandbox" { "New conversation" } };
    let content = html! {
        (parts::problems(state.problems))
        @if let Some((code, message)) = state.refused { (refusal(code, message, context.sells_credits())) }
        (parts::heading("Sandbox", Some(new)))
        p.lead { "Real requests, paid from your balance. What you see here is what the API does." }
        div.sandbox #sandbox data-api=(CHAT_PATH) data-metadata={ "x_" (context.service.name) } data-base=(context.address.api())
            data-variable=(context.address.variable())
        {
            div.talk {
                section.panel.conversation #conversation aria-label="Conversation" tabindex="0" {
                    @for message in state.history { (message_block(message, state)) }
                    @if state.history.is_empty() { p.second #nothing-said { "Ask something." @if let Some(model) = state.model { " " (this_model_costs(model)) } } }
                }
                @if let Some(sent) = state.sent { (sent_request(sent)) }
                p.unseen #sandbox-status role="status" {}
                (composer(context, request, &viewer.csrf, state))
            }
            div.talk-side {
                (settings(context, state))
                section.panel { (parts::samples("request", "The same request in code", &example(state).samples(&context.address))) }
            }
        }
    };
    let page = Page::dashboard("Sandbox", NavItem::Sandbox, viewer, content);
    let page = page.with_script(Script::Copy).with_script(Script::Sandbox);
    Ok(if state.problems.is_empty() {
        page
    } else {
        page.with_error_title()
    })
}

fn message_block(message: &ChatMessage, state: &SandboxState<'_>) -> Markup {
    let name = match message.role {
        Role::User => "You".to_owned(),
        Role::Assistant => state
            .model
            .map_or("Answer".to_owned(), |model| format::single_line(&model.id)),
    };
    html! {
        div.said.you[message.role == Role::User] data-role=(message.role.word()) {
            p.said-by { (name) }
            p.said-text { (message.content) }
            @if let Some(stats) = &message.stats { (stats_list(stats)) }
        }
    }
}

/// The sent request, as received by the API. The script shows an equal text below each answer.
fn sent_request(body: &str) -> Markup {
    let text = format!("POST {CHAT_PATH}\n\n{body}");
    html! {
        details.sent {
            summary { "Request sent" }
            (parts::code("request-sent", "Request sent", &text))
        }
    }
}

fn stats_list(stats: &AnswerStats) -> Markup {
    html! {
        dl.facts {
            div { dt { "Cost" } dd { b { (credits_4(stats.cost)) } " credits" } }
            div { dt { "Tokens" } dd { (count(stats.tokens_in)) " in, " (count(stats.tokens_out)) " out" } }
            div { dt { "Cache" } dd {
                @if stats.cached { (parts::pill(Tone::Info, "From cache")) } @else { (parts::pill(Tone::Off, "Not cached")) }
            } }
            div { dt { "Answer" } dd { (count(stats.took_ms)) " ms" } }
        }
    }
}

fn composer(
    context: &PortalContext,
    request: &PageRequest,
    csrf: &str,
    state: &SandboxState<'_>,
) -> Markup {
    let mut id = [0; 16];
    context.entropy.fill(&mut id);
    let id = base16ct::lower::encode_string(&id);
    html! {
        form.panel.composer #composer method="post" action="/sandbox" {
            (parts::csrf(csrf))
            // Idempotency key: submitted again, the form is the same request, charged once.
            input type="hidden" name="once" value=(id);
            @for message in state.history {
                input type="hidden" name=(message.role.word()) value=(message.content);
                @if let Some(stats) = &message.stats { input type="hidden" name="facts" value=(stats.write()); }
            }
            (Field::new("message", "Message").kind(FieldKind::Lines(3)).value(state.message).problem(state.problems).show())
            div.composer-foot {
                p.hint #most { @if let Some(max_cost) = max_cost(state) { "At most " b { (credits_4(max_cost)) } " credits for this request" } }
                button.button.filled #send type="submit" { "Send" }
                button.button #stop type="button" hidden { "Stop" }
            }
        }
        @if request.session.is_none() { p { "Sign in to send." } }
    }
}

fn settings(context: &PortalContext, state: &SandboxState<'_>) -> Markup {
    let chosen = state.model.map(|model| &*model.id);
    let field = |name, label, value| {
        let field = Field::new(name, label)
            .kind(FieldKind::Decimal)
            .value(value)
            .quiet();
        field.form("composer").problem(state.problems).show()
    };
    html! {
        section.panel.settings {
            div.panel-head { h2 { "Settings" } a href="/sandbox" { "Reset" } }
            div.field {
                label for="model" { "Model" }
                select #model name="model" form="composer" aria-describedby="model-price" {
                    @for model in context.settings.installation.catalog.models() {
                        option value=(model.id) selected[chosen == Some(&*model.id)] data-in=(model.price.input.per_million().get())
                            data-out=(model.price.output.per_million().get()) data-request=(model.price.request.get())
                            data-price=(price(model)) data-max=(model.limits.output_tokens_default.get()) { (format::single_line(&model.id)) }
                    }
                }
                div.hint #model-price { @if let Some(model) = state.model { (price(model)) } }
            }
            div.two {
                (field("temperature", "Temperature", state.temperature))
                (field("max_tokens", "Max tokens", state.max_tokens))
            }
            div.option hidden #stream-option {
                input #stream type="checkbox" checked autocomplete="off";
                label for="stream" { "Stream the answer" }
            }
            div.option {
                input #cache type="checkbox" name="cache" value="yes" form="composer" checked[state.cache];
                label for="cache" { "Allow cached answers" }
            }
        }
    }
}

/// Price of a model: `60 credits per million tokens in, 72 out`.
fn price(model: &Model) -> String {
    let price = &model.price;
    let mut text = format!(
        "{} credits per million tokens in, {} out",
        format::price(price.input.per_million()),
        format::price(price.output.per_million())
    );
    if price.request.is_positive() {
        text += &format!(", {} for each request", format::price(price.request));
    }
    text
}

fn this_model_costs(model: &Model) -> String {
    format!("This model costs {}.", price(model))
}

/// Maximum cost of the request, computed like the hold of the gateway.
fn max_cost(state: &SandboxState<'_>) -> Option<Micros> {
    let model = state.model?;
    let said_bytes: usize = state
        .history
        .iter()
        .map(|message| message.content.len())
        .sum();
    let bytes = said_bytes + state.message.len().max(SHORT_MESSAGE);
    let tokens_in = bytes.div_ceil(3) + 8 * (state.history.len() + 1) + 64;
    let tokens_out = state
        .max_tokens
        .parse()
        .unwrap_or(model.limits.output_tokens_default.get());
    Some(model.price.quote(tokens_in as u64, tokens_out))
}

/// The request of this form as a code example.
fn example<'a>(state: &SandboxState<'a>) -> ChatExample<'a> {
    let mut messages: Vec<ExampleMessage<'a>> = state
        .history
        .iter()
        .map(|message| ExampleMessage {
            role: message.role.word(),
            content: &message.content,
        })
        .collect();
    if !state.message.is_empty() || messages.is_empty() {
        messages.push(ExampleMessage {
            role: Role::User.word(),
            content: if state.message.is_empty() {
                "Hello"
            } else {
                state.message
            },
        });
    }
    ChatExample {
        model: state.model.map_or("MODEL", |model| &model.id),
        temperature: serde_json::from_str(state.temperature).ok(),
        max_tokens: state.max_tokens.parse().ok(),
        stream: None,
        cache: (!state.cache).then_some(false),
        messages,
    }
}

/// Error notice with the message of the API and a remedy. `is_sold`: whether credits can be bought here.
fn refusal(code: &str, message: &str, is_sold: bool) -> Markup {
    parts::notice(
        Tone::Bad,
        code,
        html! {
            (message)
            @match code {
                "insufficient_credits" if is_sold => { " " a href="/credits/add" { "Add credits" } }
                _ => { " " a href={ "/docs/errors#" (code) } { "What it means" } }
            }
        },
    )
}
