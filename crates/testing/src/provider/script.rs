//! Scripts: the stand-in's deviations from a correct provider.

use serde::Deserialize;

use super::request::Seen;

/// One misbehaviour, or several at once. The default is none.
///
/// In JSON it is an object of these members, all of them optional, e.g. `{"times": 1, "status": 429, "retry_after": "2"}` or `{"cut":
/// {"after_events": 3, "by": "reset"}}`. Counts are of the pieces of a body: a streamed response has one piece per event, `[DONE]` among
/// them, any other response is one piece.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    // Which requests.
    /// Number of requests it applies to; `None`: all, until scripts are cleared.
    pub times: Option<u32>,
    /// Only for requests to paths with this suffix.
    pub path: Option<String>,
    /// Only for requests that name this model.
    pub model: Option<String>,
    /// Only for requests on a connection that carried a request before: with [`Leave::Close`] before the head, this is
    /// the pooled connection that went stale.
    pub on_reused_connection: bool,

    // Before the head.
    /// Stop at this gate before the head is sent.
    pub hold_head: Option<String>,
    /// Wait this long before the head is sent. For demonstrations; tests use gates.
    pub delay_head_ms: u64,
    /// Interim responses before the head, e.g. 103. HTTP/1.1 only.
    pub informational: Vec<u16>,
    /// Abort instead of sending a head.
    pub instead_of_head: Option<Leave>,

    // The head.
    /// This status, with a matching OpenAI error body unless [`Script::failure`] sets another.
    pub status: Option<u16>,
    /// `Retry-After` with this value.
    pub retry_after: Option<String>,
    /// Further field lines; an existing field is replaced.
    pub headers: Vec<(String, String)>,
    /// The framing of an HTTP/1.1 body, where not the default.
    pub framing: Option<Framing>,

    // The content.
    /// This body instead of a completion.
    pub failure: Option<Failure>,
    /// Words in the response. Default 16.
    pub words: Option<u64>,
    /// Call the first tool of the request (or `look_up`), whether requested or not.
    pub tool_call: bool,
    /// The model's name in the response, instead of the requested one.
    pub answer_model: Option<String>,
    /// How usage is reported.
    pub usage: UsageReport,
    /// Read the request as a case-insensitive decoder: of duplicate member names the last one wins.
    pub ignore_case: bool,
    /// Replace this piece (0 is the first one) with an error event and end without `[DONE]`.
    pub error_event_at: Option<usize>,
    /// Omit the `[DONE]` at the end.
    pub no_done: bool,
    /// Never end: after the first content event, repeat it.
    pub endless: bool,
    /// Make the first content event at least this many bytes long.
    pub event_bytes: Option<usize>,

    // The stream's syntax.
    /// The line ending of an event stream.
    pub line_end: LineEnd,
    /// `data:{` instead of `data: {`.
    pub no_space: bool,
    /// A comment line before each event.
    pub comments: bool,
    /// An `event: error` line on the error event.
    pub event_names: bool,

    // How bytes go out.
    /// Split everything into writes of this many bytes: over HTTP/1.1 including the head and the chunk sizes.
    pub write_bytes: Option<usize>,
    /// Stop at a gate before certain pieces.
    pub holds: Vec<Hold>,
    /// Stop at this gate before every piece, so that [`Gate::release`](crate::Gate::release) sends the next one.
    pub pace: Option<String>,
    /// Wait this long before each piece but the first. For demonstrations; tests use gates.
    pub delay_piece_ms: u64,
    /// Abort in the body.
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

/// How a connection is aborted. On HTTP/2 both reset the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leave {
    /// An orderly close (FIN).
    #[default]
    Close,
    /// Reset (RST): what was sent and not yet read may be lost.
    Reset,
}

/// Where to abort a body: after a number of pieces, or after a number of body bytes, whichever comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Cut {
    /// Whole pieces sent before.
    pub after_events: Option<usize>,
    /// Bytes of body sent before that, framing not counted.
    pub after_bytes: Option<usize>,
    /// The kind of abort.
    pub by: Leave,
}

/// The framing of an HTTP/1.1 response body (RFC 9112 section 6).
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

/// The response body in place of a completion.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// An HTML page, as from an intermediate proxy.
    Html,
    /// Bytes that are no valid text.
    Garbage,
    /// A truncated JSON object.
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
    /// As documented: in a whole response, and at the end of a stream on request.
    #[default]
    Honest,
    /// Never, although requested.
    Forgotten,
    /// The final usage in every chunk.
    EveryChunk,
    /// In every chunk, counted up to that chunk.
    Cumulative,
    /// At the end of a stream, requested or not.
    Unasked,
    /// More than the model's limit: a million million tokens.
    Absurd,
    /// Negative counts.
    Negative,
    /// Words instead of numbers.
    Words,
    /// Exactly this much, otherwise as documented.
    Exactly {
        /// Input tokens.
        prompt_tokens: u64,
        /// Output tokens.
        completion_tokens: u64,
    },
    /// This value in place of the counts.
    Json(serde_json::Value),
}

/// The line ending of an event stream.
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
    /// A response with `status` and an OpenAI error body.
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

    /// No head: the connection is aborted.
    pub fn no_head(by: Leave) -> Self {
        Self {
            instead_of_head: Some(by),
            ..Self::default()
        }
    }

    /// No head before gate `name` is released.
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

    /// Each piece of the body waits at gate `name`. A gateway sends the head of a stream with the first piece, or with a comment after some
    /// seconds.
    pub fn pace(name: &str) -> Self {
        Self {
            pace: Some(name.to_owned()),
            ..Self::default()
        }
    }

    /// A body that is aborted after `events` pieces.
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
