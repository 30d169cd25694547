"""Limits: ranges, prices, quotas."""

import re

from statement import Area, equal, holds
from wire import from_base64
from world import CHAT, CHECKOUT, MODELS, MPP, ONBOARDING, PRODUCT, TEXT, X402, ask, prompt

area = Area("limits")


@area.says("messages: one is taken, none is refused")
def _(world):
    world.takes(CHAT, ask())
    world.refuses(CHAT, ask(messages=[]), "messages")


for path, make, members in (
    (CHAT, ask, ("max_tokens", "max_completion_tokens")),
    (TEXT, prompt, ("max_tokens",)),
):

    @area.says(f"{path}: temperature is taken from 0")
    def _(world, path=path, make=make):
        world.takes(path, make(temperature=0))
        world.refuses(path, make(temperature=-0.01), "temperature")

    for member in members:

        @area.says(f"{path}: {member} is taken from 1")
        def _(world, path=path, make=make, member=member):
            world.takes(path, make(**{member: 1}))
            for value in (0, -1, 0.5):
                world.refuses(path, make(**{member: value}), member)


@area.says("Idempotency-Key of a checkout: 255 characters are taken, 256 are refused")
def _(world):
    for length, status in ((1, 201), (255, 201), (256, 400)):
        world.post(CHECKOUT, {}, headers={"Idempotency-Key": "z" * length}).is_status(status)


@area.says("idempotency_key of a payment: 1 to 255 characters")
def _(world):
    for path in (MPP, X402):
        for length, status in ((0, 400), (1, 402), (255, 402), (256, 400)):
            world.post(path, {"idempotency_key": "z" * length}).is_status(status)


@area.says("idempotency_key counts characters, not bytes")
def _(world):
    for path in (MPP, X402):
        world.post(path, {"idempotency_key": "é" * 255}).is_status(402)


@area.says("the plan is 199 USD each month on every route that says a price")
def _(world):
    equal(world.get(PRODUCT).json()["price_usd"], 199)
    equal([one["amount"] for one in world.post(CHECKOUT, {}).json()["totals"] if one["type"] == "total"], [19900])


@area.says("x402 takes exactly 199 USDC")
def _(world):
    ways = from_base64(world.post(X402, None).is_status(402).field("payment-required"))["accepts"]
    equal({way["amount"] for way in ways}, {"199000000"})


@area.says("the free Android tier has one device for an account")
def _(world):
    equal(world.get(ONBOARDING).json()["free_tier"]["included_devices"], 1)


@area.says("an account of another class has another quota")
def _(world):
    limits = {
        name: world.get(MODELS, world.key(rate_class=name)).field("ratelimit-limit")
        for name in ("pro", "free", "probe")
    }
    equal(limits, {"pro": "100000", "free": "300", "probe": "3"})


@area.says("requests without a credential have a quota of their own")
def _(world):
    equal(world.get(PRODUCT).field("ratelimit-limit"), "6000")


@area.says("the quota of one account is not used up by another")
def _(world):
    first, second = world.key(rate_class="probe"), world.key(rate_class="probe")
    for _ in range(5):
        last = world.get(MODELS, first)
    equal((last.status, world.get(MODELS, second).status), (429, 200))


@area.says("two keys of an account share its quota")
def _(world):
    account = world.account("1", "probe")
    statuses = [world.get(MODELS, world.key_of(account)).status for _ in range(4)]
    equal(statuses, [200, 200, 200, 429])


@area.says("RateLimit-Policy has a name, a quota and a window in every answer to an account")
def _(world):
    for path, answer in ((MODELS, world.get(MODELS, "owner")), (CHAT, world.post(CHAT, ask()))):
        value = answer.field("ratelimit-policy")
        holds(re.fullmatch(r'"[a-z_-]+";q=\d+;w=\d+', value.split(",")[0].strip()), f"a policy at {path}", value)


@area.says("RateLimit-Remaining counts down with each request")
def _(world):
    key = world.key(rate_class="probe")
    remaining = [world.get(MODELS, key).field("ratelimit-remaining") for _ in range(3)]
    equal(remaining, ["2", "1", "0"])
