"""Checkout sessions: creation, header fields, the session, and the errors."""

from schemas import CHECKOUT_SESSION, ERROR
from statement import Area, equal, holds, valid
from world import CHECKOUT

area = Area("checkout-sessions")


def created(world, **headers):
    return world.post(
        CHECKOUT, {}, headers={name.replace("_", "-"): value for name, value in headers.items()}
    ).is_status(201)


@area.says("the answer is 201 with a session of the required members")
def _(world):
    answer = created(world)
    equal(answer.media_type(), "application/json")
    valid(answer.json(), CHECKOUT_SESSION)


@area.says("status of a new session is incomplete")
def _(world):
    equal(created(world).json()["status"], "incomplete")


@area.says("continue_url is a page of this service for the owner of the account")
def _(world):
    url = created(world).json()["continue_url"]
    holds(url.startswith(world.base), f"a URL below {world.base}", url)
    holds(world.get(url).status in (200, 303), "a page, or the way to sign in", world.get(url).status)


@area.says("currency is USD")
def _(world):
    equal(created(world).json()["currency"], "USD")


@area.says("ucp.version is 2026-04-08, and ucp.capabilities an array of strings")
def _(world):
    ucp = created(world).json()["ucp"]
    equal(ucp["version"], "2026-04-08")
    holds(ucp["capabilities"], "at least one capability", ucp)


@area.says("the session sells the plan for 199 USD")
def _(world):
    session = created(world).json()
    equal([line["item"]["id"] for line in session["line_items"]], ["svc-pro-monthly"])
    equal([one["amount"] for one in session["totals"] if one["type"] == "total"], [19900])


@area.says("Location is the URI of the session, for the account that created it")
def _(world):
    answer = created(world)
    url = answer.field("location")
    holds(url.startswith(f"{world.base}{CHECKOUT}/"), f"a URL below {world.base}{CHECKOUT}", url)
    equal(world.get(url, "owner").is_status(200).json()["id"], answer.json()["id"])


@area.says("the resource at Location needs a credential, and another account does not see it")
def _(world):
    url = created(world).field("location")
    world.get(url).is_status(401)
    world.get(url, world.key()).is_status(404)


@area.says("UCP-Agent is optional, and a dictionary that names the platform's profile")
def _(world):
    created(world, UCP_Agent='profile="https://platform.example/.well-known/ucp"')
    created(world, UCP_Agent='profile="https://platform.example/.well-known/ucp";v=1, other=2')


@area.says("a UCP-Agent that is no dictionary is refused")
def _(world):
    for value in (",,", "profile=", '"text"', "Profile=1"):
        valid(world.post(CHECKOUT, {}, headers={"UCP-Agent": value}).is_status(400).json(), ERROR)


@area.says("Idempotency-Key is optional and has at most 255 characters")
def _(world):
    created(world, Idempotency_Key="k" * 255)
    error = world.post(CHECKOUT, {}, headers={"Idempotency-Key": "k" * 256}).is_status(400).json()
    equal(valid(error, ERROR)["error"]["param"], "Idempotency-Key")


@area.says("Idempotency-Key has visible ASCII characters and spaces (agreed)")
def _(world):
    first, second = (created(world, Idempotency_Key="interface two words").json()["id"] for _ in range(2))
    equal(second, first)
    for value in ("", "a\tb", "é"):
        valid(world.post(CHECKOUT, {}, headers={"Idempotency-Key": value}).is_status(400).json(), ERROR)


@area.says("a repeat under the same Idempotency-Key is the same session")
def _(world):
    first, second = (created(world, Idempotency_Key="interface-repeat").json()["id"] for _ in range(2))
    equal(second, first)


@area.says("another key, or none, is another session")
def _(world):
    ids = {
        created(world, Idempotency_Key="interface-a").json()["id"],
        created(world, Idempotency_Key="interface-b").json()["id"],
    }
    equal(len(ids | {created(world).json()["id"], created(world).json()["id"]}), 4)


@area.says("no credential: 401; without the scope: 403")
def _(world):
    world.post(CHECKOUT, {}, None).is_status(401)
    world.post(CHECKOUT, {}, world.token(world.api, "api:chat")).is_status(403)


@area.says("an unknown session: 404 in the envelope of errors")
def _(world):
    valid(world.get(f"{CHECKOUT}/checkout_{'0' * 32}", "owner").is_status(404).json(), ERROR)


@area.says("another product: 404 in the envelope of errors")
def _(world):
    valid(world.post(CHECKOUT, {"product_id": "svc-pro-yearly"}).is_status(404).json(), ERROR)


@area.says("PayPal unavailable: 503 in the envelope of errors, and no session")
def _(world):
    valid(world.degraded.post(CHECKOUT, {}).is_status(503).json(), ERROR)


@area.says("a discovery document is at /.well-known/ucp, for all")
def _(world):
    equal(world.get("/.well-known/ucp").is_status(200).json()["ucp"]["version"], "2026-04-08")


@area.says("checkout is not set up: 503 in the envelope of errors")
def _(world):
    valid(world.bare.post(CHECKOUT, {}).is_status(503).json(), ERROR)
