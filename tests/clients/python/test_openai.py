"""The stock `openai` package for Python against `tollgate demo`: base URL and key changed, nothing else."""

import asyncio
import json
import ssl
import unittest

import openai

from demo import ANSWER, ANSWER_TOKENS, BASE_URL, DEMO, MODEL, calls, gate, new_key, provider

ASK = [{"role": "user", "content": "May I pass?"}]
ASK_TOKENS = 3
TOOL = {
    "type": "function",
    "function": {
        "name": "find_road",
        "description": "Finds the way to a place.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "lanes": {"type": "integer"}}},
    },
}
CALLED_WITH = {"place": "the north gate", "lanes": 2}


def client(key=DEMO["api_key"], **options):
    # Retries would hide the error that a test looks at; the tests of retries ask for them.
    return openai.OpenAI(base_url=BASE_URL, api_key=key, **{"max_retries": 0, **options})


def async_client():
    return openai.AsyncOpenAI(base_url=BASE_URL, api_key=DEMO["api_key"], max_retries=0)


def stand_in(**script):
    """What the provider shall do otherwise, carried through the gateway as a member that it does not know."""
    return {"stand_in": script}


class Case(unittest.TestCase):
    maxDiff = None

    def assert_metadata(self, metadata, *, paid=True):
        """`x_svc` as documented, for an answer that cost something or did not."""
        self.assertIs(metadata["cache_hit"], False)
        self.assertIsInstance(metadata["owner"], str)
        self.assertIsInstance(metadata["credits_remaining"], (int, float))
        if paid:
            self.assertGreater(metadata["credits_used"], 0)
        else:
            self.assertEqual(metadata["credits_used"], 0)

    def assert_usage(self, usage, *, choices=1):
        self.assertEqual(usage.prompt_tokens, ASK_TOKENS)
        self.assertEqual(usage.completion_tokens, ANSWER_TOKENS * choices)
        self.assertEqual(usage.total_tokens, ASK_TOKENS + ANSWER_TOKENS * choices)

    def refused(self, kind, status, type_, code, call):
        """Makes the call, checks the class and the members of its error, and gives the error back."""
        with self.assertRaises(kind) as caught:
            call()
        error = caught.exception
        self.assertEqual((error.status_code, error.type, error.code), (status, type_, code), error.body)
        self.assertTrue(error.request_id, "every error has a request id")
        self.assertTrue(error.body["message"])
        return error


class Models(Case):
    def test_the_list_has_the_models_with_their_prices(self):
        page = client().models.list()
        models = {model.id: model for model in page}
        self.assertIn(MODEL, models)
        model = models[MODEL]
        self.assertEqual(model.object, "model")
        self.assertTrue(model.owned_by)
        self.assertIn("input", model.cost)
        self.assertIn("prompt", model.pricing)
        self.assertIn("text", model.output_modalities)
        self.assertIn("credits_remaining", page.x_svc)

    def test_one_model_is_that_of_the_list(self):
        [listed] = [model for model in client().models.list() if model.id == MODEL]
        self.assertEqual(client().models.retrieve(MODEL), listed)
        self.assertIsInstance(listed.created, int)
        self.refused(openai.NotFoundError, 404, "invalid_request_error", "not_found", lambda: client().models.retrieve("a/b"))

    def test_what_is_no_operation_is_not_found(self):
        self.refused(openai.NotFoundError, 404, "invalid_request_error", "not_found", lambda: client().files.list())


class Chat(Case):
    def test_a_plain_answer_is_the_providers_with_usage_and_metadata(self):
        answer = client().chat.completions.create(model=MODEL, messages=ASK, extra_body={"cache": False})
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, MODEL)
        self.assertEqual(answer.choices[0].message.content, ANSWER)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assert_usage(answer.usage)
        self.assert_metadata(answer.x_svc)
        self.assertTrue(answer._request_id)

    def test_the_credits_used_are_the_credits_that_are_gone(self):
        paying = client(new_key(credits="1000"))
        before = paying.chat.completions.create(model=MODEL, messages=ASK, extra_body={"cache": False}).x_svc
        after = paying.chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, extra_body={"cache": False}).x_svc
        gone = before["credits_remaining"] - after["credits_remaining"]
        self.assertAlmostEqual(gone, after["credits_used"], places=6)
        self.assertLess(after["credits_used"], before["credits_used"])

    def test_unknown_members_reach_the_provider_and_the_key_does_not(self):
        marker = gate()
        unknown = {"vendor": {"order": ["b", "a"], "marker": marker, "half": 0.50}}
        client().chat.completions.create(model=MODEL, messages=ASK, seed=7, extra_body=unknown)
        [call] = calls(marker)
        body = json.loads(call["body"])
        self.assertEqual(body["vendor"], unknown["vendor"])
        self.assertEqual(body["seed"], 7)
        self.assertFalse([line for line in call["headers"] if DEMO["api_key"] in line[1]], "the provider saw the client's key")

    def test_several_choices_come_whole_and_are_all_counted(self):
        answer = client().chat.completions.create(model=MODEL, messages=ASK, n=2)
        self.assertEqual([choice.index for choice in answer.choices], [0, 1])
        self.assertEqual([choice.message.content for choice in answer.choices], [ANSWER, ANSWER])
        self.assert_usage(answer.usage, choices=2)

    def test_a_tool_is_called_and_its_result_is_taken(self):
        call_it = {"type": "function", "function": {"name": "find_road"}}
        answer = client().chat.completions.create(model=MODEL, messages=ASK, tools=[TOOL], tool_choice=call_it)
        self.assertEqual(answer.choices[0].finish_reason, "tool_calls")
        [call] = answer.choices[0].message.tool_calls
        self.assertEqual(call.function.name, "find_road")
        self.assertEqual(json.loads(call.function.arguments), CALLED_WITH)
        result = {"role": "tool", "tool_call_id": call.id, "content": "Straight on."}
        message = answer.choices[0].message
        # Without the members that are None, `content` among them, as many programs write it.
        short = message.model_dump(exclude_none=True)
        self.assertNotIn("content", short)
        for said in [message.to_dict(), short]:
            messages = [{"role": "developer", "content": "Be brief."}, *ASK, said, result]
            answer = client().chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
            self.assertEqual(answer.choices[0].message.content, ANSWER)

    def test_parts_of_content_are_taken(self):
        parts = [{"type": "text", "text": "May I"}, {"type": "text", "text": "pass?"}]
        answer = client().chat.completions.create(model=MODEL, messages=[{"role": "user", "content": parts}])
        self.assert_usage(answer.usage)

    def test_the_limit_of_tokens_ends_the_answer(self):
        for limit in ("max_tokens", "max_completion_tokens"):
            with self.subTest(limit):
                answer = client().chat.completions.create(model=MODEL, messages=ASK, **{limit: 4})
                self.assertEqual(answer.choices[0].message.content, "The toll is paid")
                self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_without_the_cache_every_request_is_answered_anew(self):
        marker = gate()
        body = {"cache": False, "marker": marker}
        for _ in range(2):
            answer = client().chat.completions.create(model=MODEL, messages=ASK, extra_body=body)
            self.assert_metadata(answer.x_svc)
        self.assertEqual(len(calls(marker)), 2)

    def test_the_raw_answer_has_the_limits_in_its_head(self):
        raw = client().chat.completions.with_raw_response.create(model=MODEL, messages=ASK)
        self.assertTrue(raw.headers["content-type"].startswith("application/json"))
        for name in ("x-request-id", "ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"):
            self.assertIn(name, raw.headers)
        self.assertEqual(raw.parse().choices[0].message.content, ANSWER)

    def test_the_same_over_tls(self):
        trust = ssl.create_default_context(cafile=DEMO["ca_file"])
        over_tls = openai.OpenAI(
            base_url=DEMO["tls_url"] + "/v1",
            api_key=DEMO["api_key"],
            max_retries=0,
            http_client=openai.DefaultHttpx2Client(verify=trust),
        )
        answer = over_tls.chat.completions.create(model=MODEL, messages=ASK)
        self.assertEqual(answer.choices[0].message.content, ANSWER)
        text = [chunk.choices[0].delta.content or "" for chunk in over_tls.chat.completions.create(model=MODEL, messages=ASK, stream=True)]
        self.assertEqual("".join(text), ANSWER)


class ChatStreams(Case):
    def test_the_pieces_make_the_answer_and_the_last_one_has_the_metadata(self):
        chunks = list(client().chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_body={"cache": False}))
        self.assertEqual({chunk.object for chunk in chunks}, {"chat.completion.chunk"})
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER)
        self.assertEqual([chunk.usage for chunk in chunks if chunk.usage], [], "the usage was not requested")
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")
        self.assert_metadata(chunks[-1].x_svc)
        self.assertFalse([chunk for chunk in chunks[:-1] if "x_svc" in chunk.model_extra])

    def test_the_usage_comes_last_when_asked_for(self):
        options = {"include_usage": True}
        request = {"model": MODEL, "messages": ASK, "stream": True, "stream_options": options}
        chunks = list(client().chat.completions.create(**request, extra_body={"cache": False}))
        self.assertEqual(chunks[-1].choices, [])
        self.assert_usage(chunks[-1].usage)
        self.assert_metadata(chunks[-1].x_svc)
        self.assertEqual(chunks[-2].choices[0].finish_reason, "stop")

    def test_plain_and_streamed_cost_the_same(self):
        plain = client().chat.completions.create(model=MODEL, messages=ASK, extra_body={"cache": False})
        *_, last = client().chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_body={"cache": False})
        self.assertEqual(last.x_svc["credits_used"], plain.x_svc["credits_used"])

    def test_several_choices_come_side_by_side(self):
        texts = ["", ""]
        for chunk in client().chat.completions.create(model=MODEL, messages=ASK, stream=True, n=2):
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        self.assertEqual(texts, [ANSWER, ANSWER])

    def test_the_streaming_helper_puts_the_answer_together(self):
        with client().chat.completions.stream(model=MODEL, messages=ASK, stream_options={"include_usage": True}) as stream:
            kinds = {event.type for event in stream}
            answer = stream.get_final_completion()
        self.assertIn("content.delta", kinds)
        self.assertIn("content.done", kinds)
        self.assertEqual(answer.choices[0].message.content, ANSWER)
        self.assert_usage(answer.usage)

    def test_the_streaming_helper_puts_a_tool_call_together(self):
        strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
        with client().chat.completions.stream(model=MODEL, messages=ASK, tools=[strict], tool_choice="required") as stream:
            answer = stream.get_final_completion()
        [call] = answer.choices[0].message.tool_calls
        self.assertEqual(json.loads(call.function.arguments), CALLED_WITH)

    def test_a_piece_is_passed_on_before_the_next_one_exists(self):
        middle = gate()
        script = stand_in(holds=[{"before": 3, "gate": middle}])
        stream = client().chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_body=script)
        # The role, and two words; the provider sends no more before the gate is opened.
        first = [next(stream).choices[0].delta.content or "" for _ in range(3)]
        self.assertEqual("".join(first).split(), ["The", "toll"])
        provider("open", gate=middle)
        rest = [chunk.choices[0].delta.content or "" for chunk in stream]
        self.assertEqual("".join(first + rest), ANSWER)

    def test_a_client_that_disconnects_is_charged_once_and_may_return(self):
        key = new_key(credits="1000")
        paying = client(key)
        whole = paying.chat.completions.create(model=MODEL, messages=ASK, extra_body={"cache": False}).x_svc
        middle, marker = gate(), gate()
        script = {**stand_in(holds=[{"before": 5, "gate": middle}]), "marker": marker, "cache": False}
        stream = paying.chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_body=script)
        next(stream)
        provider("reached", gate=middle)
        stream.close()
        provider("open", gate=middle)
        self.assertEqual(len(calls(marker)), 1)
        after = paying.chat.completions.create(model=MODEL, messages=ASK, extra_body={"cache": False}).x_svc
        gone = whole["credits_remaining"] - after["credits_remaining"]
        # This request, and at most one whole answer for the one that was left.
        self.assertLessEqual(gone, 2 * whole["credits_used"] + 1e-6)
        self.assertGreaterEqual(gone, whole["credits_used"] - 1e-6)

    def test_an_error_in_the_middle_is_an_error_and_not_a_short_answer(self):
        for name, script in {
            "the provider says so": {"error_event_at": 4},
            "the provider is cut off": {"cut": {"after_events": 4}},
            "the connection is reset": {"cut": {"after_events": 4, "by": "reset"}},
        }.items():
            with self.subTest(name):
                stream = client().chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_body=stand_in(**script))
                with self.assertRaises(openai.APIError) as caught:
                    for _ in stream:
                        pass
                self.assertEqual(caught.exception.body["type"], "upstream_error")


class Cached(Case):
    def ask(self, stream, **request):
        """What was said, what ended it, the calls of tools, and the metadata, of a whole answer or of a stream put together."""
        if not stream:
            answer = client().chat.completions.create(model=MODEL, **request)
            choice = answer.choices[0]
            return choice.message.content, choice.finish_reason, calls_of(choice.message), answer.x_svc
        with client().chat.completions.stream(model=MODEL, **request) as events:
            chunks = [event.chunk for event in events if event.type == "chunk"]
            choice = events.get_final_completion().choices[0]
            return choice.message.content or None, choice.finish_reason, calls_of(choice.message), chunks[-1].x_svc

    def test_an_equal_question_has_an_equal_answer_for_nothing_whole_and_streamed(self):
        strict = {**TOOL, "function": {**TOOL["function"], "strict": True}}
        for number, extra in enumerate([{}, {"tools": [strict], "tool_choice": "required"}]):
            for streamed_first in (False, True):
                with self.subTest(extra=list(extra), streamed_first=streamed_first):
                    question = [{"role": "user", "content": f"cached {number} {streamed_first}"}]
                    *first, made = self.ask(streamed_first, messages=question, **extra)
                    self.assertEqual((made["cache_hit"], made["cache_store_status"]), (False, "stored"))
                    for stream in (False, True):
                        *again, found = self.ask(stream, messages=question, **extra)
                        self.assertEqual(again, first)
                        self.assertEqual((found["cache_hit"], found["cache_store_status"]), (True, "hit"))
                        self.assertEqual(found["cache_entry_id"], made["cache_entry_id"])
                        self.assertEqual(found["credits_used"], 0)


    def test_a_stored_stream_is_one_answer_live_replayed_and_whole(self):
        for what, deltas in STREAMS.items():
            with self.subTest(what):
                chunks = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
                chunks.append({"index": 0, "delta": {}, "finish_reason": "stop"})
                head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
                text = "".join(f"data: {json.dumps({**head, 'choices': [chunk]})}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
                script = stand_in(headers=[["content-type", "text/event-stream"]], failure={"text": text})
                request = {"model": MODEL, "messages": [{"role": "user", "content": f"joined: {what}"}], "extra_body": script}
                found = []
                for _ in range(2):
                    with client().chat.completions.stream(**request) as events:
                        found.append(members_of(events.get_final_completion().choices[0].message))
                answer = client().chat.completions.create(**request)
                self.assertIs(answer.x_svc["cache_hit"], True)
                found.append(members_of(answer.choices[0].message))
                self.assertEqual(found, [found[0]] * 3)


# Deltas of the forms that providers send and this library joins.
STREAMS = {
    "reasoning": [{"role": "assistant", "content": ""}, {"reasoning_content": "Let"}, {"reasoning_content": " me"}, {"content": "It is "}, {"content": "4."}],
    "calls": [
        {"role": "assistant", "content": None},
        {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "find_road", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"place":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"north"}'}}]},
        {"tool_calls": [{"index": 1, "id": "c2", "type": "function", "function": {"name": "find_road", "arguments": "{}"}}]},
    ],
    "details": [
        {"role": "assistant", "reasoning": "A", "reasoning_details": [{"type": "reasoning.text", "text": "A", "index": 0}]},
        {"reasoning": "B", "reasoning_details": [{"type": "reasoning.text", "text": "B", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.text", "signature": "s", "index": 0}]},
        {"content": "4"},
    ],
    "a refusal": [{"role": "assistant"}, {"refusal": "I would "}, {"refusal": "rather not."}],
}


def members_of(message):
    """The members of a message that say something, without what the library adds for streams."""
    members = {name: value for name, value in message.to_dict().items() if value and name != "parsed"}
    for call in members.get("tool_calls", []):
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    return members


def calls_of(message):
    return [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or []]


class TextCompletions(Case):
    def test_a_plain_answer(self):
        answer = client().completions.create(model=MODEL, prompt="May I pass?", extra_body={"cache": False})
        self.assertEqual(answer.object, "text_completion")
        self.assertEqual(answer.choices[0].text.strip(), ANSWER)
        self.assert_usage(answer.usage)
        self.assert_metadata(answer.x_svc)
        self.assertTrue(answer._request_id)

    def test_a_stream(self):
        chunks = list(client().completions.create(model=MODEL, prompt="May I pass?", stream=True, extra_body={"cache": False}))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks if chunk.choices).strip(), ANSWER)
        self.assert_metadata(chunks[-1].x_svc)

    def test_several_prompts_have_an_answer_each(self):
        answer = client().completions.create(model=MODEL, prompt=["May I pass?", "And now?"])
        self.assertEqual(sorted(choice.index for choice in answer.choices), [0, 1])


class AtOnce(Case):
    def test_the_asynchronous_client_plain_and_streamed(self):
        async def ask():
            async with async_client() as gateway:
                answer = await gateway.chat.completions.create(model=MODEL, messages=ASK)
                stream = await gateway.chat.completions.create(model=MODEL, messages=ASK, stream=True)
                return answer, [chunk async for chunk in stream]

        answer, chunks = asyncio.run(ask())
        self.assertEqual(answer.choices[0].message.content, ANSWER)
        self.assertTrue(answer._request_id)
        self.assertEqual("".join(chunk.choices[0].delta.content or "" for chunk in chunks), ANSWER)

    def test_twenty_requests_side_by_side_have_an_answer_and_an_id_each(self):
        async def ask():
            async with async_client() as gateway:

                async def whole(words):
                    return await gateway.chat.completions.create(model=MODEL, messages=ASK, max_tokens=words)

                async def streamed(words):
                    stream = await gateway.chat.completions.create(model=MODEL, messages=ASK, max_tokens=words, stream=True)
                    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

                return await asyncio.gather(*map(whole, range(1, 11))), await asyncio.gather(*map(streamed, range(1, 11)))

        answers, streams = asyncio.run(ask())
        self.assertEqual([len(answer.choices[0].message.content.split()) for answer in answers], list(range(1, 11)))
        self.assertEqual([len(text.split()) for text in streams], list(range(1, 11)))
        self.assertEqual(len({answer._request_id for answer in answers}), 10)

    def test_an_asynchronous_stream_can_be_left(self):
        async def ask():
            async with async_client() as gateway:
                middle = gate()
                script = stand_in(holds=[{"before": 3, "gate": middle}])
                stream = await gateway.chat.completions.create(model=MODEL, messages=ASK, stream=True, extra_body=script)
                async for _ in stream:
                    break
                await stream.close()
                provider("open", gate=middle)
                return await gateway.chat.completions.create(model=MODEL, messages=ASK)

        self.assertEqual(asyncio.run(ask()).choices[0].message.content, ANSWER)


class Refusals(Case):
    def chat(self, gateway=None, **request):
        gateway = gateway or client()
        return lambda: gateway.chat.completions.create(**{"model": MODEL, "messages": ASK, **request})

    def test_401_for_a_key_that_is_none(self):
        for key in ("sk-svc-not-a-key", "sk-from-elsewhere", DEMO["api_key"][:-1] + ("a" if DEMO["api_key"][-1] != "a" else "b")):
            self.refused(openai.AuthenticationError, 401, "authentication_error", "invalid_credential", self.chat(client(key)))

    def test_400_for_a_model_that_is_not_sold(self):
        error = self.refused(openai.BadRequestError, 400, "invalid_request_error", "model_not_supported", self.chat(model="gone"))
        self.assertEqual(error.param, "model")

    def test_400_names_the_member_that_is_wrong(self):
        for member, value, code in (
            ("temperature", -1, "out_of_range"),
            ("max_tokens", 0, "out_of_range"),
            ("messages", [], "out_of_range"),
            ("temperature", "warm", "invalid_type"),
            ("modalities", "text", "invalid_type"),
        ):
            with self.subTest(member, value=value):
                call = self.chat(**{member: value})
                error = self.refused(openai.BadRequestError, 400, "invalid_request_error", code, call)
                self.assertEqual(error.param, member)

    def test_402_without_credits_plain_and_streamed(self):
        poor = client(new_key())
        for stream in (False, True):
            call = self.chat(poor, stream=stream)
            error = self.refused(openai.APIStatusError, 402, "insufficient_credits_error", "insufficient_credits", call)
            self.assertEqual(error.body["available"], 0)
            # What the answer would have cost was not computed: no number stands in its place.
            self.assertNotIn("required", error.body)

    def test_429_says_when_and_the_client_comes_back_then(self):
        key = new_key(credits="1000", rate_class="free")
        hasty = client(key)

        def list_until_refused():
            # Far more than the class may ask in a window.
            for _ in range(1000):
                hasty.models.list()

        error = self.refused(openai.RateLimitError, 429, "rate_limit_error", "rate_limit_exceeded", list_until_refused)
        headers = error.response.headers
        self.assertGreaterEqual(int(headers["retry-after"]), 1)
        self.assertEqual(int(headers["ratelimit-remaining"]), 0)
        for name in ("ratelimit", "ratelimit-policy", "ratelimit-limit", "ratelimit-reset"):
            self.assertIn(name, headers)
        # The client waits for Retry-After, and its retry is admitted.
        page = client(key, max_retries=2).models.list()
        self.assertIn(MODEL, [model.id for model in page])

    def test_502_when_the_provider_fails(self):
        call = self.chat(extra_body=stand_in(status=500))
        self.refused(openai.InternalServerError, 502, "upstream_error", "upstream_error", call)

    def test_502_when_the_provider_answers_nonsense(self):
        call = self.chat(extra_body=stand_in(failure="html"))
        self.refused(openai.InternalServerError, 502, "upstream_error", "upstream_invalid", call)

    def test_a_client_that_gives_up_waiting_can_ask_again(self):
        held = gate()
        impatient = client(timeout=0.5)
        with self.assertRaises(openai.APITimeoutError):
            impatient.chat.completions.create(model=MODEL, messages=ASK, extra_body=stand_in(hold_head=held))
        provider("open", gate=held)
        answer = client().chat.completions.create(model=MODEL, messages=ASK)
        self.assertEqual(answer.choices[0].message.content, ANSWER)


if __name__ == "__main__":
    result = unittest.main(verbosity=2, exit=False).result
    # A test with several failing parts has failed once.
    failed = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    print(f"{result.testsRun - len(failed)} passed, {len(failed)} failed")
    raise SystemExit(bool(failed) or not result.testsRun)
