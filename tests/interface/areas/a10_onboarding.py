"""The onboarding document."""

from schemas import ONBOARDING as SCHEMA
from statement import Area, equal, holds, one_of, valid
from world import ONBOARDING

area = Area("onboarding")


def found(world):
    return world.get(ONBOARDING).is_status(200).json()


@area.says("the document is public JSON")
def _(world):
    equal(world.get(ONBOARDING).is_status(200).media_type(), "application/json")


@area.says("all its members are there, of their types, and no others")
def _(world):
    valid(found(world), SCHEMA)


for member in SCHEMA["required"]:

    @area.says(f"{member} is there and as described")
    def _(world, member=member):
        valid(found(world).get(member), SCHEMA["properties"][member])


@area.says("status is self_service")
def _(world):
    equal(found(world)["status"], "self_service")


@area.says("signup_url is a page that creates accounts")
def _(world):
    page = world.get(found(world)["signup_url"]).is_status(200)
    holds("<form" in page.text() and "text/html" in page.field("content-type"), "a page with a form", page.text())


@area.says("api_keys.dashboard_url is a page for people who are signed in, and documentation_url a page for all")
def _(world):
    keys = found(world)["api_keys"]
    one_of(world.get(keys["dashboard_url"]).status, (200, 303))
    world.get(keys["documentation_url"]).is_status(200)


@area.says("sandbox.url leads to the sandbox")
def _(world):
    one_of(world.get(world.base + found(world)["sandbox"]["url"]).status, (200, 303))


@area.says("the sandbox is there for a person who is signed in")
def _(world):
    holds(found(world)["sandbox"]["available"], "a sandbox", found(world)["sandbox"])
    world.person.cookie or world.person.sign_in()
    path, page = world.person.open(found(world)["sandbox"]["url"])
    equal((path, page.status), ("/sandbox", 200))


@area.says("free_tier: one device, no credits, at the Android resource")
def _(world):
    tier = found(world)["free_tier"]
    equal((tier["included_devices"], tier["credits_required"]), (1, False))
    equal(tier["endpoint"], f"{world.base}/mcp/android")


@area.says("free_tier.server_card and mcp_server_card are JSON documents")
def _(world):
    for url in (found(world)["free_tier"]["server_card"], found(world)["mcp_server_card"]):
        holds(isinstance(world.get(url).is_status(200).json(), dict), "an object", url)


@area.says("openapi_url is the description of the API, of version 1.0.0")
def _(world):
    equal(world.get(found(world)["openapi_url"]).is_status(200).json()["info"]["version"], "1.0.0")
