//! What the stand-in does otherwise than a good provider would.

use serde::Deserialize;

use super::Seen;

/// One way to misbehave, or several at once. The default is to behave.
///
/// In JSON it is an object of these members, all of them optional, e.g.
/// `{"times": 1, "status": 429, "retry_after": "2"}` or `{"cut": {"after_events": 3, "by": "reset"}}`. Counts are of the
/// pieces of a body: a streamed answer has one piece an event, `[DONE]` among them, any other answer is one piece.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    // Which requests.
    /// Requests it is good for; `None`: for all, until scripts are cleared.
    pub times: Option<u32>,
    /// Only for requests to paths that end so.
    pub path: Option<String>,
    /// Only for requests that name this model.
    pub model: Option<String>,
    /// Only for requests on a connection that carried a request before: with [`Leave::Close`] before the head, this is
    /// the pooled connection that went stale.
    pub on_reused_connection: bool,

    // Before the head.
    /// Stop at this gate before the head is sent.
    pub hold_head: Option<String>,
    /// Wait so long before the head is sent. For demonstrations; tests use gates.
    pub delay_head_ms: u64,
    /// Interim answers before the head, e.g. 103. HTTP/1.1 only.
    pub informational: Vec<u16>,
    /// Break off instead of sending a head.
    pub instead_of_head: Option<Leave>,

    // The head.
    /// This status, with an OpenAI error body that goes with it unless [`Script::failure`] says another.
    pub status: Option<u16>,
    /// `Retry-After` with this value.
    pub retry_after: Option<String>,
    /// Further field lines; one that the head has already is replaced.
    pub headers: Vec<(String, String)>,
    /// How an HTTP/1.1 body is framed, when not as usual.
    pub framing: Option<Framing>,

    // What is said.
    /// This body instead of a completion.
    pub failure: Option<Failure>,
    /// Words in the answer. Default 16.
    pub words: Option<u64>,
    /// Call the first tool of the request (or `look_up`), asked for or not.
    pub tool_call: bool,
    /// The model's name in the answer, instead of the one asked for.
    pub answer_model: Option<String>,
    /// How usage is reported.
    pub usage: UsageReport,
    /// Read the request as a decoder that ignores the case of member names: of several that are the same to it the last one holds.
    pub ignore_case: bool,
    /// Put an error event in the place of this piece (0 is the first one) and end without `[DONE]`.
    pub error_event_at: Option<usize>,
    /// Leave out the `[DONE]` at the end.
    pub no_done: bool,
    /// Never come to an end: after the first content event, the same again and again.
    pub endless: bool,
    /// Make the first content event so many bytes long, or longer.
    pub event_bytes: Option<usize>,

    // How a stream is written.
    /// What ends a line of an event stream.
    pub line_end: LineEnd,
    /// `data:{` instead of `data: {`.
    pub no_space: bool,
    /// A comment line before each event.
    pub comments: bool,
    /// An `event: error` line on the error event.
    pub event_names: bool,

    // How bytes go out.
    /// Cut everything into writes of so many bytes: over HTTP/1.1 the head, chunk sizes and all.
    pub write_bytes: Option<usize>,
    /// Stop at a gate before certain pieces.
    pub holds: Vec<Hold>,
    /// Stop at this gate before every piece, so that [`Gate::release`](crate::Gate::release) sends the next one.
    pub pace: Option<String>,
    /// Wait so long before each piece but the first. For demonstrations; tests use gates.
    pub delay_piece_ms: u64,
    /// Break off in the body.
    pub cut: Option<Cut>,
}

/// A stop in the middle of a body.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Before this piece, 0 for the first.
    pub before: usize,
    /// The gate's name.
    pub gate: String,
}

/// How a connection is broken off. On HTTP/2 both reset the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leave {
    /// Closed in order (FIN).
    #[default]
    Close,
    /// Reset (RST): what was sent and not yet read may be lost.
    Reset,
}

/// Where in a body to break off: after so many pieces, or after so many bytes of body, whichever comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cut {
    /// Whole pieces sent before.
    pub after_events: Option<usize>,
    /// Bytes of body sent before, framing not counted.
    pub after_bytes: Option<usize>,
    /// In which way.
    pub by: Leave,
}

/// How the body of an HTTP/1.1 answer is framed (RFC 9112 section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framing {
    /// `Content-Length`.
    Length,
    /// Chunks.
    Chunked,
    /// To the end of the connection.
    UntilClose,
}

/// What an answer's body is instead of a completion.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// An HTML page, as a proxy in between makes it.
    Html,
    /// Bytes that are no text.
    Garbage,
    /// A JSON object that breaks off.
    InvalidJson,
    /// A JSON object that is no completion.
    OtherJson,
    /// Nothing.
    Empty,
    /// This text.
    Text(String),
}

/// How usage is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageReport {
    /// As documented: in a whole answer, and at the end of a stream when it was asked for.
    #[default]
    Honest,
    /// Never, although it was asked for.
    Forgotten,
    /// The final usage in every chunk.
    EveryChunk,
    /// In every chunk, counted up to that chunk.
    Cumulative,
    /// At the end of a stream, asked for or not.
    Unasked,
    /// More than the model can do: a million million tokens.
    Absurd,
    /// Below zero.
    Negative,
    /// Words instead of numbers.
    Words,
    /// Exactly this much, as documented otherwise.
    Exactly {
        /// Tokens in.
        prompt_tokens: u64,
        /// Tokens out.
        completion_tokens: u64,
    },
    /// This value in the place of the counts.
    Json(serde_json::Value),
}

/// What ends a line of an event stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LineEnd {
    /// Line feed.
    #[default]
    Lf,
    /// Carriage return and line feed.
    Crlf,
    /// Carriage return alone.
    Cr,
}

impl LineEnd {
    /// The bytes.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Lf => "\n",
            Self::Crlf => "\r\n",
            Self::Cr => "\r",
        }
    }
}

impl Script {
    /// An answer with `status` and an OpenAI error body.
    pub fn status(status: u16) -> Self {
        Self {
            status: Some(status),
            ..Self::default()
        }
    }

    /// A body that is no completion, with status 200.
    pub fn failure(failure: Failure) -> Self {
        Self {
            failure: Some(failure),
            ..Self::default()
        }
    }

    /// No head: the connection is broken off.
    pub fn no_head(by: Leave) -> Self {
        Self {
            instead_of_head: Some(by),
            ..Self::default()
        }
    }

    /// No head before gate `name` lets it pass.
    pub fn hold_head(name: &str) -> Self {
        Self {
            hold_head: Some(name.to_owned()),
            ..Self::default()
        }
    }

    /// A stop at gate `name` before piece `before` of the body.
    pub fn hold(before: usize, name: &str) -> Self {
        Self {
            holds: vec![Hold {
                before,
                gate: name.to_owned(),
            }],
            ..Self::default()
        }
    }

    /// Each piece of the body waits at gate `name`.
    pub fn pace(name: &str) -> Self {
        Self {
            pace: Some(name.to_owned()),
            ..Self::default()
        }
    }

    /// A body that breaks off after `events` pieces.
    pub fn cut_after(events: usize, by: Leave) -> Self {
        Self {
            cut: Some(Cut {
                after_events: Some(events),
                after_bytes: None,
                by,
            }),
            ..Self::default()
        }
    }

    /// Usage reported in another way.
    pub fn usage(usage: UsageReport) -> Self {
        Self {
            usage,
            ..Self::default()
        }
    }

    /// The same script for one request only.
    #[must_use]
    pub fn once(self) -> Self {
        self.times(1)
    }

    /// The same script for `times` requests.
    #[must_use]
    pub fn times(self, times: u32) -> Self {
        Self {
            times: Some(times),
            ..self
        }
    }

    pub(super) fn fits(&self, request: &Seen<'_>) -> bool {
        let model = || {
            request
                .json
                .and_then(|json| json.get("model"))
                .and_then(|model| model.as_str())
        };
        self.times != Some(0)
            && self
                .path
                .as_ref()
                .is_none_or(|end| request.path.ends_with(end.as_str()))
            && self
                .model
                .as_deref()
                .is_none_or(|wanted| model() == Some(wanted))
            && (request.reused || !self.on_reused_connection)
    }
}
