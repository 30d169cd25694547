"""States of a checkout session and of the purchases."""

import time

from purchase import by_mpp, by_ucp, by_x402
from schemas import CHECKOUT_SESSION
from statement import Area, equal, one_of, valid
from world import CHECKOUT, MPP, X402

area = Area("states")

# Until PayPal's notification is processed, on a busy machine: longer than the minute of the limit that the questions before it may use up.
COMPLETED_SECS = 90


@area.says("a checkout session is incomplete until it is finished")
def _(world):
    url = world.post(CHECKOUT, {}).is_status(201).field("location")
    for _ in range(2):
        equal(valid(world.get(url, "owner").json(), CHECKOUT_SESSION)["status"], "incomplete")


@area.says("it is completed when its owner has approved the payment and the payment is verified")
def _(world):
    person = world.new_person(rate_class="free")
    key = world.key_of(person.account)
    url = by_ucp(world, person, key)
    until = time.monotonic() + COMPLETED_SECS
    status = None
    while status != "completed" and time.monotonic() < until:
        # More often than the class of the account allows, on a machine where it takes longer.
        answer = world.get(url, key).is_status(200, 429)
        if answer.status == 200:
            status = valid(answer.json(), CHECKOUT_SESSION)["status"]
    equal(status, "completed")


@area.says("status is incomplete or completed, and nothing else")
def _(world):
    for _ in range(3):
        one_of(world.post(CHECKOUT, {}).json()["status"], ("incomplete", "completed"))


@area.says("a new checkout of an account that has the plan is completed, or is refused")
def _(world):
    key = world.key(rate_class="free")
    by_mpp(world, key).is_status(200)
    answer = world.post(CHECKOUT, {}, key)
    one_of((answer.status, answer.json().get("status")), ((201, "completed"), (409, None)))


@area.says("MPP: 402 first, 402 while the payment is not verified, 200 afterwards")
def _(world):
    key = world.key(rate_class="free")
    equal([world.post(MPP, None, key).status for _ in range(2)], [402, 402])
    by_mpp(world, key).is_status(200)


@area.says("x402: 402 without a payment, 200 with a settled one")
def _(world):
    key = world.key(rate_class="free")
    world.post(X402, None, key).is_status(402)
    equal(by_x402(world, key).status_code, 200)


@area.says("an active plan answers already_active true on every payment route, whichever it was bought by")
def _(world):
    for buy in (by_mpp, by_x402):
        key = world.key(rate_class="free")
        buy(world, key)
        for path in (MPP, X402):
            equal(world.post(path, None, key).is_status(200).json()["already_active"], True)


area.cannot_see(
    "the plan of a period that has ended is over",
    "30 days would have to pass, and the program has no control for its clock; tests/e2e moves it in its own process",
)
