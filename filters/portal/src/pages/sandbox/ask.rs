//! A message sent with the form.

use bytes::Bytes;
use serde_json::{Map, Number, Value, json};
use tollgate_filter::Reply;
use tollgate_pages::parts::Problem;

use super::talk::{Answered, Role, Said, answered, read};
use super::{CHAT, Shown, first_model, page};
use crate::house::House;
use crate::inside::InsideCall;
use crate::trouble::Trouble;
use crate::visit::Visit;

pub(crate) async fn ask(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let form = std::mem::take(&mut visit.form);
    let talk = read(&form);
    let asked = form.text("model");
    let mut problems = Vec::new();
    let mut wrong = |field: &str, text: &str| problems.push(Problem::new(field, text));
    let message = form.text("message");
    if message.is_empty() {
        wrong("message", "Write a message.");
    }
    let temperature: Option<Number> = match form.text("temperature") {
        "" => None,
        text => match serde_json::from_str::<Number>(text) {
            Ok(number) if number.as_f64().is_some_and(|number| number >= 0.0) => Some(number),
            _ => {
                wrong(
                    "temperature",
                    "Write the temperature as a number from 0 up, like 0.7.",
                );
                None
            }
        },
    };
    let max_tokens: Option<u64> = match form.text("max_tokens") {
        "" => None,
        text => match text.parse() {
            Ok(tokens) if tokens > 0 => Some(tokens),
            _ => {
                wrong("max_tokens", "Write a whole number of tokens, like 256.");
                None
            }
        },
    };
    let cache = form.text("cache") == "yes";
    let model = house
        .facts
        .catalog
        .get(asked)
        .or_else(|| first_model(house));
    let mut shown = Shown {
        talk: &talk,
        model,
        temperature: form.text("temperature"),
        max_tokens: form.text("max_tokens"),
        cache,
        message,
        problems: &problems,
        refused: None,
    };
    if !problems.is_empty() {
        let page = page(house, visit, &shown)?;
        return Ok(visit.refused(house, page));
    }
    let mut messages: Vec<Value> = talk
        .iter()
        .map(|said| json!({ "role": said.role.word(), "content": said.content }))
        .collect();
    messages.push(json!({ "role": "user", "content": message }));
    let mut body = Map::new();
    if let Some(model) = model {
        body.insert("model".into(), (&*model.id).into());
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
    let once: String = form
        .text("once")
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(32)
        .collect();
    match send(house, visit, Value::from(body).to_string(), once).await? {
        Answered::Said(answer) => {
            let asked = Said {
                role: Role::User,
                content: message.to_owned(),
                facts: None,
            };
            let talk = [&talk[..], &[asked, answer]].concat();
            let shown = Shown {
                talk: &talk,
                message: "",
                ..shown
            };
            Ok(visit.page(house, &page(house, visit, &shown)?))
        }
        Answered::Refused { code, message } => {
            shown.refused = Some((&code, &message));
            let page = page(house, visit, &shown)?;
            Ok(visit.refused(house, page))
        }
    }
}

/// Asks the API from within, in the name of whoever is signed in.
async fn send(
    house: &House,
    visit: &Visit,
    body: String,
    once: String,
) -> Result<Answered, Trouble> {
    let unavailable = |message: &str| Answered::Refused {
        code: "overloaded".into(),
        message: message.into(),
    };
    let Some(inside) = &house.inside else {
        return Ok(unavailable("The sandbox is not available here."));
    };
    let token = house
        .sandbox
        .issue(house, visit.signed_in()?, visit.now)
        .await?;
    let call = InsideCall {
        path: CHAT,
        bearer: token.secret,
        idempotency_key: format!("sandbox-{once}"),
        body: Bytes::from(body),
        client: visit.client,
    };
    let Some(answer) = inside.call(call).await else {
        return Ok(unavailable(
            "The gateway could not take the request to its end. Try again.",
        ));
    };
    let took = u64::try_from(answer.took.as_millis()).unwrap_or(u64::MAX);
    let metadata = format!("x_{}", house.service.name);
    Ok(answered(&answer.body, &metadata, took))
}
