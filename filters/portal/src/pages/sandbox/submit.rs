//! `POST /sandbox`: a message sent with the form, without JavaScript.

use bytes::Bytes;
use serde_json::{Map, Number, Value, json};
use tollgate_filter::Reply;
use tollgate_pages::parts::Problem;

use super::chat::{ChatMessage, ChatOutcome, Role, parse_response, read_messages};
use super::{CHAT_PATH, SandboxState, first_model, page};
use crate::context::PortalContext;
use crate::form::Form;
use crate::in_process_api::InProcessRequest;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

pub(crate) async fn submit(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let form = std::mem::take(&mut request.form);
    let history = read_messages(&form);
    let requested = form.text("model");
    let mut problems = Vec::new();
    let message = form.text("message");
    if message.is_empty() {
        problems.push(Problem::new("message", "Write a message."));
    }
    let temperature = temperature(&form, &mut problems);
    let max_tokens = max_tokens(&form, &mut problems);
    let cache = form.text("cache") == "yes";
    let model = context
        .settings
        .installation
        .catalog
        .get(requested)
        .or_else(|| first_model(context));
    let mut state = SandboxState {
        history: &history,
        model,
        temperature: form.text("temperature"),
        max_tokens: form.text("max_tokens"),
        cache,
        message,
        problems: &problems,
        refused: None,
        sent: None,
    };
    if !problems.is_empty() {
        let page = page(context, request, &state)?;
        return Ok(request.refused(context, page));
    }
    let sent_messages = messages(&history, message);
    let body = Value::from(request_body(
        (
            model.map(|model| &*model.id),
            temperature,
            max_tokens,
            cache,
        ),
        sent_messages,
    ));
    let sent = format!("{body:#}");
    state.sent = Some(&sent);
    let submission_id: String = form
        .text("once")
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(32)
        .collect();
    match send(context, request, body.to_string(), submission_id).await? {
        ChatOutcome::Answer(answer) => {
            let requested = ChatMessage {
                role: Role::User,
                content: message.to_owned(),
                stats: None,
            };
            let history = [&history[..], &[requested, answer]].concat();
            let state = SandboxState {
                history: &history,
                message: "",
                ..state
            };
            Ok(request.page(context, &page(context, request, &state)?))
        }
        ChatOutcome::Refused { code, message } => {
            state.refused = Some((&code, &message));
            let page = page(context, request, &state)?;
            Ok(request.refused(context, page))
        }
    }
}

fn temperature(form: &Form, problems: &mut Vec<Problem>) -> Option<Number> {
    match form.text("temperature") {
        "" => None,
        text => match serde_json::from_str::<Number>(text) {
            Ok(number) if number.as_f64().is_some_and(|number| number >= 0.0) => Some(number),
            _ => {
                problems.push(Problem::new(
                    "temperature",
                    "Write the temperature as a number from 0 up, like 0.7.",
                ));
                None
            }
        },
    }
}

fn max_tokens(form: &Form, problems: &mut Vec<Problem>) -> Option<u64> {
    match form.text("max_tokens") {
        "" => None,
        text => match text.parse() {
            Ok(tokens) if tokens > 0 => Some(tokens),
            _ => {
                let problem = "Write a whole number of tokens, like 256.";
                problems.push(Problem::new("max_tokens", problem));
                None
            }
        },
    }
}

/// The conversation so far and the new message, as the API reads them.
fn messages(history: &[ChatMessage], message: &str) -> Vec<Value> {
    let mut messages: Vec<Value> = history
        .iter()
        .map(|message| json!({ "role": message.role.word(), "content": message.content }))
        .collect();
    messages.push(json!({ "role": "user", "content": message }));
    messages
}

fn request_body(
    (model, temperature, max_tokens, cache): (Option<&str>, Option<Number>, Option<u64>, bool),
    messages: Vec<Value>,
) -> Map<String, Value> {
    let mut body = Map::new();
    if let Some(model) = model {
        body.insert("model".into(), model.into());
    }
    if let Some(temperature) = temperature {
        body.insert("temperature".into(), temperature.into());
    }
    if let Some(tokens) = max_tokens {
        body.insert("max_tokens".into(), tokens.into());
    }
    if !cache {
        body.insert("cache".into(), false.into());
    }
    body.insert("messages".into(), messages.into());
    body
}

/// Sends the request to the in-process API with a sandbox token of the session.
async fn send(
    context: &PortalContext,
    request: &PageRequest,
    body: String,
    submission_id: String,
) -> Result<ChatOutcome, PageError> {
    let unavailable = |message: &str| ChatOutcome::Refused {
        code: "overloaded".into(),
        message: message.into(),
    };
    let Some(content) = &context.api else {
        return Ok(unavailable(
            "The sandbox is not available on this installation. Use JavaScript or the API.",
        ));
    };
    let token = super::tokens::issue(context, request.require_session()?, request.now).await?;
    let call = InProcessRequest {
        path: CHAT_PATH,
        bearer: token.secret,
        idempotency_key: format!("sandbox-{submission_id}"),
        body: Bytes::from(body),
        client: request.client,
    };
    let Some(answer) = content.call(call).await else {
        return Ok(unavailable(
            "The gateway could not complete the request. Try again.",
        ));
    };
    let took = u64::try_from(answer.took.as_millis()).unwrap_or(u64::MAX);
    let metadata = format!("x_{}", context.service.name);
    Ok(parse_response(&answer.body, &metadata, took))
}
