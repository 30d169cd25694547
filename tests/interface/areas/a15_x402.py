"""Buying by x402: the offer, the settlement, the period."""

import functools
from datetime import datetime

from purchase import by_x402
from schemas import ERROR, PROBLEM, SUBSCRIPTION
from statement import Area, equal, holds, valid
from wire import from_base64, send
from world import X402

area = Area("x402")

DAY_SECS = 86400


def required(world):
    answer = world.post(X402, None, world.key(rate_class="free")).is_status(402)
    return from_base64(answer.field("payment-required"))


@functools.cache
def paid(world):
    """A purchase: the key of its account and the answer."""
    key = world.key(rate_class="free")
    return key, by_x402(world, key)


@area.says("without a payment: 402 with a problem as application/json")
def _(world):
    answer = world.post(X402, None, world.key(rate_class="free")).is_status(402)
    equal(answer.media_type(), "application/json")
    equal(valid(answer.json(), PROBLEM)["status"], 402)


@area.says("PAYMENT-REQUIRED is JSON in base64 with at least one way to pay")
def _(world):
    holds(required(world)["accepts"], "a way to pay", required(world))


for name, expected in {"scheme": "exact", "network": "eip155:8453", "amount": "199000000"}.items():

    @area.says(f"the payment has {name} {expected}")
    def _(world, name=name, expected=expected):
        for way in required(world)["accepts"]:
            equal(way[name], expected)


@area.says("the currency is a token's contract")
def _(world):
    for way in required(world)["accepts"]:
        valid(way["asset"], {"type": "string", "pattern": "^0x[0-9a-fA-F]{40}$"})


@area.says(
    "the description of the API has the offer: intent charge, method evm, amount 199000000, currency the contract"
)
def _(world):
    operation = world.get("/openapi.json").json()["paths"][X402]["post"]
    (offer,) = operation["x-payment-info"]["offers"]
    expected = {
        "intent": "charge",
        "method": "evm",
        "amount": "199000000",
        "currency": required(world)["accepts"][0]["asset"],
    }
    equal({name: offer[name] for name in expected}, expected)


@area.says("a settled payment: 200 with the subscription")
def _(world):
    _, answer = paid(world)
    equal(answer.status_code, 200)
    equal(valid(answer.json(), SUBSCRIPTION)["success"], True)


@area.says("PAYMENT-RESPONSE is the settlement in base64")
def _(world):
    _, answer = paid(world)
    settlement = from_base64(answer.headers["PAYMENT-RESPONSE"])
    equal(settlement["success"], True)
    valid(settlement["transaction"], {"type": "string", "pattern": "^0x[0-9a-fA-F]{64}$"})


@area.says("the transfer moved exactly 199 USDC")
def _(world):
    _, answer = paid(world)
    transaction = from_base64(answer.headers["PAYMENT-RESPONSE"])["transaction"]
    listed = send("GET", f"{world.demo['facilitator_url']}/_control/transfers").json()["transfers"]
    equal([one["value"] for one in listed if one["transaction"] == transaction], ["199000000"])


@area.says("the payment grants 30 days")
def _(world):
    _, answer = paid(world)
    found = answer.json()["subscription"]
    start, end = (datetime.fromisoformat(found[f"current_period_{edge}"]) for edge in ("start", "end"))
    equal((end - start).total_seconds(), 30 * DAY_SECS)


@area.says("the plan belongs to the account of the credential, and to no other")
def _(world):
    key, _ = paid(world)
    equal(world.post(X402, None, key).is_status(200).json()["already_active"], True)
    world.post(X402, None, world.key(rate_class="free")).is_status(402)


@area.says("a payment that is no payment: 400 or 402, and no plan")
def _(world):
    key = world.key(rate_class="free")
    for value in ("e30=", "text", "", "eyJ4NDAyVmVyc2lvbiI6Mn0="):
        answer = world.post(X402, {}, key, {"PAYMENT-SIGNATURE": value})
        holds(answer.status in (400, 402), "400 or 402", f"{value}: {answer.status}")
    world.post(X402, None, key).is_status(402)


@area.says("a payment that the facilitator does not verify: 402 with PAYMENT-REQUIRED")
def _(world):
    world.facilitator(
        "fault", {"operation": "verify", "effect": {"refuse": ["invalid_exact_evm_payload_signature", 200]}, "times": 1}
    )
    answer = by_x402(world, world.key(rate_class="free"))
    equal(answer.status_code, 402)
    holds("PAYMENT-REQUIRED" in answer.headers, "PAYMENT-REQUIRED", sorted(answer.headers))
    valid(answer.json(), PROBLEM)


@area.says("the facilitator cannot be reached: 503 in the envelope of errors, and no challenge")
def _(world):
    answer = world.degraded.post(X402, None).is_status(503)
    valid(answer.json(), ERROR)
    equal(answer.headers.get("payment-required"), None)


@area.says("no credential: 401; without the scope: 403")
def _(world):
    valid(world.post(X402, None, None).is_status(401).json(), ERROR)
    valid(world.post(X402, None, world.token(world.api, "api:chat")).is_status(403).json(), ERROR)


@area.says("there is no merchant's wallet: 503 in the envelope of errors, and no challenge")
def _(world):
    answer = world.bare.post(X402, None).is_status(503)
    valid(answer.json(), ERROR)
    equal(answer.headers.get("payment-required"), None)
