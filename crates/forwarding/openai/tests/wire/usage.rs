//! Reported usages: what providers write, and the tokens in and out.

use serde_json::{Value, json};
use tollgate_openai::{Answer, Family, Patch, Usage};

/// A usage of these counts with these members beside them.
fn usage(counts: [u64; 3], more: Value) -> Value {
    let [prompt, completion, total] = counts;
    let mut usage =
        json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total});
    let members = usage.as_object_mut().expect("an object");
    members.extend(more.as_object().expect("an object").clone());
    usage
}

/// What providers and gateways report where the total is more than the sum of the other counts.
fn reports() -> Vec<(&'static str, Value, u64, u64)> {
    let cached = |count: u64| json!({"prompt_tokens_details": {"cached_tokens": count}});
    let reasoned = |cached: u64, reasoning: u64| {
        json!({"prompt_tokens_details": {"text_tokens": 1, "cached_tokens": cached},
            "completion_tokens_details": {"reasoning_tokens": reasoning}, "num_sources_used": 0})
    };
    vec![
        (
            "Bedrock behind Portkey (Portkey-AI/gateway#1211)",
            usage(
                [368, 19, 10_923],
                json!({"cache_read_input_tokens": 10_536, "cache_creation_input_tokens": 0}),
            ),
            10_904,
            19,
        ),
        (
            "the names of Converse",
            usage(
                [368, 19, 10_923],
                json!({"cacheReadInputTokens": 10_536, "cacheReadInputTokenCount": 10_536, "cacheWriteInputTokens": 0}),
            ),
            10_904,
            19,
        ),
        (
            "a cache that is written and read",
            usage(
                [10, 5, 1_015],
                json!({"cache_read_input_tokens": 600, "cache_creation_input_tokens": 400}),
            ),
            1_010,
            5,
        ),
        (
            "a cache read within the prompt, a write beside it (BerriAI/litellm#15270)",
            usage(
                [10_904, 19, 11_423],
                json!({"prompt_tokens_details": {"cached_tokens": 10_536}, "cache_read_input_tokens": 10_536, "cache_creation_input_tokens": 500}),
            ),
            11_404,
            19,
        ),
        (
            "Bedrock behind a gateway with OpenAI's names alone",
            usage([368, 19, 10_923], cached(10_536)),
            10_904,
            19,
        ),
        (
            "less cached than prompt, and all of the rest",
            usage([368, 19, 487], cached(100)),
            468,
            19,
        ),
        (
            "OpenRouter's names",
            usage(
                [368, 19, 10_987],
                json!({"prompt_tokens_details": {"cached_tokens": 10_000, "cache_write_tokens": 600}}),
            ),
            10_968,
            19,
        ),
        (
            "cached input and reasoning, both in the total alone",
            usage(
                [368, 19, 11_023],
                json!({"cache_read_input_tokens": 10_536, "completion_tokens_details": {"reasoning_tokens": 100}}),
            ),
            10_904,
            119,
        ),
        (
            "Gemini's own tools (mozilla-ai/any-llm#1367)",
            usage(
                [80, 173, 550],
                json!({"tool_use_prompt_tokens": 237, "completion_tokens_details": {"reasoning_tokens": 60}}),
            ),
            317,
            233,
        ),
        (
            "Gemini's own tools, in its own name",
            usage(
                [80, 173, 550],
                json!({"toolUsePromptTokenCount": 237, "thoughtsTokenCount": 60}),
            ),
            317,
            233,
        ),
        (
            "xAI (vercel/ai#9774)",
            usage([2_640, 182, 3_494], reasoned(473, 672)),
            2_640,
            854,
        ),
        (
            "xAI, with much reasoning (Wei-Shaw/sub2api#5771)",
            usage([10_120, 1_499, 14_428], reasoned(128, 2_809)),
            10_120,
            4_308,
        ),
        (
            "xAI, with more cached than reasoning",
            usage([10_120, 10, 10_180], reasoned(10_112, 50)),
            10_120,
            60,
        ),
        (
            "Gemini, whose reasoning has no name (openai/openai-python#2544)",
            usage([1_469, 744, 2_496], cached(1_019)),
            1_469,
            1_027,
        ),
        (
            "nothing cached",
            usage(
                [5, 1, 30],
                json!({"prompt_tokens_details": {"cached_tokens": 0}}),
            ),
            5,
            25,
        ),
        (
            "DeepSeek: the cached part is in the prompt",
            usage(
                [500, 20, 520],
                json!({"prompt_cache_hit_tokens": 448, "prompt_cache_miss_tokens": 52}),
            ),
            500,
            20,
        ),
        (
            "a part that is no number",
            usage([5, 1, 30], json!({"cache_read_input_tokens": "24"})),
            5,
            25,
        ),
        (
            "null details",
            usage([5, 1, 30], json!({"prompt_tokens_details": null})),
            5,
            25,
        ),
        (
            "no completion, cached input beside the prompt",
            json!({"prompt_tokens": 368, "total_tokens": 10_923, "cache_read_input_tokens": 10_536}),
            10_904,
            19,
        ),
        (
            "no completion, cached input within the prompt",
            json!({"prompt_tokens": 5_000, "total_tokens": 5_300, "cache_read_input_tokens": 4_000}),
            5_000,
            300,
        ),
    ]
}

#[test]
fn the_rest_of_a_total_is_input_as_far_as_the_usage_names_input() {
    for (provider, usage, prompt, completion) in reports() {
        let read = Usage::read(usage.to_string().as_bytes());
        let expected = Some(Usage::new(prompt, completion));
        assert_eq!(read, expected, "{provider}: {usage}");
        let spaced = serde_json::to_string_pretty(&usage).expect("JSON");
        assert_eq!(Usage::read(spaced.as_bytes()), expected, "{spaced}");
    }
}

#[test]
fn every_spelling_of_an_input_part_is_input() {
    for name in [
        "cache_read_input_tokens",
        "cache_creation_input_tokens",
        "cache_write_input_tokens",
        "cacheReadInputTokens",
        "cacheReadInputTokenCount",
        "cacheWriteInputTokens",
        "cacheWriteInputTokenCount",
        "toolUsePromptTokenCount",
        "tool_use_prompt_token_count",
        "tool_use_prompt_tokens",
        "cached_tokens",
        "prompt_cache_hit_tokens",
        "cachedContentTokenCount",
        "cached_content_token_count",
        "num_cached_tokens",
        "cache_write_tokens",
        "cache_creation_tokens",
        "cached_creation_tokens",
    ] {
        let beside = usage([368, 19, 10_923], json!({name: 10_536}));
        let within = usage([368, 19, 10_923], json!({"details": {name: 10_536}}));
        for usage in [beside, within] {
            let read = Usage::read(usage.to_string().as_bytes());
            assert_eq!(read, Some(Usage::new(10_904, 19)), "{usage}");
        }
    }
}

/// Answers of one provider differ in their numbers alone, and are not parsed in full.
#[test]
fn an_answer_like_the_one_before_it_has_its_own_cached_input() {
    let patch = Patch::new(Family::CHAT, "x_svc").model("m");
    let answer = |prompt: u64, cached: u64| {
        let usage = usage(
            [prompt, 19, prompt + 19 + cached],
            json!({"cache_read_input_tokens": cached}),
        );
        format!(
            r#"{{"id":"a","model":"m","choices":[{{"index":0,"message":{{"content":"The toll"}},"finish_reason":"stop"}}],"usage":{usage}}}"#
        )
    };
    for (prompt, cached) in [(368, 10_536), (400, 10_000), (7, 0), (9, 90)] {
        let body = answer(prompt, cached);
        let answer = Answer::read(body.as_bytes(), &patch).expect("an answer");
        assert_eq!(
            answer.usage(),
            Some(Usage::new(prompt + cached, 19)),
            "{body}"
        );
    }
}
