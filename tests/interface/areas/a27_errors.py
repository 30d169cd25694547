"""Errors: the envelope, the statuses, and the header fields of a 429."""

import functools
import re

from gateway import used
from schemas import ERROR
from statement import Area, equal, holds, valid
from world import CHAT, CHECKOUT, MODELS, MPP, TEXT, X402, ask, prompt

area = Area("errors")

JSON = {"Content-Type": "application/json"}


def mcp_token(world):
    return world.token(f"{world.base}/mcp", "mcp:chat")


# What a request is, how it is sent, the status, and the type and code of the error.
REFUSED = [
    ("an invalid body", lambda w: w.post(CHAT, {"messages": []}), 400, "invalid_request_error", None),
    ("a body that is no JSON", lambda w: w.post(CHAT, "{", headers=JSON), 400, "invalid_request_error", "invalid_json"),
    (
        "an unknown model",
        lambda w: w.post(CHAT, ask(model="none")),
        400,
        "invalid_request_error",
        "model_not_supported",
    ),
    ("an invalid text request", lambda w: w.post(TEXT, {"prompt": 1}), 400, "invalid_request_error", None),
    ("an invalid payment request", lambda w: w.post(X402, {"other": 1}), 400, "invalid_request_error", None),
    ("a missing credential", lambda w: w.get(MODELS), 401, "authentication_error", "missing_credential"),
    ("an invalid key", lambda w: w.get(MODELS, "sk-svc-none"), 401, "authentication_error", None),
    ("an invalid token", lambda w: w.get(MODELS, "svc_at_none"), 401, "authentication_error", None),
    (
        "a token of another resource",
        lambda w: w.get(MODELS, mcp_token(w)),
        401,
        "authentication_error",
        "wrong_resource",
    ),
    (
        "too few credits",
        lambda w: w.post(CHAT, ask(), w.key(None)),
        402,
        "insufficient_credits_error",
        "insufficient_credits",
    ),
    (
        "too few credits for a text",
        lambda w: w.post(TEXT, prompt(), w.key(None)),
        402,
        "insufficient_credits_error",
        None,
    ),
    ("a missing scope", lambda w: w.post(CHAT, ask(), w.token(w.api, "api:models")), 403, None, "insufficient_scope"),
    ("an unknown path", lambda w: w.get("/v1/none", "owner"), 404, "invalid_request_error", "not_found"),
    ("an unknown product", lambda w: w.post(CHECKOUT, {"product_id": "none"}), 404, None, None),
    ("another method", lambda w: w.post(MODELS, {}), 405, None, None),
    ("another media type", lambda w: w.post(CHAT, "{}", headers={"Content-Type": "text/plain"}), 415, None, None),
    ("a quota that is used up", lambda w: used_up(w), 429, None, None),
    ("a failing provider", lambda w: w.post(CHAT, ask(cache=False, stand_in={"status": 500})), 502, None, None),
    ("checkout without PayPal", lambda w: w.degraded.post(CHECKOUT, {}), 503, None, None),
    ("MPP without PayPal", lambda w: w.degraded.post(MPP, {}), 503, None, None),
    ("x402 without its facilitator", lambda w: w.degraded.post(X402, {}), 503, None, None),
]


@functools.cache
def used_up(world):
    key = world.key(rate_class="probe")
    for _ in range(10):
        answer = world.get(MODELS, key)
        if answer.status == 429:
            break
    return answer


for text, request, status, kind, code in REFUSED:

    @area.says(f"{text}: {status} and the envelope, as JSON")
    def _(world, request=request, status=status, kind=kind, code=code):
        answer = request(world).is_status(status)
        equal(answer.media_type(), "application/json")
        error = valid(answer.json(), ERROR)["error"]
        if kind:
            equal(error["type"], kind)
        if code:
            equal(error["code"], code)
        holds(len(error["message"]) >= 15, "a message that helps", error)


@area.says("param names the member of the request that is wrong, and is null where none is")
def _(world):
    equal(world.refuses(CHAT, ask(temperature=-1))["param"], "temperature")
    equal(world.get(MODELS).json()["error"]["param"], None)


@area.says("error.type is a stable category: the same for the same mistake")
def _(world):
    answers = [world.post(path, body) for path, body in ((CHAT, ask(max_tokens=0)), (TEXT, prompt(max_tokens=0)))]
    kinds = {answer.json()["error"]["type"] for answer in answers}
    equal(kinds, {"invalid_request_error"})


@area.says("a revoked key gets 401")
def _(world):
    account = world.account("1")
    made = world.command("key", "create", "--account", account, "--name", "revoked")

    key = used(made["secret"])
    world.get(MODELS, key).is_status(200)
    world.command("key", "revoke", "--key", made["id"])
    world.get(MODELS, key).is_status(401)


INTEGERS = {"ratelimit-limit": 1, "ratelimit-remaining": 0, "ratelimit-reset": 0, "retry-after": 0}

for name, least in INTEGERS.items():

    @area.says(f"a 429 carries {name}, an integer from {least}")
    def _(world, name=name, least=least):
        value = used_up(world).is_status(429).field(name)
        holds(value.isdecimal() and int(value) >= least, f"an integer from {least}", value)


@area.says("a 429 carries RateLimit-Policy: a named quota, requests and a window in seconds")
def _(world):
    value = used_up(world).is_status(429).field("ratelimit-policy")
    holds(re.search(r'"[a-z_-]+";q=3;w=60', value), '"NAME";q=3;w=60', value)


@area.says("a 429 carries RateLimit: what remains of the named quota, and seconds until it refills")
def _(world):
    value = used_up(world).is_status(429).field("ratelimit")
    holds(re.search(r'"[a-z_-]+";r=0;t=\d+', value), '"NAME";r=0;t=SECONDS', value)


@area.says("RateLimit and RateLimit-Policy name the same quota")
def _(world):
    names = [re.findall(r'"([^"]+)"', used_up(world).field(name)) for name in ("ratelimit", "ratelimit-policy")]
    holds(set(names[0]) <= set(names[1]), "the name of a quota", names)


@area.says("Retry-After is long enough: not shorter than the quota needs for a request, not longer than its window")
def _(world):
    answer = used_up(world).is_status(429)
    holds(1 <= int(answer.field("retry-after")) <= 60, "1 to 60 seconds", answer.field("retry-after"))


area.cannot_see("500", "the program has no input that makes itself fail; a provider's failure is 502")
area.cannot_see(
    "insufficient_credits as the result of a premium MCP tool", "tools are those of the server behind the gateway"
)
