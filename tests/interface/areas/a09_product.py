"""The product that is for sale."""

from schemas import PRODUCT as SCHEMA
from statement import Area, equal, holds, valid
from wire import send
from world import CHECKOUT, MPP, PRODUCT, X402

area = Area("product")


def product(world):
    return world.get(PRODUCT).is_status(200).json()


@area.says("the document is public JSON")
def _(world):
    answer = world.get(PRODUCT).is_status(200)
    equal(answer.media_type(), "application/json")


@area.says("the same document is there with a credential")
def _(world):
    equal(world.get(PRODUCT, "owner").is_status(200).json(), product(world))


@area.says("required members and their types")
def _(world):
    valid(product(world), SCHEMA)


for member, value in {"id": "svc-pro-monthly", "price_usd": 199, "billing_interval": "month"}.items():

    @area.says(f"{member} is {value}")
    def _(world, member=member, value=value):
        equal(product(world)[member], value)


for member, value in {
    "included_device_slots": 3,
    "computer_use_tasks_per_month": 500,
    "features": ["More requests"],
}.items():

    @area.says(f"{member} is what the operator set")
    def _(world, member=member, value=value):
        equal(product(world)[member], value)


@area.says("purchase maps names to URIs for UCP, MPP, x402 and PayPal")
def _(world):
    purchase = product(world)["purchase"]
    for path in (CHECKOUT, MPP, X402):
        holds(world.base + path in purchase.values(), f"{world.base}{path}", purchase)
    equal(len(purchase), 4)


@area.says("every URI of purchase is below the base URL (agreed for PayPal too)")
def _(world):
    for url in product(world)["purchase"].values():
        holds(url.startswith(world.base), f"a URL below {world.base}", url)


@area.says("every URI of purchase is answered")
def _(world):
    for name, url in product(world)["purchase"].items():
        answer = send("GET" if name == "paypal" else "POST", url, world.bearer("owner"))
        holds(answer.status in (200, 201, 303, 402), f"{name} at {url}", answer.status)


@area.says("a path below commerce that is none: 404 in the envelope of errors")
def _(world):
    holds("message" in world.get("/commerce/products/none").is_status(404).json()["error"], "a message", None)


@area.says("another method: 405, in the envelope of errors")
def _(world):
    answer = world.post(PRODUCT, {}, None).is_status(405)
    holds("GET" in answer.field("allow"), "GET in Allow", answer.field("allow"))
    holds("message" in answer.json()["error"], "a message", None)
