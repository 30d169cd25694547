//! The upstream request body: the client's bytes with the gateway's members edited, every other byte unchanged.

use std::sync::Arc;

use bytes::Bytes;
use tollgate_filter::{CapMember, Exchange, ForwardBody, OutputCap, ProviderModel};
use tollgate_openai::{BodyEdit, CompletionRequest, Family, RequestError, TextAsChat};

/// The client's body with the gateway's members rewritten, and without members that the provider's settings remove. Every other byte is the
/// client's.
#[derive(Default)]
pub(crate) struct CompletionBody {
    /// A cap on the output, for a request without a cap.
    cap: Option<OutputCap>,
}

impl ForwardBody for CompletionBody {
    fn render(&self, exchange: &Exchange, at: &ProviderModel) -> Bytes {
        let original = &exchange.request.body;
        // The request and the body are put on the exchange together. The original body would name another model, and lack the paid cap.
        let request = exchange
            .get::<CompletionRequest>()
            .expect("who forwards a completion leaves its request on the exchange");
        render(request, original, at, self.cap)
    }

    fn cap_output(&mut self, cap: OutputCap) {
        self.cap = Some(cap);
    }
}

fn render(
    request: &CompletionRequest,
    original: &Bytes,
    at: &ProviderModel,
    cap: Option<OutputCap>,
) -> Bytes {
    let mut edit = BodyEdit::new(request)
        .model(&at.model)
        .without(&at.removed_members)
        .without_cache()
        .with_usage()
        .system_before_prompt()
        .developer_as_system(!at.developer_role);
    if let Some(OutputCap { tokens, member }) = cap {
        edit = edit.cap_output(tokens);
        if member == CapMember::MaxCompletionTokens {
            edit = edit.cap_completion_tokens();
        }
    }
    edit.apply(original)
}

/// The chats that replace a text request, a chat for each prompt.
pub(crate) struct ChatBodies {
    chats: Vec<(Arc<CompletionRequest>, Bytes)>,
    cap: Option<OutputCap>,
}

/// A chat of [`ChatBodies`].
struct ChatBody {
    request: Arc<CompletionRequest>,
    original: Bytes,
    cap: Option<OutputCap>,
}

impl ChatBodies {
    /// Parses the chats as separate requests: a member ignored in a text request may be invalid in a chat. `listed` are the members that
    /// some provider removes or refuses.
    pub(crate) fn read(
        asked: &TextAsChat,
        listed: &[Box<str>],
    ) -> Result<ChatBodies, RequestError> {
        let mut chats = Vec::with_capacity(asked.chats().len());
        for chat in asked.chats() {
            let request = CompletionRequest::read_listing(Family::CHAT, chat, listed)?;
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
    fn render(&self, exchange: &Exchange, at: &ProviderModel) -> Bytes {
        // A caller for a single body gets the first chat. Every prompt has a chat, and a request has at least a prompt.
        match self.chats.first() {
            Some(chat) => self.part(chat).render(exchange, at),
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
    fn render(&self, _: &Exchange, at: &ProviderModel) -> Bytes {
        render(&self.request, &self.original, at, self.cap)
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
            assert_eq!(
                rendered(client, &[], cap),
                format!("{{{MESSAGES},{provider}}}"),
                "{client}"
            );
        }
    }

    const MESSAGES: &str = r#""messages":[{"role":"user","content":"\u0041 \/ 1.50"}]"#;

    /// The provider's body for a chat with these members, for a provider with these `removed` members.
    fn rendered(client: &str, removed: &[&str], cap: Option<OutputCap>) -> String {
        let original = Bytes::from(format!("{{{MESSAGES},{client}}}"));
        let removed: Box<[Box<str>]> = removed.iter().map(|name| Box::from(*name)).collect();
        let request = CompletionRequest::read_listing(Family::CHAT, &original, &removed);
        let at = ProviderModel {
            removed_members: removed.clone().into(),
            ..ProviderModel::new("stand-in", "p")
        };
        let rendered = render(&request.expect("a request"), &original, &at, cap);
        String::from_utf8(rendered.to_vec()).expect("UTF-8")
    }

    #[test]
    fn a_provider_that_refuses_stream_options_gets_none() {
        const NAMES: [&str; 1] = ["stream_options"];
        for client in [
            r#""model":"m","stream":true"#,
            r#""model":"m","stream":true,"stream_options":{"include_usage":true}"#,
            r#""stream_options":null,"model":"m","stream":true"#,
            r#""model":"m","stream":true,"stream_options":{"x":1}"#,
        ] {
            let expected = format!(r#"{{{MESSAGES},"model":"p","stream":true}}"#);
            assert_eq!(rendered(client, &NAMES, None), expected, "{client}");
        }
    }

    #[test]
    fn members_that_a_provider_does_not_get_are_left_out_in_whatever_case_they_are_written() {
        const NAMES: [&str; 3] = ["options", "service_tier", "keep_alive"];
        for (client, provider) in [
            (r#""model":"m","options":{"a":[1, 2]}"#, r#""model":"p""#),
            (
                r#""options" : null,"model" : "m", "x":1.50"#,
                r#""model" : "p", "x":1.50"#,
            ),
            (
                r#""Options":1,"OPTION\u017f":2,"\u004beep_alive":3,"keep_al\u0131ve":4,"\u006fptions":5,"model":"m""#,
                r#""model":"p""#,
            ),
            (
                r#""service_tier":"flex","model":"m","option":1,"options_":2"#,
                r#""model":"p","option":1,"options_":2"#,
            ),
        ] {
            let expected = format!("{{{MESSAGES},{provider}}}");
            assert_eq!(rendered(client, &NAMES, None), expected, "{client}");
            assert_eq!(
                rendered(client, &[], None),
                format!("{{{MESSAGES},{}}}", client.replace("\"m\"", "\"p\"")),
                "{client}"
            );
        }
    }
}
