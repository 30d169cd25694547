"""The members of a text request: types, ranges, defaults."""

from statement import Area, equal, holds
from world import TEXT, prompt, without

area = Area("text-request")

MEMBERS = {
    "model: a string": ("model", ["demo-small"], [1, True, [], {}]),
    "prompt: a string or an array of strings": ("prompt", ["text", ["text", "more"]], [None, 1, True, {}, [{}]]),
    "system: a string": ("system", ["Be short."], [1, True, [], {}]),
    "temperature: a number from 0": ("temperature", [0, 0.5], [-1, -0.001, "1", True, []]),
    "max_tokens: an integer from 1": ("max_tokens", [1, 2, 4096], [0, -1, 1.5, "1", True]),
    "stream: a boolean": ("stream", [False], ["true", 1, 0, []]),
    "cache: a boolean": ("cache", [True, False], ["false", 1, 0, []]),
}

for text, (member, good, bad) in MEMBERS.items():

    @area.says(f"{text}: taken")
    def _(world, member=member, good=good):
        for value in good:
            world.takes(TEXT, prompt(**{member: value}))

    @area.says(f"{text}: any other value is refused, and the member named")
    def _(world, member=member, bad=bad):
        for value in bad:
            world.refuses(TEXT, prompt(**{member: value}), member)


@area.says("prompt is required")
def _(world):
    world.refuses(TEXT, without(prompt(), "prompt"), "prompt")


@area.says("a body of a prompt alone is enough")
def _(world):
    world.takes(TEXT, without(prompt(), "model"))


@area.says("model names one of the models that are listed; another is refused")
def _(world):
    equal(world.refuses(TEXT, prompt(model="demo-none"), "model")["code"], "model_not_supported")


@area.says("each of several prompts has an answer")
def _(world):
    answer = world.takes(TEXT, prompt(prompt=[prompt()["prompt"], prompt()["prompt"]]))
    equal(sorted({choice["index"] for choice in answer["choices"]}), [0, 1])


@area.says("system, temperature and max_tokens reach the model provider")
def _(world):
    members = {"system": "Be short.", "temperature": 0.5, "max_tokens": 5}
    body = prompt(**members)
    world.takes(TEXT, body)
    (call,) = world.provider_calls(body["prompt"])
    equal({name: call.get(name) for name in ("temperature", "max_tokens")}, {"temperature": 0.5, "max_tokens": 5})
    holds("Be short." in str(call), "the text of system", call)


@area.says("stream is false by default")
def _(world):
    equal(world.post(TEXT, prompt()).is_status(200).media_type(), "application/json")


@area.says("cache is true by default; with false every request is a new call")
def _(world):
    body = prompt()
    world.takes(TEXT, body)
    equal(world.takes(TEXT, body)["x_svc"]["cache_hit"], True)
    body = prompt(cache=False)
    for _ in range(2):
        equal(world.takes(TEXT, body)["x_svc"]["cache_hit"], False)


@area.says("any other member is taken")
def _(world):
    world.takes(TEXT, prompt(other={"deep": [1]}))
