"""The members of a message in a chat request."""

from schemas import MESSAGE
from statement import Area, each, valid
from world import CHAT, ask

area = Area("message")


def messages(**members):
    return ask(messages=[{"role": "user", "content": "Question"} | members])


# A member, a value, and the statement that it is taken.
TAKEN = [
    ("role is system", {"role": "system"}),
    ("role is user", {"role": "user"}),
    ("role is assistant", {"role": "assistant"}),
    ("role is tool", {"role": "tool", "tool_call_id": "call_1"}),
    ("role is developer (agreed in addition)", {"role": "developer"}),
    ("content is a string", {"content": "text"}),
    ("content is an empty string", {"content": ""}),
    ("content is an array of open objects", {"content": [{"type": "text", "text": "text", "other": 1}]}),
    ("content is null", {"role": "assistant", "content": None}),
    ("name is a string", {"name": "Ada"}),
    ("tool_call_id is a string", {"role": "tool", "tool_call_id": "call_1"}),
    ("tool_calls is an array of open objects", {"role": "assistant", "tool_calls": [{"id": "call_1", "other": {}}]}),
    ("any other member is taken", {"other": {"deep": [1]}}),
]

REFUSED = [
    ("role is none of the list", {"role": "robot"}, "role"),
    ("role is a number", {"role": 1}, "role"),
    ("role is null", {"role": None}, "role"),
    ("content is a number", {"content": 5}, "content"),
    ("content is an object", {"content": {"text": "text"}}, "content"),
    ("content is an array with a string", {"content": ["text"]}, "content"),
    ("name is a number", {"name": 5}, "name"),
    ("tool_call_id is a number", {"role": "tool", "tool_call_id": 5}, "tool_call_id"),
    ("tool_calls is an object", {"role": "assistant", "tool_calls": {}}, "tool_calls"),
    ("tool_calls is an array with a string", {"role": "assistant", "tool_calls": ["call"]}, "tool_calls"),
]

for text, members in TAKEN:
    area.says(f"taken: {text}")(lambda world, members=members: world.takes(CHAT, messages(**members)))

for text, members, member in REFUSED:
    area.says(f"refused, and the member named: {text}")(
        lambda world, members=members, member=member: world.refuses(CHAT, messages(**members), f"messages[0].{member}")
    )


@area.says("refused: role is missing")
def _(world):
    world.refuses(CHAT, ask(messages=[{"content": "Question"}]), "messages[0].role")


@area.says("refused: content is missing")
def _(world):
    for role in ("user", "system", "tool", "assistant"):
        world.refuses(CHAT, ask(messages=[{"role": role}]), "messages[0].content")


@area.says("taken: content is missing on an assistant's message with tool_calls or function_call (agreed in addition)")
def _(world):
    call = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    for member, value in (("tool_calls", [call]), ("function_call", {"name": "look_up", "arguments": "{}"})):
        question = ask()["messages"]
        world.takes(CHAT, ask(messages=[*question, {"role": "assistant", member: value}]))


@area.says("refused: a message that is no object")
def _(world):
    for message in ("text", 1, None, []):
        world.refuses(CHAT, ask(messages=[message]), "messages[0]")


@area.says("the message of an answer has the same shape")
def _(world):
    answer = world.takes(CHAT, ask())
    each(answer["choices"], lambda choice: valid(choice["message"], MESSAGE))


@area.says("the message of an answer with tool calls has the same shape")
def _(world):
    answer = world.takes(CHAT, ask(stand_in={"tool_call": True}))
    each(answer["choices"], lambda choice: valid(choice["message"], MESSAGE))
    each(answer["choices"][0]["message"]["tool_calls"], lambda call: valid(call, {"type": "object"}))
