"""Revocation of tokens."""

from person import Client
from statement import Area, equal, holds
from wire import form, send
from world import MODELS

area = Area("revocation")


def revoke(world, client=None, **fields):
    headers, body = form(**fields)
    return send("POST", f"{world.base}/oauth/revoke", headers, body)


def new_token(world):
    return Client(world, world.api, "api:models").token(world.person)


@area.says("a revoked token is refused from then on")
def _(world):
    token = new_token(world)
    world.get(MODELS, token).is_status(200)
    revoke(world, token=token, token_type_hint="access_token").is_status(200)
    world.get(MODELS, token).is_status(401)


@area.says("a second revocation is answered with 200 too")
def _(world):
    token = new_token(world)
    for _ in range(2):
        revoke(world, token=token, token_type_hint="access_token").is_status(200)


@area.says("an unknown token is answered with 200")
def _(world):
    for token in ("none", "svc_at_" + "A" * 40, "sk-svc-none", "ü"):
        revoke(world, token=token, token_type_hint="access_token").is_status(200)


@area.says("token_type_hint may be left out or be another one")
def _(world):
    for hint in ({}, {"token_type_hint": "refresh_token"}, {"token_type_hint": "other"}):
        token = new_token(world)
        revoke(world, token=token, **hint).is_status(200)
        world.get(MODELS, token).is_status(401)


@area.says("token is required")
def _(world):
    equal(revoke(world, token_type_hint="access_token").is_status(400).json()["error"], "invalid_request")


@area.says("the body is a form: JSON is refused, and the token stays")
def _(world):
    token = new_token(world)
    world.post("/oauth/revoke", {"token": token}, None).is_status(400, 415)
    world.get(MODELS, token).is_status(200)


@area.says("one token is revoked, and others of the same person stay")
def _(world):
    first, second = new_token(world), new_token(world)
    revoke(world, token=first, token_type_hint="access_token").is_status(200)
    world.get(MODELS, second).is_status(200)


@area.says("the answer has no body to look at")
def _(world):
    holds(revoke(world, token="none").is_status(200).body in (b"", b"{}"), "nothing", None)
