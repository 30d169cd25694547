//! The bodies of the list and of a single model: models serialised once per catalog, joined per request.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tollgate_clock::Timestamp;
use tollgate_filter::{Catalog, Model, ModelAccess};
use tollgate_money::{AccountId, Micros, UsdPerCredit};

/// The models of a catalog, pre-serialised as JSON.
pub(crate) struct Listing {
    entries: Vec<(Arc<Model>, Bytes)>,
    /// Name of the member with account data: `x_` and the service name.
    metadata: Box<str>,
    /// Size of a list with every model, in bytes.
    size: usize,
}

/// Account data of a list.
pub(crate) struct ListContext<'a> {
    pub(crate) owner: AccountId,
    pub(crate) credits_remaining: Micros,
    pub(crate) models: &'a ModelAccess,
}

impl Listing {
    pub(crate) fn new(service: &str, catalog: &Catalog, rate: Option<UsdPerCredit>) -> Listing {
        let entries: Vec<_> = catalog
            .models()
            .iter()
            .map(|model| (model.clone(), Bytes::from(entry(model, rate))))
            .collect();
        let size = entries
            .iter()
            .map(|(_, text)| text.len() + 1)
            .sum::<usize>()
            + 256;
        Listing {
            entries,
            metadata: format!("x_{service}").into(),
            size,
        }
    }

    /// A model by its id, if the credential may use the model. The model's health does not matter: a request for the model is attempted.
    pub(crate) fn one(&self, id: &str, models: &ModelAccess) -> Option<Bytes> {
        let mut entries = self.entries.iter();
        let found = entries.find(|(model, _)| *model.id == *id);
        let (_, text) = found.filter(|_| models.allows(id))?;
        Some(text.clone())
    }

    /// The list for an account: the available models that the account's credential may use, in the order of the settings.
    pub(crate) fn body(&self, context: &ListContext<'_>) -> Bytes {
        let mut body = BytesMut::with_capacity(self.size);
        body.extend_from_slice(br#"{"object":"list","data":["#);
        let shown = self
            .entries
            .iter()
            .filter(|(model, _)| model.is_working() && context.models.allows(&model.id));
        for (at, (_, text)) in shown.enumerate() {
            if at > 0 {
                body.extend_from_slice(b",");
            }
            body.extend_from_slice(text);
        }
        let facts = format!(
            r#"],"{}":{{"owner":"{}","credits_remaining":{}}}}}"#,
            self.metadata, context.owner, context.credits_remaining
        );
        body.extend_from_slice(facts.as_bytes());
        body.freeze()
    }
}

/// A model as an item of the list.
fn entry(model: &Model, rate: Option<UsdPerCredit>) -> String {
    // Stock clients take the member for granted.
    let created = model.created.map_or(0, Timestamp::as_secs);
    let mut text = format!(
        r#"{{"id":{},"object":"model","created":{created},"owned_by":{}"#,
        quoted(&model.id),
        quoted(&model.owned_by)
    );
    if let Some(name) = &model.name {
        text += &format!(r#","name":{}"#, quoted(name));
    }
    match model.limits.context_length {
        Some(tokens) => text += &format!(r#","context_length":{tokens}"#),
        None => text += r#","context_length":null"#,
    }
    let price = &model.price;
    text += &format!(
        r#","cost":{{"input":{},"output":{},"request":{}}}"#,
        price.input.per_million(),
        price.output.per_million(),
        price.request
    );
    match rate.map(|rate| rate.of(price)) {
        Some(usd) => {
            text += &format!(
                r#","pricing":{{"prompt":"{}","completion":"{}","request":"{}"}}"#,
                usd.prompt, usd.completion, usd.request
            );
        }
        None => text += r#","pricing":null"#,
    }
    let modalities: Vec<_> = model
        .output_modalities
        .iter()
        .map(|modality| quoted(modality))
        .collect();
    text + &format!(r#","output_modalities":[{}]}}"#, modalities.join(","))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("a string serialises")
}
