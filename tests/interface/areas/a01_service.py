"""What the service does."""

from statement import Area, equal, holds, one_of
from world import CHAT, MODELS, MPP, ONBOARDING, PRODUCT, TEXT, X402, ask, prompt, without

area = Area("service")


@area.says("an account lists the models it can use and creates chat and text completions with one of them")
def _(world):
    model = world.get(MODELS, "owner").is_status(200).json()["data"][0]["id"]
    equal(world.takes(CHAT, ask(model=model))["model"], model)
    equal(world.takes(TEXT, prompt(model=model))["model"], model)


@area.says("each completion is paid with credits of the account")
def _(world):
    key = world.key()
    before = world.balance(key)
    used = world.post(CHAT, ask(), key).is_status(200).json()["x_svc"]["credits_used"]
    holds(used > 0, "credits used", used)
    equal(round(before - world.balance(key), 6), round(used, 6))


@area.says(
    "caching is on unless the request turns it off: an equal request is answered without another call to the model provider"
)
def _(world):
    body = ask()
    world.takes(CHAT, body)
    equal(world.takes(CHAT, body)["x_svc"]["cache_hit"], True)
    equal(len(world.provider_calls(body["messages"][0]["content"])), 1)


@area.says("a request with cache false is answered by the model provider each time")
def _(world):
    body = ask(cache=False)
    for _ in range(2):
        equal(world.takes(CHAT, body)["x_svc"]["cache_hit"], False)
    equal(len(world.provider_calls(body["messages"][0]["content"])), 2)


@area.says("one product is for sale: a monthly plan at 199 USD")
def _(world):
    product = world.get(PRODUCT).is_status(200).json()
    equal((product["price_usd"], product["billing_interval"]), (199, "month"))


@area.says("the plan is sold by UCP, by MPP and by x402")
def _(world):
    world.post("/ucp/v1/checkout-sessions", {}).is_status(201)
    for path in (MPP, X402):
        world.post(path, {}).is_status(402)


@area.says("onboarding is public and links to sign-up, keys, sandbox and the free Android tier")
def _(world):
    found = world.get(ONBOARDING).is_status(200).json()
    for link in (found["signup_url"], found["api_keys"]["dashboard_url"], world.base + found["sandbox"]["url"]):
        one_of(world.get(link).status, (200, 303))
    equal(found["free_tier"]["endpoint"], f"{world.base}/mcp/android")


@area.says("access takes an API key or a token bound to the resource")
def _(world):
    for credential in (world.owner_key, world.token(world.api, "api:models")):
        world.get(MODELS, credential).is_status(200)
    world.get(MODELS).is_status(401)


@area.says("the API refuses a token of another resource")
def _(world):
    world.get(MODELS, world.token(f"{world.base}/mcp", "mcp:chat")).is_status(401)


@area.says("two MCP resources stand beside the API and take tokens of their own")
def _(world):
    for path in ("/mcp", "/mcp/android"):
        found = world.get(f"/.well-known/oauth-protected-resource{path}").is_status(200).json()
        equal(found["resource"], world.base + path)
        world.post(path, {}, world.owner_key).is_status(401)


@area.says("the root URL serves the discovery documents as the base URL does")
def _(world):
    for path in ("/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource"):
        # The metadata of a resource names the resource at the URL that was asked.
        answers = [world.get(url + path).is_status(200).json() for url in (world.root, world.base)]
        equal(*[without(answer, "resource") for answer in answers])


@area.says("identifiers carry the service's short word: x_svc, X-Svc-Authorization, sk-svc-, svc-pro")
def _(world):
    holds("x_svc" in world.takes(CHAT, ask()), "x_svc", None)
    holds(world.owner_key.startswith("sk-svc-"), "a key with sk-svc-", world.owner_key[:7])
    headers = {"Authorization": "Payment e30", "X-Svc-Authorization": f"Bearer {world.owner_key}"}
    one_of(world.post(MPP, {}, None, headers).status, (400, 402))
