"""What a client does after a refusal: what the refusal has to say for it."""

from person import Client
from statement import Area, equal, holds
from wire import challenge, form, send
from world import CHAT, MODELS, SECURED, ask

area = Area("recovery")

for name in SECURED:

    @area.says(f"{name}: a 401 leads to the metadata, from there to the server, from there to a token that works")
    def _(world, name=name):
        answer = world.call(name, "svc_at_none").is_status(401)
        scheme, parameters = challenge(answer.field("www-authenticate"))
        equal(scheme, "Bearer")
        resource = send("GET", parameters["resource_metadata"]).is_status(200).json()
        (issuer,) = resource["authorization_servers"]
        server = send("GET", f"{issuer}/.well-known/oauth-authorization-server").is_status(200).json()
        equal(server["issuer"], issuer)
        holds(server["authorization_endpoint"].startswith(issuer), "an endpoint of the issuer", server)
        # The resource that the metadata names is one that this operation takes tokens of.
        needed = SECURED[name][2]
        world.admits(name, world.token(resource["resource"], needed))


@area.says("a wrong credential is named as such: invalid_token")
def _(world):
    for credential in ("svc_at_none", "sk-svc-none"):
        answer = world.get(MODELS, credential).is_status(401)
        equal(challenge(answer.field("www-authenticate"))[1].get("error"), "invalid_token")


@area.says("a missing credential is no error of a token: the challenge has no error")
def _(world):
    holds("error" not in challenge(world.get(MODELS).field("www-authenticate"))[1], "no error", None)


@area.says("a revoked token gets 401, and a new authorization works")
def _(world):
    token = Client(world, world.api, "api:models").token(world.person)
    headers, body = form(token=token)
    send("POST", f"{world.base}/oauth/revoke", headers, body).is_status(200)
    world.get(MODELS, token).is_status(401)
    world.get(MODELS, Client(world, world.api, "api:models").token(world.person)).is_status(200)


@area.says("insufficient_scope: the same resource, authorized again with the scope of the challenge, works")
def _(world):
    answer = world.post(CHAT, ask(), world.token(world.api, "api:models")).is_status(403)
    parameters = challenge(answer.field("www-authenticate"))[1]
    equal(parameters["error"], "insufficient_scope")
    scopes = parameters["scope"].split()
    world.post(CHAT, ask(), world.token(world.api, *scopes)).is_status(200)


@area.says("approval costs no credits, however often it is asked for")
def _(world):
    token = world.token(world.api, "api:models")
    before = world.balance(token)
    for _ in range(2):
        Client(world, world.api, "api:models").token(world.person)
    equal(world.balance(token), before)
