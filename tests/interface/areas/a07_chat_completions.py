"""Chat completions: the answer, its choices, and the errors."""

import time

from schemas import CHAT_CHOICE, CHAT_COMPLETION, ERROR
from statement import Area, each, equal, holds, valid
from world import CHAT, ask

area = Area("chat-completions")


@area.says("the answer is JSON with its required members")
def _(world):
    answer = world.post(CHAT, ask()).is_status(200)
    equal(answer.media_type(), "application/json")
    valid(answer.json(), CHAT_COMPLETION)


@area.says("a stored answer has them too")
def _(world):
    body = ask()
    world.takes(CHAT, body)
    valid(world.takes(CHAT, body), CHAT_COMPLETION)


@area.says("object is chat.completion, as OpenAI's clients expect")
def _(world):
    equal(world.takes(CHAT, ask())["object"], "chat.completion")


@area.says("model is the one that was asked for")
def _(world):
    for model in ("demo-small", "demo-large"):
        equal(world.takes(CHAT, ask(model=model))["model"], model)


@area.says("created is a time in seconds that has passed")
def _(world):
    body = ask()
    for _ in range(2):
        created = world.takes(CHAT, body)["created"]
        holds(1_500_000_000 < created <= time.time() + 1, "seconds since 1970", created)


@area.says("every choice has index and message; finish_reason is a string or null")
def _(world):
    answer = world.takes(CHAT, ask(n=2))
    each(answer["choices"], lambda choice: valid(choice, CHAT_CHOICE))


@area.says("choices are there for an answer cut by max_tokens")
def _(world):
    choices = world.takes(CHAT, ask(max_tokens=2))["choices"]
    each(choices, lambda choice: valid(choice, CHAT_CHOICE))
    equal(choices[0]["finish_reason"], "length")


@area.says("with stream true the answer is an event stream that ends with [DONE]")
def _(world):
    answer = world.post(CHAT, ask(stream=True)).is_status(200)
    equal(answer.media_type(), "text/event-stream")
    equal(answer.events()[-1], "[DONE]")


def broken(**script):
    return ask(cache=False, stand_in=script)


# What a request is, the status, and the type of the error.
REFUSALS = [
    ("an invalid body", {"messages": []}, 400, "invalid_request_error"),
    ("a model that is not supported", ask(model="demo-none"), 400, "invalid_request_error"),
    ("too few credits", ask(model="demo-large", max_tokens=4096), 402, "insufficient_credits_error"),
    ("a provider that answers 500", broken(status=500), 502, None),
    ("a provider that answers something else", broken(failure="html"), 502, None),
    ("a provider that answers half of an object", broken(failure="invalid_json"), 502, None),
    ("a provider that closes the connection", broken(instead_of_head="close"), 502, None),
]

for text, body, status, kind in REFUSALS:

    @area.says(f"{text}: {status} in the envelope of errors")
    def _(world, body=body, status=status, kind=kind):
        error = valid(world.post(CHAT, body, world.key("5")).is_status(status).json(), ERROR)["error"]
        if kind:
            equal(error["type"], kind)


@area.says("no credential: 401; without the scope: 403")
def _(world):
    world.post(CHAT, ask(), None).is_status(401)
    world.post(CHAT, ask(), world.token(world.api, "api:models")).is_status(403)


@area.says("requests beyond the quota: 429")
def _(world):
    key = world.key(rate_class="probe")
    statuses = [world.post(CHAT, ask(), key).status for _ in range(5)]
    holds(statuses[0] == 200 and statuses[-1] == 429, "200 first, and 429 at the end", statuses)


@area.says("a refused request costs nothing")
def _(world):
    key = world.key("5")
    for _, body, _, _ in REFUSALS:
        world.post(CHAT, body, key)
    equal(world.balance(key), 5)
