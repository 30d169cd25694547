"""Credentials: keys made by people, and where a credential is sent."""

import re

from gateway import used
from person import Client
from statement import Area, equal, holds
from world import CHAT, MODELS, ask

area = Area("credentials")


def signed_in(world):
    person = world.new_person("5")
    person.sign_in()
    return person


def made(person, **fields):
    """The page after a key was made, and the secrets on it."""
    _, page = person.open("/keys/create")
    answer = person.submit(page, "/keys/create", **({"name": "program", "ends": "never", "may": "models"} | fields))
    if answer.status == 303:
        _, answer = person.open(answer.field("location"))
    answer.is_status(200)
    return answer, [used(secret) for secret in dict.fromkeys(re.findall(r"sk-svc-[A-Za-z0-9_-]{20,}", answer.text()))]


@area.says("a person who is signed in makes a key in the dashboard, and it works")
def _(world):
    _, (key,) = made(signed_in(world))
    world.get(MODELS, key).is_status(200)


@area.says("a key is sk-svc- and a secret")
def _(world):
    _, (key,) = made(signed_in(world))
    holds(len(key) > len("sk-svc-") + 20, "a secret that is not guessed", len(key))


@area.says("the complete key is shown once, when it is made")
def _(world):
    person = signed_in(world)
    _, (key,) = made(person)
    for path in ("/keys", "/keys/create", "/"):
        holds(key not in person.open(path)[1].text(), f"no key at {path}", path)


@area.says("two keys are never the same")
def _(world):
    person = signed_in(world)
    keys = [made(person, name=f"program {number}")[1][0] for number in range(2)]
    holds(keys[0] != keys[1], "another key", None)


@area.says("a person revokes a key in the dashboard, and it is refused from then on")
def _(world):
    person = signed_in(world)
    _, (key,) = made(person)
    world.get(MODELS, key).is_status(200)
    _, page = person.open("/keys")
    path = re.search(r'"(/keys/[^"/]+/revoke)"', page.text())[1]
    _, page = person.open(path)
    person.submit(page, path).is_status(303)
    world.get(MODELS, key).is_status(401)


@area.says("the dashboard's keys are for people who are signed in")
def _(world):
    answer = world.get("/keys").is_status(303)
    holds("/sign-in" in answer.field("location"), "the way to sign in", answer.field("location"))


@area.says("a key makes no keys: the dashboard does not take it")
def _(world):
    world.get("/keys", "owner").is_status(303)


@area.says("a credential is sent as Authorization: Bearer, whose scheme has no case")
def _(world):
    for scheme in ("Bearer", "bearer", "BEARER"):
        world.get(MODELS, None, {"Authorization": f"{scheme} {world.owner_key}"}).is_status(200)


@area.says("any other scheme, or none, is refused")
def _(world):
    for value in (world.owner_key, f"Basic {world.owner_key}", f"Token {world.owner_key}", "Bearer", "Bearer "):
        world.get(MODELS, None, {"Authorization": value}).is_status(400, 401)


@area.says("a key in the URL is no credential")
def _(world):
    for name in ("api_key", "key", "access_token", "token", "authorization"):
        world.get(f"{MODELS}?{name}={world.owner_key}").is_status(401)


@area.says("a key in the body is no credential")
def _(world):
    world.post(CHAT, ask(api_key=world.owner_key, access_token=world.owner_key), None).is_status(401)


@area.says("an answer never repeats a key")
def _(world):
    requests = ((MODELS, "", 200), (MODELS, "x", 401), ("/v1/none", "", 404))
    for path, added, status in requests:
        answer = world.get(path, world.owner_key + added).is_status(status)
        holds(world.owner_key not in answer.text(), "no key", answer.status)


@area.says("a changed key is refused")
def _(world):
    key = world.owner_key
    for wrong in (key[:-1], key + "A", key[:-1] + ("A" if key[-1] != "A" else "B"), key.upper(), "sk-svc-"):
        world.get(MODELS, wrong).is_status(401)


@area.says("an access token is opaque: it is no JSON Web Token")
def _(world):
    token = world.token(world.api, "api:models")
    holds(token.count(".") != 2, "a token without three parts", None)


@area.says("the key set is empty, since tokens are opaque")
def _(world):
    equal(world.get("/.well-known/jwks.json").is_status(200).json(), {"keys": []})


@area.says("two authorizations never give the same token")
def _(world):
    tokens = {Client(world, world.api, "api:models").token(world.person) for _ in range(2)}
    equal(len(tokens), 2)
