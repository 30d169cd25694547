//! Byte-preserving edits of a request body for a provider: model, usage option, token cap, removed members.

use bytes::{Bytes, BytesMut};

use crate::json::{Reader, Span};
use crate::request::{CompletionRequest, Owned, is_any_of, name_of};
use crate::splice::{Member, Splice};
use crate::string;

/// A list of edits of a request body, applied together by [`BodyEdit::apply`].
///
/// Every byte outside the edits is unchanged, white space included. An edit that would write the existing value is dropped.
#[derive(Clone, Debug)]
#[must_use]
pub struct BodyEdit<'a> {
    request: &'a CompletionRequest,
    model: Option<&'a str>,
    without: &'a [Box<str>],
    remove_cache: bool,
    ask_usage: bool,
    cap: Option<u64>,
    cap_completion_tokens: bool,
    system_before_prompt: bool,
    developer_as_system: bool,
}

/// The edit of a member.
enum Change {
    /// Every role `developer` becomes `system`.
    Roles,
    Remove,
    Model,
    Cap,
    /// The value becomes an object with only this member.
    UsageAlone,
    /// The value of `include_usage` becomes true.
    UsageValue(Span),
    /// Every prompt is prefixed with the system text.
    Prompts(Span),
    /// The member is added to an object with or without other members.
    UsageMember {
        comma: bool,
    },
}

impl<'a> BodyEdit<'a> {
    /// No edits of the parsed body of `request`.
    pub fn new(request: &'a CompletionRequest) -> Self {
        Self {
            request,
            model: None,
            without: &[],
            remove_cache: false,
            ask_usage: false,
            cap: None,
            cap_completion_tokens: false,
            system_before_prompt: false,
            developer_as_system: false,
        }
    }

    /// Sets `model` to the provider's name of the model.
    pub fn model(mut self, name: &'a str) -> Self {
        self.model = Some(name);
        self
    }

    /// Removes `cache`, a member for the gateway only.
    pub fn without_cache(mut self) -> Self {
        self.remove_cache = true;
        self
    }

    /// Removes the members named in `names`, in any case. The members were listed when the request was parsed. Members that the gateway
    /// edits or uses for the price must not be among `names`, except `stream_options`: without `stream_options` no usage is requested.
    pub fn without(mut self, names: &'a [Box<str>]) -> Self {
        self.without = names;
        self
    }

    /// Sets `stream_options.include_usage` to true, and keeps the other members of `stream_options`. A request without a stream is
    /// unchanged: its answer carries the usage anyway.
    pub fn with_usage(mut self) -> Self {
        self.ask_usage = true;
        self
    }

    /// Caps the output at `tokens` tokens: lowers every higher cap in the body, and adds `max_tokens` to a body without a cap.
    pub fn cap_output(mut self, tokens: u64) -> Self {
        self.cap = Some(tokens);
        self
    }

    /// A cap added to a chat is `max_completion_tokens`, for models that refuse the older `max_tokens`.
    pub fn cap_completion_tokens(mut self) -> Self {
        self.cap_completion_tokens = true;
        self
    }

    /// Prefixes each prompt of a text request with the request's `system` and an empty line, and removes `system`: the providers' operation
    /// has no `system`.
    pub fn system_before_prompt(mut self) -> Self {
        self.system_before_prompt = true;
        self
    }

    /// Writes the role `developer` as `system`, for a provider that does not know `developer`.
    pub fn developer_as_system(mut self, applies: bool) -> Self {
        self.developer_as_system = applies;
        self
    }

    /// The edited body. Without edits, the unchanged buffer, not copied.
    ///
    /// # Panics
    ///
    /// If `body` and the parsed body differ in length.
    pub fn apply(&self, body: &Bytes) -> Bytes {
        let read = self.request.body_bytes;
        assert_eq!(
            body.len(),
            read,
            "a request must be applied to the body it was read from"
        );
        let layout = &self.request.layout;
        let changes = layout
            .members
            .iter()
            .any(|(name, member)| self.change(*name, member, body).is_some());
        let additions = self.additions();
        if !changes && additions.iter().all(|add| !add) {
            return body.clone();
        }
        let mut out = BytesMut::new();
        let mut splice = Splice::new(body, &mut out);
        for (name, member) in &layout.members {
            match self.change(*name, member, body) {
                None => {}
                Some(Change::Remove) => splice.remove(member),
                Some(Change::Roles) => {
                    for role in &self.request.developer_roles {
                        splice.instead_of(*role).extend_from_slice(br#""system""#);
                    }
                }
                Some(Change::Model) => self.write_model(splice.instead_of(member.value())),
                Some(Change::Cap) => self.write_cap(splice.instead_of(member.value())),
                Some(Change::UsageAlone) => splice
                    .instead_of(member.value())
                    .extend_from_slice(br#"{"include_usage":true}"#),
                Some(Change::UsageValue(value)) => {
                    splice.instead_of(value).extend_from_slice(b"true");
                }
                Some(Change::Prompts(system)) => {
                    let out = splice.instead_of(member.value());
                    prefix_prompts(inner(system, body), member.value().of(body), out);
                }
                Some(Change::UsageMember { comma }) => {
                    let out = splice.up_to(member.value().end - 1);
                    out.extend_from_slice(if comma { b"," } else { b"" });
                    out.extend_from_slice(br#""include_usage":true"#);
                }
            }
        }
        let [model, usage, cap] = additions;
        if model {
            let out = splice.append(layout);
            out.extend_from_slice(br#""model":"#);
            self.write_model(out);
        }
        if usage {
            let option = self.request.family.request.usage_option;
            let out = splice.append(layout);
            out.extend_from_slice(option.unwrap_or_default().as_bytes());
        }
        if cap {
            let (_, name) = self.cap_member();
            let out = splice.append(layout);
            out.extend_from_slice(b"\"");
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            self.write_cap(out);
        }
        splice.finish();
        out.freeze()
    }

    /// The edit of a member that is in the body.
    fn change(&self, name: Owned, member: &Member, body: &[u8]) -> Option<Change> {
        let request = self.request;
        match name {
            Owned::Listed(_) => {
                let leaves_out =
                    !self.without.is_empty() && is_any_of(&name_of(member, body), self.without);
                leaves_out.then_some(Change::Remove)
            }
            Owned::Messages => self.developer_as_system.then_some(Change::Roles),
            Owned::Cache => self.remove_cache.then_some(Change::Remove),
            Owned::System => self.system_before_prompt.then_some(Change::Remove),
            Owned::Prompt => {
                let system = request.layout.find(Owned::System)?.value();
                let prefixes = self.system_before_prompt && request.system_bytes > 0;
                prefixes.then_some(Change::Prompts(system))
            }
            Owned::Model => {
                let differs = self.model.is_some() && self.model != request.model.as_deref();
                differs.then_some(Change::Model)
            }
            Owned::MaxTokens => self.cap_change(name, request.max_tokens),
            Owned::MaxCompletionTokens => self.cap_change(name, request.max_completion_tokens),
            Owned::StreamOptions => {
                let options = request.stream_options;
                if self.removes_stream_options() {
                    Some(Change::Remove)
                } else if !self.ask_usage || !request.stream || request.include_usage {
                    None
                } else if let Some(value) = options.include_usage {
                    Some(Change::UsageValue(value))
                } else if options.object {
                    let comma = !options.empty;
                    Some(Change::UsageMember { comma })
                } else {
                    Some(Change::UsageAlone)
                }
            }
        }
    }

    /// Whether the provider refuses the member by which usage is requested.
    fn removes_stream_options(&self) -> bool {
        !self.without.is_empty() && is_any_of("stream_options", self.without)
    }

    /// A higher cap in the body is lowered. If the two caps are unset and a cap is present as null, the null is replaced: a second member
    /// with an equal name would be read by some providers and not by other providers.
    fn cap_change(&self, name: Owned, current: Option<u64>) -> Option<Change> {
        let tokens = self.cap?;
        let lowers = current.is_some_and(|current| current > tokens);
        let fills = self.request.output_max().is_none() && name == self.cap_member().0;
        (lowers || fills).then_some(Change::Cap)
    }

    /// The member for the cap of a request without a cap, with its name: the older member in a family without a newer member.
    fn cap_member(&self) -> (Owned, &'static str) {
        let form = &self.request.family.request;
        match form.newer_cap {
            Some(name) if self.cap_completion_tokens => (Owned::MaxCompletionTokens, name),
            _ => (Owned::MaxTokens, form.cap),
        }
    }

    /// Whether model, usage and cap have to be added because no member of the body can carry them.
    fn additions(&self) -> [bool; 3] {
        let request = self.request;
        let lacks = |name| request.layout.find(name).is_none();
        [
            self.model.is_some() && lacks(Owned::Model),
            self.ask_usage
                && request.stream
                && request.family.request.usage_option.is_some()
                && lacks(Owned::StreamOptions)
                && !self.removes_stream_options(),
            self.cap.is_some() && request.output_max().is_none() && lacks(self.cap_member().0),
        ]
    }

    fn write_model(&self, out: &mut BytesMut) {
        string::write(self.model.unwrap_or_default(), out);
    }

    fn write_cap(&self, out: &mut BytesMut) {
        let tokens = self.cap.unwrap_or(0);
        out.extend_from_slice(itoa::Buffer::new().format(tokens).as_bytes());
    }
}

/// The text between the quotes of a string.
fn inner(string: Span, text: &[u8]) -> &[u8] {
    &text[string.start + 1..string.end - 1]
}

/// Writes a validated `prompt`, a string or an array of strings, with `system` before each string.
fn prefix_prompts(system: &[u8], prompt: &[u8], out: &mut BytesMut) {
    let mut done = 0;
    let mut reader = Reader::new(prompt);
    // Every string of the value is a prompt: no other strings are valid in a prompt.
    let walked = reader.walk(|_, span| {
        out.extend_from_slice(&prompt[done..=span.start]);
        out.extend_from_slice(system);
        out.extend_from_slice(br"\n\n");
        done = span.start + 1;
    });
    debug_assert!(walked.is_ok(), "the prompt has been checked");
    out.extend_from_slice(&prompt[done..]);
}
