//! The quote of a request: the maximum cost before the request is sent, and the bound of the token counts afterwards.

use std::num::NonZeroU64;
use std::sync::Arc;

use tollgate_filter::{Model, PartCeilings, Tokens};
use tollgate_money::{Micros, Price};
use tollgate_openai::CompletionRequest;

/// The most tokens of a chat template for each message.
const TOKENS_PER_MESSAGE: u64 = 8;

/// The most tokens of a chat template for each prompt; a chat is a single prompt.
const TOKENS_PER_REQUEST: u64 = 64;

/// Tokens that a provider may add to a request itself, for a model of unknown context length.
const HIDDEN_TOKENS_MAX: u64 = 4_096;

/// The most tokens of one picture, sound, file or plugin, for a model of unknown context length.
const PART_TOKENS_MAX: u64 = 65_536;

/// The most tokens of an answer without a cap, for a model of unknown context length.
const OUTPUT_TOKENS_MAX: u64 = 131_072;

/// Millionths in a whole.
const PPM: u64 = 1_000_000;

/// The worst case of a request at a price.
#[derive(Clone, Debug)]
pub(crate) struct Quote {
    /// The model, with its price and price version.
    pub(crate) model: Arc<Model>,
    /// The sizes of the request.
    pub(crate) sizes: Sizes,
    /// The amount of the hold.
    pub(crate) amount: Micros,
}

impl Quote {
    /// The quote for `request`, at `bytes_per_token` bytes of text for each token.
    pub(crate) fn new(
        request: &CompletionRequest,
        model: &Arc<Model>,
        bytes_per_token: NonZeroU64,
    ) -> Quote {
        let sizes = Sizes::of(request, model, bytes_per_token.get());
        Quote {
            amount: sizes.amount(&model.price),
            model: Arc::clone(model),
            sizes,
        }
    }

    /// The quote for the longest answers that `budget` pays for. `None` when the request has a cap, or when fewer than `floor` tokens would
    /// be left.
    pub(crate) fn clamp(&self, budget: Micros, floor: u64) -> Option<Quote> {
        let sizes = self.sizes.clamp(budget, &self.model.price, floor)?;
        Some(self.sized(sizes))
    }

    /// The least available credit for which the request is admitted. With a `floor`, and without a client's cap, the request may be clamped
    /// to the floor.
    pub(crate) fn least(&self, floor: Option<u64>) -> Micros {
        match floor {
            Some(floor) if !self.sizes.capped && floor < self.sizes.output_each => {
                self.sizes.capped_at(floor).amount(&self.model.price)
            }
            _ => self.amount,
        }
    }

    fn sized(&self, sizes: Sizes) -> Quote {
        Quote {
            amount: sizes.amount(&self.model.price),
            model: Arc::clone(&self.model),
            sizes,
        }
    }
}

/// Sizes of one request, in integers: the input of the price.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Tokens that the model will read, a high estimate.
    pub(crate) input: u64,
    /// Tokens of one answer: the client's cap, or the model's default.
    pub(crate) output_each: u64,
    /// Answers that the provider generates: `n` or `best_of`, for every prompt.
    pub(crate) answers: u64,
    /// The most that the non-text parts and the plugins cost.
    pub(crate) parts: Micros,
    /// The client named a cap, or the request was clamped.
    pub(crate) capped: bool,
    /// The most tokens that the model can have read, whatever the provider reports.
    pub(crate) input_max: u64,
    /// The most tokens of a single answer, whatever the provider reports.
    pub(crate) output_each_max: u64,
}

impl Sizes {
    /// The sizes of `request` for `model`; a token is assumed to have at least `bytes_per_token` bytes on average.
    pub(crate) fn of(request: &CompletionRequest, model: &Model, bytes_per_token: u64) -> Sizes {
        let context = model.limits.context_length.map(|tokens| tokens.get());
        let answers = request.answers_max();
        let Parts {
            count,
            unbounded,
            amount,
        } = Parts::of(request, &model.part_ceilings);
        let template = request
            .messages
            .saturating_mul(TOKENS_PER_MESSAGE)
            .saturating_add(request.prompts.saturating_mul(TOKENS_PER_REQUEST));
        let tokens = |bytes_per_token| {
            scaled(
                request.text_bytes.div_ceil(bytes_per_token),
                model.token_factor_ppm,
            )
            .saturating_add(template)
        };
        // The input is at most the context, once for each prompt.
        let input = match context {
            // A part without a ceiling may fill the context.
            Some(context) if unbounded > 0 => context.saturating_mul(request.prompts),
            Some(context) => tokens(bytes_per_token).min(context.saturating_mul(request.prompts)),
            None => {
                tokens(bytes_per_token).saturating_add(unbounded.saturating_mul(PART_TOKENS_MAX))
            }
        };
        let input_max = match context {
            // Some providers count the prompt once for each answer.
            Some(context) => context.saturating_mul(answers),
            // A token of text has at least one byte.
            None => tokens(1)
                .saturating_add(HIDDEN_TOKENS_MAX)
                .saturating_add(count.saturating_mul(PART_TOKENS_MAX))
                .saturating_mul(answers),
        };
        let within_context = |tokens: u64| context.map_or(tokens, |context| tokens.min(context));
        let default = model.limits.output_tokens_default.get();
        let cap = request.output_max();
        Sizes {
            input,
            output_each: within_context(cap.unwrap_or(default)),
            answers,
            parts: amount,
            // A mandatory cap is not the client's choice: the cap may be lowered like an absent cap.
            capped: cap.is_some() && !request.family.request.clamp_cap,
            input_max,
            // Without a cap the default sizes the hold, but does not bound the model's output.
            output_each_max: match (cap, context) {
                (Some(cap), _) => within_context(cap),
                // Unless the operator's settings declare the default as a bound.
                (None, _) if model.limits.output_tokens_bound => within_context(default),
                (None, Some(context)) => context,
                (None, None) => default.max(OUTPUT_TOKENS_MAX),
            },
        }
    }

    /// The request with its output capped at `tokens` for each answer.
    #[must_use]
    pub(crate) fn capped_at(self, tokens: u64) -> Sizes {
        Sizes {
            output_each: tokens,
            output_each_max: tokens.min(self.output_each_max),
            capped: true,
            ..self
        }
    }

    /// The sizes of the longest answers that `budget` pays for. `None` when the request has a cap, or when fewer than `floor` tokens would
    /// be left. A clamp with the result's amount as the budget returns the result again.
    pub(crate) fn clamp(&self, budget: Micros, price: &Price, floor: u64) -> Option<Sizes> {
        if self.capped {
            return None;
        }
        let tokens = self.output_each_within(budget, price)?;
        (tokens >= floor).then(|| self.capped_at(tokens))
    }

    /// The expected maximum cost, rounded up: the amount of the hold.
    pub(crate) fn amount(&self, price: &Price) -> Micros {
        price
            .quote(self.input, self.output_each.saturating_mul(self.answers))
            .saturating_add(self.parts)
    }

    /// The largest cap for each answer that `budget` pays for; `None` when the budget does not pay for the input.
    pub(crate) fn output_each_within(&self, budget: Micros, price: &Price) -> Option<u64> {
        let budget = budget.checked_sub(self.parts)?;
        let output = price.output_tokens_within(budget, self.input)?;
        Some((output / self.answers.max(1)).min(self.output_each))
    }

    /// The expected maximum of tokens, in and out.
    pub(crate) fn tokens(&self) -> u64 {
        self.input
            .saturating_add(self.output_each.saturating_mul(self.answers))
    }

    /// Reported tokens, bounded by the most tokens that the request can have used: a provider's wrong count must not empty an account.
    pub(crate) fn bounded(&self, claimed: Tokens) -> Tokens {
        let completion_max = self.output_each_max.saturating_mul(self.answers);
        Tokens {
            prompt: claimed.prompt.min(self.input_max),
            completion: claimed.completion.min(completion_max),
        }
    }
}

/// Pictures, sounds, files, parts of an unknown kind, and plugins. A part is held at the ceiling of its kind, if any.
struct Parts {
    count: u64,
    /// Parts without a ceiling.
    unbounded: u64,
    amount: Micros,
}

impl Parts {
    fn of(request: &CompletionRequest, ceilings: &PartCeilings) -> Parts {
        let parts = &request.parts;
        let kinds = [
            (parts.images, ceilings.image),
            (parts.audios, ceilings.audio),
            (parts.files, ceilings.file),
            (parts.others, ceilings.other),
            (u32::from(request.plugins), ceilings.plugins),
        ];
        let mut all = Parts {
            count: 0,
            unbounded: 0,
            amount: Micros::ZERO,
        };
        for (count, ceiling) in kinds {
            all.count += u64::from(count);
            match ceiling {
                Some(ceiling) => all.amount = all.amount.saturating_add(times(ceiling, count)),
                None => all.unbounded += u64::from(count),
            }
        }
        all
    }
}

/// o200k tokens converted to the model's tokens, rounded up.
pub(crate) fn scaled(tokens: u64, factor_ppm: u32) -> u64 {
    let scaled = u128::from(tokens) * u128::from(factor_ppm);
    u64::try_from(scaled.div_ceil(u128::from(PPM))).unwrap_or(u64::MAX)
}

fn times(amount: Micros, count: u32) -> Micros {
    let product = i128::from(amount.get()) * i128::from(count);
    Micros::new(i64::try_from(product).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tollgate_filter::ModelLimits;
    use tollgate_openai::Family;

    use super::*;

    const CONTEXT: u64 = 1_000;
    const DEFAULT: u64 = 200;
    const PLUGINS: u64 = 10_000;

    #[test]
    fn the_hold_covers_every_answer_that_is_asked_for() {
        //    endpoint, members beside a text of 30 bytes        input, each, answers, parts
        chat("", [82, 200, 1, 0]);
        chat(r#","max_tokens":50"#, [82, 50, 1, 0]);
        chat(
            r#","max_completion_tokens":70,"max_tokens":50"#,
            [82, 70, 1, 0],
        );
        chat(r#","max_tokens":5000"#, [82, 1_000, 1, 0]);
        chat(r#","max_tokens":50,"n":3"#, [82, 50, 3, 0]);
        chat(r#","plugins":[{}]"#, [82, 200, 1, PLUGINS]);
        text(r#""123456789012345678901234567890""#, "", [74, 200, 1, 0]);
        text(
            r#"["123456789012345","123456789012345"]"#,
            r#","best_of":4,"n":2"#,
            [138, 200, 8, 0],
        );
    }

    fn chat(members: &str, expected: [u64; 4]) {
        let body = format!(
            r#"{{"messages":[{{"role":"user","content":"123456789012345678901234567890"}}]{members}}}"#
        );
        check(Family::CHAT, &body, expected);
    }

    fn text(prompt: &str, members: &str, expected: [u64; 4]) {
        check(
            Family::TEXT,
            &format!(r#"{{"prompt":{prompt}{members}}}"#),
            expected,
        );
    }

    fn check(family: &'static Family, body: &str, expected: [u64; 4]) {
        let sizes = Sizes::of(&read(family, body), &model(Some(CONTEXT)), 3);
        let parts = u64::try_from(sizes.parts.get()).expect("no price is below zero");
        let seen = [sizes.input, sizes.output_each, sizes.answers, parts];
        assert_eq!(seen, expected, "{body}");
    }

    #[test]
    fn each_part_that_is_no_text_is_held_for_at_the_ceiling_of_its_kind() {
        // parts, hold
        parts(r#"{"type":"text","text":"a"}"#, 0);
        parts(r#"{"type":"image_url","image_url":{"url":"x"}}"#, 1);
        parts(r#"{"type":"input_audio","input_audio":{}}"#, 10);
        parts(r#"{"type":"file","file":{}}"#, 100);
        parts(r#"{"type":"hologram"}"#, 1_000);
        parts(
            r#"{"type":"image_url","image_url":{}},{"type":"image_url","image_url":{}},{"type":"file","file":{}}"#,
            102,
        );
    }

    fn parts(parts: &str, expected: i64) {
        let body = format!(r#"{{"messages":[{{"role":"user","content":[{parts}]}}]}}"#);
        let sizes = Sizes::of(&read(Family::CHAT, &body), &model(Some(CONTEXT)), 3);
        assert_eq!(sizes.parts, Micros::new(expected), "{body}");
        let without = Sizes {
            parts: Micros::ZERO,
            ..sizes
        };
        assert_eq!(
            sizes.amount(&price()),
            without.amount(&price()) + sizes.parts,
            "{body}"
        );
    }

    /// A file was held for at 4,096 tokens: 19.2 credits were due, and 0.7 were charged.
    #[test]
    fn a_part_without_a_ceiling_is_held_for_at_the_context() {
        let file = r#"{"messages":[{"role":"user","content":[{"type":"file","file":{}},{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        let request = read(Family::CHAT, file);
        let mut model = model(Some(CONTEXT));
        model.part_ceilings.file = None;
        let sizes = Sizes::of(&request, &model, 3);
        assert_eq!((sizes.input, sizes.parts), (CONTEXT, Micros::new(1)));
        model.limits.context_length = None;
        let sizes = Sizes::of(&request, &model, 3);
        assert_eq!(
            (sizes.input, sizes.parts),
            (72 + PART_TOKENS_MAX, Micros::new(1))
        );
    }

    #[test]
    fn an_answer_without_a_cap_is_charged_for_at_most_its_models_output_limit() {
        let request = read(Family::TEXT, r#"{"prompt":"1","n":2}"#);
        let mut model = model(Some(CONTEXT));
        model.limits.output_tokens_bound = true;
        let sizes = Sizes::of(&request, &model, 3);
        let claimed = Tokens {
            prompt: 1,
            completion: u64::MAX,
        };
        assert_eq!(sizes.bounded(claimed).completion, 2 * DEFAULT);
        let charge = price().charge(sizes.input, 2 * DEFAULT);
        assert!(charge <= sizes.amount(&price()), "the hold is the bound");
        // The client's own cap is not bounded, and is held for.
        let request = read(Family::TEXT, r#"{"prompt":"1","max_tokens":300}"#);
        let sizes = Sizes::of(&request, &model, 3);
        assert_eq!(sizes.bounded(claimed).completion, 300);
    }

    #[test]
    fn the_input_of_a_long_text_is_held_for_up_to_the_context() {
        let body = format!(r#"{{"prompt":"{}"}}"#, "a".repeat(100_000));
        let request = read(Family::TEXT, &body);
        assert_eq!(Sizes::of(&request, &model(Some(CONTEXT)), 3).input, CONTEXT);
        assert_eq!(Sizes::of(&request, &model(None), 3).input, 33_334 + 64);
    }

    #[test]
    fn claimed_tokens_are_held_to_what_the_request_can_have_used() {
        let short = r#"{"prompt":"123456789"}"#;
        let capped = r#"{"prompt":"123456789","max_tokens":5,"n":2}"#;
        //      body, context, claimed, billed
        bounded(short, Some(CONTEXT), (7, 9), (7, 9));
        bounded(short, Some(CONTEXT), (u64::MAX, u64::MAX), (1_000, 1_000));
        bounded(capped, Some(CONTEXT), (u64::MAX, u64::MAX), (2_000, 10));
        bounded(short, None, (u64::MAX, u64::MAX), (9 + 64 + 4_096, 131_072));
        bounded(
            capped,
            None,
            (u64::MAX, u64::MAX),
            ((9 + 64 + 4_096) * 2, 10),
        );
    }

    fn bounded(body: &str, context: Option<u64>, claimed: (u64, u64), billed: (u64, u64)) {
        let sizes = Sizes::of(&read(Family::TEXT, body), &model(context), 3);
        let tokens = |(prompt, completion)| Tokens { prompt, completion };
        assert_eq!(
            sizes.bounded(tokens(claimed)),
            tokens(billed),
            "{body} with a context of {context:?}"
        );
    }

    #[test]
    fn a_model_with_its_own_vocabulary_is_held_for_in_its_own_tokens() {
        let request = read(Family::TEXT, r#"{"prompt":"123456789012"}"#);
        let model = Model {
            token_factor_ppm: 1_300_000,
            ..model(None)
        };
        assert_eq!(
            Sizes::of(&request, &model, 3).input,
            6 + 64,
            "4 tokens by 1.3"
        );
    }

    #[test]
    fn the_affordable_cap_is_the_largest_whose_amount_fits() {
        let request = read(Family::TEXT, r#"{"prompt":"123456789","n":3}"#);
        let sizes = Sizes {
            parts: Micros::new(22),
            ..Sizes::of(&request, &model(None), 3)
        };
        let price = price();
        for budget in (0..2_000).map(Micros::new) {
            let Some(each) = sizes.output_each_within(budget, &price) else {
                assert!(sizes.capped_at(0).amount(&price) > budget);
                continue;
            };
            let amount = sizes.capped_at(each).amount(&price);
            assert!(amount <= budget);
            assert_eq!(sizes.output_each_within(amount, &price), Some(each));
            if each < sizes.output_each {
                assert!(sizes.capped_at(each + 1).amount(&price) > budget);
            }
        }
    }

    #[test]
    fn absurd_sizes_come_to_an_amount_no_account_can_pay() {
        let body = r#"{"prompt":"1","max_tokens":18446744073709551615,"n":18446744073709551615}"#;
        let sizes = Sizes::of(&read(Family::TEXT, body), &model(None), 3);
        assert_eq!(sizes.amount(&price()), Micros::MAX);
    }

    fn read(family: &'static Family, body: &str) -> Box<CompletionRequest> {
        CompletionRequest::read(family, body.as_bytes()).expect("a good request")
    }

    fn price() -> Price {
        Price {
            input: "1".parse().expect("a price"),
            output: "2".parse().expect("a price"),
            request: Micros::new(3),
        }
    }

    fn model(context: Option<u64>) -> Model {
        Model {
            id: "m".into(),
            name: None,
            owned_by: "svc".into(),
            created: None,
            price: price(),
            price_version: 1,
            limits: ModelLimits {
                context_length: context.and_then(NonZeroU64::new),
                output_tokens_default: NonZeroU64::new(DEFAULT).expect("not zero"),
                output_tokens_bound: false,
            },
            output_modalities: vec!["text".into()],
            part_ceilings: PartCeilings {
                image: Some(Micros::new(1)),
                audio: Some(Micros::new(10)),
                file: Some(Micros::new(100)),
                other: Some(Micros::new(1_000)),
                plugins: Some(Micros::new(PLUGINS as i64)),
            },
            token_factor_ppm: 1_000_000,
            providers: Vec::new(),
            system_as_chat: false,
            cap_member: tollgate_filter::CapMember::MaxTokens,
            routing: tollgate_filter::Routing::default(),
            after_leaving: None,
            working: AtomicBool::new(true),
        }
    }
}
