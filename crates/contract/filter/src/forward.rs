//! The request to the upstream, complete except for the choice of a provider.

use std::sync::Arc;

use bytes::Bytes;
use tollgate_money::Micros;

use crate::settings::Words;
use crate::{Api, Exchange, Model, ProviderModel};

/// A model call, complete except for the choice of a provider. Put on the exchange by the filter that validated the request.
pub struct Forward {
    /// The requested model.
    pub model: Arc<Model>,
    /// The called operation; only providers that offer the operation for the model can serve the request.
    pub api: Api,
    /// The operation that the client called. Where `asked` differs from `api`, the response is translated into the format of `asked`.
    pub asked: Api,
    /// Whether the client requested a stream.
    pub stream: bool,
    /// Estimated maximum of tokens of the request, in and out; 0 before the computation.
    pub tokens_max: u64,
    /// The quote, the highest possible price of the request; `None` before the computation, and where requests are not charged.
    pub quote: Option<Micros>,
    /// The body.
    pub body: Box<dyn ForwardBody>,
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forward")
            .field("model", &self.model.id)
            .field("api", &self.api)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// The client's body, with changes to the few members that the gateway owns.
pub trait ForwardBody: Send + Sync {
    /// The body for a model at a provider, built from the exchange: the client's body, and its parsed form.
    fn render(&self, exchange: &Exchange, at: &ProviderModel) -> Bytes;

    /// The bodies of the calls of a request that is sent through another operation than the client's operation ([`Forward::asked`]):
    /// several prompts are several chats. With the cap, if any. Empty where this body is the only body.
    fn parts(&self) -> Vec<Box<dyn ForwardBody>> {
        Vec::new()
    }

    /// Caps the output, for a request without a cap and an account that cannot pay for the default cap.
    fn cap_output(&mut self, cap: OutputCap);
}

/// A cap on the output of a choice, and the cap's member name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputCap {
    /// Tokens.
    pub tokens: u64,
    /// The member of a chat request for the cap.
    pub member: CapMember,
}

/// The two members of a chat request that cap its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapMember {
    /// `max_tokens`, the older member, supported by nearly every provider; the only cap member in a text request.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`, for models that refuse `max_tokens`.
    MaxCompletionTokens,
}

impl Words for CapMember {
    const WORDS: &'static [(&'static str, CapMember)] = &[
        ("max_tokens", CapMember::MaxTokens),
        ("max_completion_tokens", CapMember::MaxCompletionTokens),
    ];
}

/// The prompts of a request with more than one prompt: a prompt counts as a concurrent request. Put on the exchange by the filter that
/// validated the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prompts(pub u64);

/// Marks a request whose output was capped at the account's credit. Put on the exchange in `on_forward`, after the cache lookup: a response
/// shortened for lack of credit is not valid for other accounts and is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clamped;
