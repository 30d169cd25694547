//! The body that goes to a provider.

use std::sync::Arc;

use bytes::Bytes;
use tollgate_filter::ForwardBody;
use tollgate_openai::{BodyEdit, CapMember, CompletionRequest};

/// The client's body with the members changed that the gateway owns; every other byte is the client's.
pub(crate) struct CompletionBody {
    pub(crate) request: Arc<CompletionRequest>,
    /// A cap on the output that the client did not name.
    pub(crate) cap: Option<u64>,
}

impl ForwardBody for CompletionBody {
    fn render(&self, original: &Bytes, provider_model: &str) -> Bytes {
        let mut edit = BodyEdit::new(&self.request)
            .model(provider_model)
            .without_cache()
            .with_usage();
        if let Some(tokens) = self.cap {
            // The older name: every provider knows it.
            edit = edit.cap_output(tokens, CapMember::MaxTokens);
        }
        edit.apply(original)
    }

    fn cap_output(&mut self, tokens: u64) {
        self.cap = Some(tokens);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_openai::Endpoint;

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
        check(r#""model":"m""#, Some(40), r#""model":"p","max_tokens":40"#);

        fn check(client: &str, cap: Option<u64>, provider: &str) {
            let original = Bytes::from(format!("{{{MESSAGES},{client}}}"));
            let request = CompletionRequest::read(Endpoint::Chat, &original).expect("a request");
            let mut body = CompletionBody {
                request: Arc::new(request),
                cap: None,
            };
            if let Some(tokens) = cap {
                body.cap_output(tokens);
            }
            let rendered = body.render(&original, "p");
            let rendered = std::str::from_utf8(&rendered).expect("UTF-8");
            assert_eq!(rendered, format!("{{{MESSAGES},{provider}}}"), "{client}");
        }
    }
}
