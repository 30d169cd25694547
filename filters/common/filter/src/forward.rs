//! What is to be sent upstream.

use std::sync::Arc;

use bytes::Bytes;

use crate::{Api, Exchange, Model, ProviderModel};

/// A model call, ready but for the choice of a provider. Put on the exchange by the filter that checked the request.
pub struct Forward {
    /// The model the client asked for.
    pub model: Arc<Model>,
    /// The operation that is called; only providers that have it for this model can serve the request.
    pub api: Api,
    /// The operation that the client called. Where it differs from `api`, the answer is turned into the shape of this one.
    pub asked: Api,
    /// Whether the client wants a stream.
    pub stream: bool,
    /// Tokens that the request may use at most, in and out, as far as it is expected to; 0 until somebody has worked it out.
    pub tokens_max: u64,
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

/// The client's body with the few members that the gateway owns changed.
pub trait ForwardBody: Send + Sync {
    /// The body for a model at one provider, from what stands on the exchange: the body as the client sent it, and what was found in it.
    fn render(&self, exchange: &Exchange, at: &ProviderModel) -> Bytes;

    /// The bodies of the calls that the request takes, where it is sent through another operation than the client's
    /// ([`Forward::asked`]): several prompts are several chats. With the cap, if there is one. Empty where this body is the only one.
    fn parts(&self) -> Vec<Box<dyn ForwardBody>> {
        Vec::new()
    }

    /// Caps the output, for a request that named no cap and an account that cannot pay for the default one.
    fn cap_output(&mut self, cap: OutputCap);
}

/// A cap on the output of each answer, and how it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputCap {
    /// Tokens.
    pub tokens: u64,
    /// The member of a chat request that carries it.
    pub member: CapMember,
}

/// The two members of a chat request that cap its output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CapMember {
    /// `max_tokens`, the older one, which nearly every provider knows; the only one in a text request.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`, for models that refuse the older one.
    MaxCompletionTokens,
}

/// The mark of a request whose output was capped at what its account can pay. Put on the exchange in `on_forward`, which comes after
/// the look into the cache: an answer that is short for want of credit is nobody else's answer and is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clamped;
