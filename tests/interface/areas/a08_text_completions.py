"""Text completions: the answer, its choices, and the errors."""

from schemas import ERROR, TEXT_CHOICE, TEXT_COMPLETION
from statement import Area, each, equal, holds, valid
from world import TEXT, prompt

area = Area("text-completions")


@area.says("the answer is JSON with its required members")
def _(world):
    answer = world.post(TEXT, prompt()).is_status(200)
    equal(answer.media_type(), "application/json")
    valid(answer.json(), TEXT_COMPLETION)


@area.says("a stored answer has them too")
def _(world):
    body = prompt()
    world.takes(TEXT, body)
    valid(world.takes(TEXT, body), TEXT_COMPLETION)


@area.says("object is text_completion")
def _(world):
    equal(world.takes(TEXT, prompt())["object"], "text_completion")


@area.says("every choice has index and text; logprobs is an object or null, finish_reason a string or null")
def _(world):
    each(world.takes(TEXT, prompt(n=2))["choices"], lambda choice: valid(choice, TEXT_CHOICE))


@area.says("model is the one that was asked for")
def _(world):
    equal(world.takes(TEXT, prompt(model="demo-large"))["model"], "demo-large")


@area.says("with stream true the answer is an event stream that ends with [DONE]")
def _(world):
    answer = world.post(TEXT, prompt(stream=True)).is_status(200)
    equal(answer.media_type(), "text/event-stream")
    equal(answer.events()[-1], "[DONE]")


def broken(**script):
    return prompt(cache=False, stand_in=script)


REFUSALS = [
    ("an invalid body", {"prompt": 1}, 400),
    ("a model that is not supported", prompt(model="demo-none"), 400),
    ("too few credits", prompt(model="demo-large", max_tokens=4096), 402),
    ("a provider that answers 500", broken(status=500), 502),
    ("a provider that answers something else", broken(failure="other_json"), 502),
    ("a provider that resets the connection", broken(instead_of_head="reset"), 502),
]

for text, body, status in REFUSALS:

    @area.says(f"{text}: {status} in the envelope of errors")
    def _(world, body=body, status=status):
        valid(world.post(TEXT, body, world.key("5")).is_status(status).json(), ERROR)


@area.says("no credential: 401; without the scope: 403")
def _(world):
    world.post(TEXT, prompt(), None).is_status(401)
    world.post(TEXT, prompt(), world.token(world.api, "api:chat")).is_status(403)


@area.says("requests beyond the quota: 429")
def _(world):
    key = world.key(rate_class="probe")
    statuses = [world.post(TEXT, prompt(), key).status for _ in range(5)]
    holds(statuses[0] == 200 and statuses[-1] == 429, "200 first, and 429 at the end", statuses)
