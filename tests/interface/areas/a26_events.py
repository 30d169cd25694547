"""Streams of server-sent events."""

from schemas import METADATA, USAGE
from statement import Area, each, equal, holds, valid
from world import CHAT, TEXT, ask, prompt

area = Area("events")

for path, make, kind in ((CHAT, ask, "chat.completion.chunk"), (TEXT, prompt, "text_completion")):

    def stream(world, path=path, make=make, **members):
        return world.post(path, make(stream=True, **members)).is_status(200)

    @area.says(f"{path}: stream true is answered with server-sent events")
    def _(world, stream=stream):
        equal(stream(world).media_type(), "text/event-stream")

    @area.says(f"{path}: the stream ends with data: [DONE] and nothing after it")
    def _(world, stream=stream):
        text = stream(world).text()
        holds(text.rstrip("\r\n").endswith("data: [DONE]"), "data: [DONE] at the end", text[-200:])
        equal(text.count("[DONE]"), 1)

    @area.says(f"{path}: every other event is an object of JSON with object {kind}")
    def _(world, stream=stream, kind=kind):
        each(stream(world).chunks(), lambda chunk: equal(chunk.get("object"), kind))

    @area.says(f"{path}: the events together are the answer of a request without stream")
    def _(world, stream=stream, path=path, make=make):
        body = make(cache=False)
        whole = world.takes(path, body)["choices"][0]
        chunks = world.post(path, body | {"stream": True}).is_status(200).chunks()
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        if path == CHAT:
            equal("".join(choice["delta"].get("content") or "" for choice in choices), whole["message"]["content"])
        else:
            equal("".join(choice["text"] for choice in choices), whole["text"])

    @area.says(f"{path}: x_svc is in the stream once, and as in an answer without stream")
    def _(world, stream=stream):
        found = [chunk["x_svc"] for chunk in stream(world).chunks() if "x_svc" in chunk]
        equal(len(found), 1)
        valid(found[0], METADATA)

    @area.says(f"{path}: a stream is paid for with credits")
    def _(world, path=path, make=make):
        key = world.key("5")
        chunks = world.post(path, make(stream=True), key).is_status(200).chunks()
        (found,) = [chunk["x_svc"] for chunk in chunks if "x_svc" in chunk]
        holds(found["credits_used"] > 0, "credits used", found)
        equal(world.balance(key), found["credits_remaining"])

    @area.says(f"{path}: a stored answer is streamed with the same end")
    def _(world, path=path, make=make):
        body = make(stream=True)
        world.post(path, body).is_status(200)
        answer = world.post(path, body).is_status(200)
        equal(answer.events()[-1], "[DONE]")
        (found,) = [chunk["x_svc"] for chunk in answer.chunks() if "x_svc" in chunk]
        equal(found["cache_hit"], True)

    @area.says(f"{path}: usage comes once when it is asked for")
    def _(world, stream=stream):
        chunks = stream(world, stream_options={"include_usage": True}).chunks()
        found = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        equal(len(found), 1)
        valid(found[0], USAGE)

    @area.says(f"{path}: a refusal of a stream is an answer in JSON with its status")
    def _(world, path=path, make=make):
        answer = world.post(path, make(stream=True, model="demo-none")).is_status(400)
        equal(answer.media_type(), "application/json")

    @area.says(f"{path}: a provider that fails before the stream: 502 in JSON")
    def _(world, path=path, make=make):
        answer = world.post(path, make(stream=True, cache=False, stand_in={"status": 500})).is_status(502)
        equal(answer.media_type(), "application/json")

    @area.says(
        f"{path}: a provider that breaks off in the stream: an event with an error, in the shape of the envelope"
    )
    def _(world, path=path, make=make):
        answer = world.post(path, make(stream=True, cache=False, stand_in={"cut": {"after_events": 3}})).is_status(200)
        errors = [chunk["error"] for chunk in answer.chunks() if "error" in chunk]
        equal(len(errors), 1)
        holds({"message", "type", "code"} <= set(errors[0]), "message, type and code", errors[0])


area.cannot_see("no webhooks are sent to clients", "what does not happen has no end to wait for")
