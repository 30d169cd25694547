//! The two responses of all measurements, always the same bytes.

use bytes::Bytes;

/// Length of [`completion`] in bytes.
pub const COMPLETION_BYTES: usize = 1024;

/// Events of [`stream`], usage and `[DONE]` among them.
pub const STREAM_EVENTS: usize = 53;

/// A chat completion of exactly 1024 bytes: a hundred tokens or so of text, and usage.
pub fn completion() -> Bytes {
    let around = |text: &str| {
        format!(
            "{{\"id\":\"chatcmpl-standard0001\",\"object\":\"chat.completion\",\"created\":1767225600,\"model\":\"bench\",\
             \"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{text}\"}},\"logprobs\":null,\
             \"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":24,\"completion_tokens\":128,\"total_tokens\":152}}}}"
        )
    };
    let room = COMPLETION_BYTES - around("").len();
    let mut text = super::answer::text(256);
    text.truncate(room);
    around(&text).into()
}

/// The events of a streamed chat completion, each with its blank line: a role chunk, 49 chunks of content, a finish
/// chunk, a usage chunk and `[DONE]`.
pub fn stream() -> Vec<Bytes> {
    let chunk = |choices: &str, usage: &str| {
        Bytes::from(format!(
            "data: {{\"id\":\"chatcmpl-standard0001\",\"object\":\"chat.completion.chunk\",\"created\":1767225600,\
             \"model\":\"bench\",\"choices\":[{choices}],\"usage\":{usage}}}\n\n"
        ))
    };
    let delta = |delta: &str, finish: &str| {
        let choice = format!(
            "{{\"index\":0,\"delta\":{{{delta}}},\"logprobs\":null,\"finish_reason\":{finish}}}"
        );
        chunk(&choice, "null")
    };
    let mut events = vec![delta(r#""role":"assistant","content":"""#, "null")];
    let content = STREAM_EVENTS - 4;
    events
        .extend((0..content).map(|number| delta(&format!(r#""content":" word{number}""#), "null")));
    events.push(delta("", r#""stop""#));
    events.push(chunk(
        "",
        r#"{"prompt_tokens":24,"completion_tokens":49,"total_tokens":73}"#,
    ));
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_completion_is_a_kilobyte_of_json() {
        assert_eq!(completion().len(), COMPLETION_BYTES);
        let json: serde_json::Value = serde_json::from_slice(&completion()).expect("JSON");
        assert_eq!(json["usage"]["total_tokens"], 152);
    }

    #[test]
    fn the_stream_has_its_53_events() {
        let events = stream();
        assert_eq!(events.len(), STREAM_EVENTS);
        for event in &events[..STREAM_EVENTS - 1] {
            let data = event.strip_prefix(b"data: ").expect("a data line");
            let _: serde_json::Value = serde_json::from_slice(data).expect("JSON");
        }
    }
}
