//! What is to be sent upstream.

use std::sync::Arc;

use bytes::Bytes;

use crate::Model;

/// A model call, ready but for the choice of a provider. Put on the exchange by the filter that checked the request.
pub struct Forward {
    /// The model the client asked for.
    pub model: Arc<Model>,
    /// The path below the provider's base address, such as `/chat/completions`.
    pub path: &'static str,
    /// Whether the client wants a stream.
    pub stream: bool,
    /// The body.
    pub body: Box<dyn ForwardBody>,
}

impl std::fmt::Debug for Forward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Forward")
            .field("model", &self.model.id)
            .field("path", &self.path)
            .field("stream", &self.stream)
            .finish_non_exhaustive()
    }
}

/// The client's body with the few members that the gateway owns changed.
pub trait ForwardBody: Send + Sync {
    /// The body for a provider that calls the model `provider_model`. `original` is the body as the client sent it.
    fn render(&self, original: &Bytes, provider_model: &str) -> Bytes;

    /// Caps the output at `tokens`, for a request that named no cap and an account that cannot pay for the default one.
    fn cap_output(&mut self, tokens: u64);
}
