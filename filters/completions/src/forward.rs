//! The bodies that go to a provider.

use std::sync::Arc;

use bytes::Bytes;
use tollgate_filter::{CapMember, Exchange, ForwardBody, OutputCap};
use tollgate_openai::{BodyEdit, CompletionRequest, Endpoint, RequestError, TextAsChat};

/// The client's body with the members changed that the gateway owns; every other byte is the client's.
#[derive(Default)]
pub(crate) struct CompletionBody {
    /// A cap on the output that the client did not name.
    cap: Option<OutputCap>,
}

impl ForwardBody for CompletionBody {
    fn render(&self, exchange: &Exchange, provider_model: &str) -> Bytes {
        let original = &exchange.request.body;
        // Both are left on the exchange at once. The body as it came would be for another model, without the cap that is paid for.
        let request = exchange
            .get::<CompletionRequest>()
            .expect("who forwards a completion leaves its request on the exchange");
        render(request, original, provider_model, self.cap)
    }

    fn cap_output(&mut self, cap: OutputCap) {
        self.cap = Some(cap);
    }
}

fn render(
    request: &CompletionRequest,
    original: &Bytes,
    provider_model: &str,
    cap: Option<OutputCap>,
) -> Bytes {
    let mut edit = BodyEdit::new(request)
        .model(provider_model)
        .without_cache()
        .with_usage()
        .system_before_prompt();
    if let Some(OutputCap { tokens, member }) = cap {
        let member = match member {
            CapMember::MaxTokens => tollgate_openai::CapMember::MaxTokens,
            CapMember::MaxCompletionTokens => tollgate_openai::CapMember::MaxCompletionTokens,
        };
        edit = edit.cap_output(tokens, member);
    }
    edit.apply(original)
}

/// The chats that stand for a text request, one for each prompt.
pub(crate) struct ChatBodies {
    chats: Vec<(Arc<CompletionRequest>, Bytes)>,
    cap: Option<OutputCap>,
}

/// One of them.
struct ChatBody {
    request: Arc<CompletionRequest>,
    original: Bytes,
    cap: Option<OutputCap>,
}

impl ChatBodies {
    /// The chats as requests of their own: what passes in a text request because nobody looks at it may be wrong in a chat.
    pub(crate) fn read(asked: &TextAsChat) -> Result<ChatBodies, RequestError> {
        let mut chats = Vec::with_capacity(asked.chats().len());
        for chat in asked.chats() {
            let request = CompletionRequest::read(Endpoint::Chat, chat)?;
            chats.push((Arc::from(request), chat.clone()));
        }
        Ok(ChatBodies { chats, cap: None })
    }

    fn part(&self, (request, original): &(Arc<CompletionRequest>, Bytes)) -> ChatBody {
        ChatBody {
            request: Arc::clone(request),
            original: original.clone(),
            cap: self.cap,
        }
    }
}

impl ForwardBody for ChatBodies {
    fn render(&self, exchange: &Exchange, provider_model: &str) -> Bytes {
        // Whoever asks for one body gets the first; there is one for each prompt, and at least one prompt.
        match self.chats.first() {
            Some(chat) => self.part(chat).render(exchange, provider_model),
            None => exchange.request.body.clone(),
        }
    }

    fn parts(&self) -> Vec<Box<dyn ForwardBody>> {
        let part = |chat| Box::new(self.part(chat)) as Box<dyn ForwardBody>;
        self.chats.iter().map(part).collect()
    }

    fn cap_output(&mut self, cap: OutputCap) {
        self.cap = Some(cap);
    }
}

impl ForwardBody for ChatBody {
    fn render(&self, _: &Exchange, provider_model: &str) -> Bytes {
        render(&self.request, &self.original, provider_model, self.cap)
    }

    fn cap_output(&mut self, cap: OutputCap) {
        self.cap = Some(cap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_gateway_owns_differs_from_what_the_client_sent() {
        const MESSAGES: &str = r#""messages":[{"role":"user","content":"\u0041 \/ 1.50"}]"#;
        //    client's members, cap, provider's members
        check(r#""model":"m","x":1.50"#, None, r#""model":"p","x":1.50"#);
        check(
            r#""model":"p" , "x" : {}"#,
            None,
            r#""model":"p" , "x" : {}"#,
        );
        check(r#""model":"m","cache":false"#, None, r#""model":"p""#);
        check(r#""cache":true,"model":"m""#, None, r#""model":"p""#);
        check(
            r#""model":"m","stream":true"#,
            None,
            r#""model":"p","stream":true,"stream_options":{"include_usage":true}"#,
        );
        check(
            r#""model":"m","stream":true,"stream_options":{"include_usage":false}"#,
            None,
            r#""model":"p","stream":true,"stream_options":{"include_usage":true}"#,
        );
        let cap = |member| Some(OutputCap { tokens: 40, member });
        check(
            r#""model":"m""#,
            cap(CapMember::MaxTokens),
            r#""model":"p","max_tokens":40"#,
        );
        check(
            r#""model":"m""#,
            cap(CapMember::MaxCompletionTokens),
            r#""model":"p","max_completion_tokens":40"#,
        );

        fn check(client: &str, cap: Option<OutputCap>, provider: &str) {
            let original = Bytes::from(format!("{{{MESSAGES},{client}}}"));
            let request = CompletionRequest::read(Endpoint::Chat, &original).expect("a request");
            let rendered = render(&request, &original, "p", cap);
            let rendered = std::str::from_utf8(&rendered).expect("UTF-8");
            assert_eq!(rendered, format!("{{{MESSAGES},{provider}}}"), "{client}");
        }
    }
}
