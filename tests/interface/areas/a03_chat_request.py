"""The members of a chat request: types, ranges, defaults."""

from statement import Area, equal, holds
from world import CHAT, ask, without

area = Area("chat-request")

OBJECTS = [{"type": "function", "function": {"name": "look_up"}, "other": 1}]

# A member: values that are taken, and values that are refused.
MEMBERS = {
    "model: a string": ("model", ["demo-small"], [1, True, [], {}]),
    "messages: an array of at least one message": ("messages", [ask()["messages"]], [[], None, "text", {}, 1]),
    "temperature: a number from 0": ("temperature", [0, 0.5, 1, 100], [-1, -0.001, "1", True, []]),
    "max_tokens: an integer from 1": ("max_tokens", [1, 2.0, 1_000_000], [0, -1, 1.5, "1", True]),
    "max_completion_tokens: an integer from 1": ("max_completion_tokens", [1, 2.0, 1_000_000], [0, -1, 1.5, "1", True]),
    "stream: a boolean": ("stream", [False], ["true", 1, 0, [], {}]),
    "cache: a boolean": ("cache", [True, False], ["false", 1, 0, [], {}]),
    "tools: an array of open objects": ("tools", [OBJECTS, []], [{}, "look_up", ["look_up"], [1], 1]),
    "tool_choice: a string or an open object": (
        "tool_choice",
        ["auto", "none", {"type": "function", "other": 1}],
        [1, True, []],
    ),
    "plugins: an array of open objects": ("plugins", [[], [{"id": "web", "other": 1}]], [{}, "web", ["web"], 1]),
    "modalities: an array of strings": ("modalities", [["text"], []], [{}, "text", [1], [{}], 1]),
    "image_config: an open object": ("image_config", [{}, {"aspect_ratio": "1:1"}], [[], "1:1", 1, True]),
    "reasoning: an open object": ("reasoning", [{}, {"effort": "low"}], [[], "low", 1, True]),
}

for text, (member, good, bad) in MEMBERS.items():

    @area.says(f"{text}: taken")
    def _(world, member=member, good=good):
        for value in good:
            beside = {"tools": OBJECTS} if member == "tool_choice" else {}
            world.takes(CHAT, ask(**beside, **{member: value}))

    @area.says(f"{text}: any other value is refused, and the member named")
    def _(world, member=member, bad=bad):
        for value in bad:
            world.refuses(CHAT, ask(**{member: value}), member)


@area.says("messages is required")
def _(world):
    world.refuses(CHAT, without(ask(), "messages"), "messages")


@area.says("a body of messages alone is enough")
def _(world):
    world.takes(CHAT, {"messages": ask()["messages"]})


@area.says("model names one of the models that are listed; another is refused")
def _(world):
    for model in ("demo-none", "", "DEMO-SMALL"):
        equal(world.refuses(CHAT, ask(model=model), "model")["code"], "model_not_supported")


@area.says("stream is false by default")
def _(world):
    equal(world.post(CHAT, ask()).is_status(200).media_type(), "application/json")


@area.says("cache is true by default and with true")
def _(world):
    for members in ({}, {"cache": True}):
        body = ask(**members)
        world.takes(CHAT, body)
        equal(world.takes(CHAT, body)["x_svc"]["cache_hit"], True)


@area.says("any other member is taken and reaches the model provider")
def _(world):
    body = ask(other={"deep": [1]})
    world.takes(CHAT, body)
    (call,) = world.provider_calls(body["messages"][0]["content"])
    equal(call["other"], {"deep": [1]})


@area.says("what the request says about the completion reaches the model provider")
def _(world):
    members = {"temperature": 0.5, "max_tokens": 5, "tools": OBJECTS, "tool_choice": "auto", "modalities": ["text"]}
    members |= {"plugins": [{"id": "web"}], "image_config": {"aspect_ratio": "1:1"}, "reasoning": {"effort": "low"}}
    body = ask(**members)
    world.takes(CHAT, body)
    (call,) = world.provider_calls(body["messages"][0]["content"])
    equal({name: call.get(name) for name in members}, members)


@area.says("max_tokens and max_completion_tokens bound the answer")
def _(world):
    for member in ("max_tokens", "max_completion_tokens"):
        usage = world.takes(CHAT, ask(**{member: 3}))["usage"]
        holds(usage["completion_tokens"] <= 3, f"at most 3 tokens with {member}", usage)


@area.says("a body that is no JSON object is refused")
def _(world):
    headers = {"Content-Type": "application/json"}
    for body in ("", "{", "[]", '"text"', "null", "1", '{"messages": [}'):
        world.post(CHAT, body, headers=headers).is_status(400)
