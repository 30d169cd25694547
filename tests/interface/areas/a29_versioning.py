"""Versions, deprecation and sunset."""

from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from statement import Area, equal, holds
from world import CHAT, CHECKOUT, OPERATIONS, TEXT, ask, prompt

area = Area("versioning")


@area.says("the major version is in the path: the API is below /v1, and not elsewhere")
def _(world):
    world.post(CHAT, ask()).is_status(200)
    for path in (CHAT.replace("/v1", "/v2"), CHAT.replace("/v1", ""), CHAT.replace("/v1", "/V1")):
        world.post(path, ask()).is_status(404)


@area.says("the version of the description is 1.0.0")
def _(world):
    equal(world.get("/openapi.json").json()["info"]["version"], "1.0.0")


for name in OPERATIONS:

    @area.says(f"{name} is not deprecated and has no sunset")
    def _(world, name=name):
        answer = world.admits(name, "owner")
        equal([field for field in ("deprecation", "sunset") if answer.headers.get(field)], [])


@area.says("the description marks no operation as deprecated")
def _(world):
    paths = world.get("/openapi.json").json()["paths"]
    equal(
        [
            path
            for path, item in paths.items()
            for one in item.values()
            if isinstance(one, dict) and one.get("deprecated")
        ],
        [],
    )


@area.says("ucp.version is 2026-04-08 in the session and in the discovery document")
def _(world):
    equal(world.post(CHECKOUT, {}).json()["ucp"]["version"], "2026-04-08")
    equal(world.get("/.well-known/ucp").json()["ucp"]["version"], "2026-04-08")


@area.says("a lifecycle policy is published for all")
def _(world):
    page = world.get("/docs/lifecycle").is_status(200)
    for word in ("Deprecation", "Sunset"):
        holds(word in page.text(), word, page.text())


@area.says("a deprecated operation carries Deprecation as RFC 9745 has it: a time that has passed, or will")
def _(world):
    value = world.degraded.post(TEXT, prompt()).is_status(200).field("deprecation")
    holds(value.startswith("@"), "@ and seconds", value)
    equal(datetime.fromtimestamp(int(value[1:]), timezone.utc), datetime(2026, 1, 1, tzinfo=timezone.utc))


@area.says("it carries Sunset as RFC 8594 has it: a date of HTTP")
def _(world):
    value = world.degraded.post(TEXT, prompt()).is_status(200).field("sunset")
    equal(parsedate_to_datetime(value), datetime(2036, 1, 1, tzinfo=timezone.utc))


@area.says("it links to the policy and to its successor")
def _(world):
    links = ", ".join(world.degraded.post(TEXT, prompt()).is_status(200).headers.get_all("link") or [])
    for relation in ("deprecation", "successor-version"):
        holds(f'rel="{relation}"' in links, f"a link with {relation}", links)


@area.says("the other operations of that gateway carry neither")
def _(world):
    answer = world.degraded.post(CHAT, ask()).is_status(200)
    equal([field for field in ("deprecation", "sunset") if answer.headers.get(field)], [])


@area.says("its description marks that operation, and no other, as deprecated")
def _(world):
    paths = world.degraded.get("/openapi.json").json()["paths"]
    equal(
        [
            path
            for path, item in paths.items()
            for one in item.values()
            if isinstance(one, dict) and one.get("deprecated")
        ],
        [TEXT],
    )
