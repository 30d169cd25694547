"""The bodies of paid and of unpaid purchases: the subscription, and the problem."""

import functools

from purchase import by_mpp, by_x402
from schemas import OBJECT, PROBLEM, PRODUCT, SUBSCRIPTION, URI
from statement import Area, equal, holds, valid
from world import MPP, PAYMENT_ROUTES, X402, without
from world import PRODUCT as PRODUCT_PATH

area = Area("payment-bodies")


@functools.cache
def bought(world, path):
    """The bodies of a purchase and of a repeat."""
    key = world.key(rate_class="free")
    answer = by_mpp(world, key) if path == MPP else by_x402(world, key)
    equal((answer.status if path == MPP else answer.status_code), 200)
    return answer.json(), world.post(path, None, key).is_status(200).json()


for path in PAYMENT_ROUTES:
    name = path.rsplit("/", 1)[1]

    @area.says(f"{name}: the body of a purchase has success true")
    def _(world, path=path):
        equal(valid(bought(world, path)[0], SUBSCRIPTION)["success"], True)

    # PayPal's notification can activate the plan before the retry of an MPP purchase arrives.
    @area.says(f"{name}: already_active is a boolean, and true for an account that has the plan")
    def _(world, path=path):
        first, second = (body["already_active"] for body in bought(world, path))
        holds(first is False or (first is True and path == MPP), "false for a purchase", first)
        equal(second, True)

    @area.says(f"{name}: product is the product document")
    def _(world, path=path):
        for body in bought(world, path):
            # The notes are for readers of the document who have not bought yet.
            equal(valid(body["product"], PRODUCT), without(world.get(PRODUCT_PATH).json(), "purchase_notes"))

    @area.says(f"{name}: subscription is an object")
    def _(world, path=path):
        for body in bought(world, path):
            valid(body["subscription"], OBJECT)

    @area.says(f"{name}: the body of a 402 is a problem: type a URI, title, status 402, detail")
    def _(world, path=path):
        problem = valid(world.post(path, None, world.key()).is_status(402).json(), PROBLEM)
        equal(problem["status"], 402)
        holds(problem["title"] and problem["detail"], "title and detail", problem)

    @area.says(f"{name}: type of the problem has no white space and is absolute")
    def _(world, path=path):
        valid(world.post(path, None, world.key()).is_status(402).json()["type"], URI)


@area.says("the media type of a problem is application/problem+json for MPP and application/json for x402")
def _(world):
    types = [world.post(path, None, world.key()).is_status(402).media_type() for path in (MPP, X402)]
    equal(types, ["application/problem+json", "application/json"])


@area.says("a wrong request is to be corrected, not paid: retry_action is fix_request (agreed in addition)")
def _(world):
    for path in PAYMENT_ROUTES:
        equal(world.post(path, {"other": 1}).is_status(400).json()["retry_action"], "fix_request")
