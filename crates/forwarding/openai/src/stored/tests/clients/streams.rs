//! Generated streams of the forms in which providers send messages.

use super::*;

fn pieces() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(prop_oneof!["[a-z é\"\\\\\n]{0,6}", any::<String>()], 1..6)
}

/// The deltas of one generated text.
fn texts(name: &'static str) -> impl Strategy<Value = Vec<Value>> {
    pieces().prop_map(move |pieces| pieces.iter().map(|piece| json!({name: piece})).collect())
}

/// One call: its name, its arguments and the pieces in which they come.
fn arguments() -> impl Strategy<Value = (String, Vec<String>)> {
    ("[a-z_]{1,9}", "[a-z\" é]{0,20}", 1..4_usize).prop_map(|(name, text, pieces)| {
        let whole: Vec<char> = json!({"q": text}).to_string().chars().collect();
        let piece = whole.len().div_ceil(pieces);
        (
            name,
            whole
                .chunks(piece)
                .map(|piece| piece.iter().collect())
                .collect(),
        )
    })
}

/// How a provider sends calls.
#[derive(Clone, Copy, Debug)]
enum Calls {
    /// OpenAI: id and name once, at an index of its own.
    Once,
    /// MiniMax, NVIDIA NIM: id, type and name in each delta.
    Repeated,
    /// Gemini's compatible interface: each call as a whole, all at index 0.
    AllAtZero,
    /// The same without an index.
    WithoutIndex,
    /// A custom tool.
    Custom,
}

fn calls() -> impl Strategy<Value = Vec<Value>> {
    let how = prop_oneof![
        Just(Calls::Once),
        Just(Calls::Repeated),
        Just(Calls::AllAtZero),
        Just(Calls::WithoutIndex),
        Just(Calls::Custom)
    ];
    (how, prop::collection::vec(arguments(), 1..4)).prop_map(|(how, calls)| {
        let mut deltas = Vec::new();
        for (at, (name, pieces)) in calls.iter().enumerate() {
            let id = format!("call_{at}");
            let function = |name: &str, arguments: &str| json!({"name": name, "arguments": arguments});
            let whole = json!({"id": id, "type": "function", "function": function(name, &pieces.concat())});
            let with_index = |mut call: Value, index: usize| {
                call["index"] = index.into();
                call
            };
            match how {
                Calls::AllAtZero => deltas.push(with_index(whole, 0)),
                Calls::WithoutIndex => deltas.push(whole),
                Calls::Once => {
                    let first = json!({"index": at, "id": id, "type": "function", "function": function(name, "")});
                    deltas.push(first);
                    deltas.extend(pieces.iter().map(|piece| json!({"index": at, "function": {"arguments": piece}})));
                }
                Calls::Repeated => deltas.extend(pieces.iter().map(
                    |piece| json!({"index": at, "id": id, "type": "function", "function": function(name, piece)}),
                )),
                Calls::Custom => {
                    deltas.push(json!({"index": at, "id": id, "type": "custom", "custom": {"name": name, "input": ""}}));
                    deltas.extend(pieces.iter().map(|piece| json!({"index": at, "custom": {"input": piece}})));
                }
            }
        }
        deltas.into_iter().map(|call| json!({"tool_calls": [call]})).collect()
    })
}

/// OpenRouter's reasoning, with a signature or encrypted data at the end of each detail.
fn reasoning_details() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec((pieces(), any::<bool>()), 1..3).prop_map(|details| {
        let mut deltas = Vec::new();
        for (index, (pieces, encrypted)) in details.into_iter().enumerate() {
            for piece in pieces {
                let detail = json!({"type": "reasoning.text", "text": piece, "format": "anthropic-claude-v1", "index": 2 * index});
                deltas.push(json!({"reasoning": piece, "reasoning_details": [detail]}));
            }
            let last = match encrypted {
                true => json!({"type": "reasoning.encrypted", "data": "ENC==", "id": "rs_1", "index": 2 * index + 1}),
                false => json!({"type": "reasoning.text", "signature": "sig==", "index": 2 * index}),
            };
            deltas.push(json!({"reasoning_details": [last]}));
        }
        deltas
    })
}

/// Content in parts: thinking, and then text as a string or as parts.
fn parts() -> impl Strategy<Value = Vec<Value>> {
    (pieces(), pieces(), any::<bool>(), any::<bool>()).prop_map(
        |(thoughts, texts, nested, as_parts)| {
            let thinking = thoughts.iter().map(|thought| {
                let thought = match nested {
                    true => json!([{"type": "text", "text": thought}]),
                    false => json!(thought),
                };
                json!({"content": [{"type": "thinking", "thinking": thought}]})
            });
            let said = texts.iter().map(|text| match as_parts {
                true => json!({"content": [{"type": "text", "text": text}]}),
                false => json!({"content": text}),
            });
            thinking.chain(said).collect()
        },
    )
}

fn audio() -> impl Strategy<Value = Vec<Value>> {
    prop::collection::vec(("([A-Za-z0-9+/]{4}){0,4}", "[a-z ]{0,5}"), 1..4).prop_map(|pieces| {
        let mut deltas = vec![json!({"audio": {"id": "audio_1"}})];
        deltas.extend(
            pieces
                .iter()
                .map(|(data, text)| json!({"audio": {"data": data, "transcript": text}})),
        );
        deltas.push(json!({"audio": {"expires_at": 7}}));
        deltas
    })
}

fn message() -> impl Strategy<Value = Vec<Value>> {
    let reasoning = prop_oneof![
        Just(Vec::new()),
        texts("reasoning_content"),
        texts("thinking"),
        reasoning_details()
    ];
    let said = prop_oneof![
        texts("content"),
        parts(),
        texts("refusal"),
        audio(),
        Just(Vec::new())
    ];
    let function = arguments().prop_map(|(name, pieces)| {
        let mut deltas = vec![json!({"function_call": {"name": name, "arguments": ""}})];
        deltas.extend(
            pieces
                .iter()
                .map(|piece| json!({"function_call": {"arguments": piece}})),
        );
        deltas
    });
    let calls = prop_oneof![Just(Vec::new()), calls(), function];
    let facts = prop_oneof![
        Just(Vec::new()),
        Just(vec![
            json!({"annotations": [{"a": 1}]}),
            json!({"annotations": [{"a": 1}, {"a": 2}]})
        ]),
        Just(vec![
            json!({"extra_content": {"google": {"thought_signature": "s"}}});
            2
        ]),
    ];
    let role = prop_oneof![
        Just(json!({"role": "assistant"})),
        Just(json!({"role": "assistant", "content": ""}))
    ];
    (role, reasoning, said, calls, facts, any::<bool>()).prop_map(
        |(role, reasoning, said, calls, facts, repeats)| {
            let deltas = std::iter::once(role)
                .chain(reasoning)
                .chain(said)
                .chain(calls)
                .chain(facts);
            let mut deltas: Vec<Value> = deltas.collect();
            if repeats {
                deltas
                    .iter_mut()
                    .for_each(|delta| delta["role"] = "assistant".into());
            }
            deltas
        },
    )
}

/// Members beside the deltas.
#[derive(Clone, Copy, Debug)]
struct Extras {
    /// Perplexity: the sources in each event.
    citations: bool,
    /// Together: the text of the content, in the choice.
    text: bool,
    tokens: bool,
}

pub(super) fn stream() -> impl Strategy<Value = Vec<Value>> {
    let beside = (any::<bool>(), any::<bool>(), any::<bool>());
    let beside = beside.prop_map(|(citations, text, tokens)| Extras {
        citations,
        text,
        tokens,
    });
    let order = prop::collection::vec(0..3_usize, 0..60);
    (prop::collection::vec(message(), 1..4), beside, order).prop_map(|(messages, beside, order)| {
        let count = messages.len();
        let mut rest: Vec<_> = messages.into_iter().map(Vec::into_iter).collect();
        let mut events = Vec::new();
        let in_turn = order.into_iter().chain((0..count).flat_map(|index| [index; 80]));
        for index in in_turn.filter(|index| *index < count) {
            let Some(delta) = rest[index].next() else { continue };
            let mut choice = json!({"index": index, "delta": delta, "finish_reason": null});
            let said = delta["content"].as_str().unwrap_or_default();
            if beside.text {
                choice["text"] = said.into();
            }
            if beside.tokens && !said.is_empty() {
                choice["logprobs"] = json!({"content": [{"token": said, "top_logprobs": []}], "refusal": null});
                choice["token_ids"] = json!([index, 7]);
            }
            events.push(choice);
        }
        events.extend((0..count).map(|index| {
            json!({"index": index, "delta": {}, "finish_reason": "stop", "stop_reason": index})
        }));
        let mut events: Vec<Value> = events
            .into_iter()
            .map(|choice| json!({"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "p", "choices": [choice]}))
            .collect();
        if beside.citations {
            events.iter_mut().for_each(|event| event["citations"] = json!(["https://a.test", "https://b.test"]));
        }
        events.push(json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}}));
        events
    })
}
