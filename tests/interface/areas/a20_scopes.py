"""Scopes: what each of them grants, and what is refused without it."""

from person import Client
from schemas import ERROR
from statement import Area, equal, holds, valid
from wire import challenge
from world import CHAT, SECURED, ask

area = Area("scopes")

API_SCOPES = ("api:models", "api:chat", "api:completions", "commerce:subscribe")

for scope in API_SCOPES:
    for name, (_, _, needed) in SECURED.items():
        if scope == needed:
            continue

        @area.says(f"{name} with {scope} alone: 403 and a challenge that names {needed}")
        def _(world, name=name, scope=scope, needed=needed):
            answer = world.call(name, world.token(world.api, scope)).is_status(403)
            valid(answer.json(), ERROR)
            scheme, parameters = challenge(answer.field("www-authenticate"))
            equal((scheme, parameters.get("error")), ("Bearer", "insufficient_scope"))
            holds(needed in parameters.get("scope", "").split(), needed, parameters)


@area.says("a token with several scopes has each of them")
def _(world):
    token = world.token(world.api, *API_SCOPES)
    for name in SECURED:
        world.admits(name, token)


@area.says("a key without the permission of an operation: 403")
def _(world):
    key = world.key_of(world.owner, "--scopes", "api:models")
    for name, (_, _, needed) in SECURED.items():
        if needed == "api:models":
            world.admits(name, key)
        else:
            world.call(name, key).is_status(403)


@area.says("api:models shows models and the credits of the account")
def _(world):
    found = world.get("/v1/models", world.token(world.api, "api:models")).is_status(200).json()
    equal(found["x_svc"]["owner"], world.person.account)


@area.says("an account without credits gets no completion: 402")
def _(world):
    key = world.key(credits=None)
    valid(world.post(CHAT, ask(), key).is_status(402).json(), ERROR)


@area.says("the owner is that of the token, whatever account the client names")
def _(world):
    other = world.owner
    token = world.token(world.api, "api:chat")
    body = ask(user=other, owner=other, account=other, account_id=other, resolved_owner=other)
    headers = {"X-Svc-Owner": other, "X-Owner": other, "OpenAI-Organization": other, "X-Account-Id": other}
    answer = world.post(f"{CHAT}?owner={other}&account={other}", body, token, headers).is_status(200)
    equal(answer.json()["x_svc"]["owner"], world.person.account)


for path, scopes in (("/mcp", ("mcp:chat", "mcp:projects", "mcp:devices")), ("/mcp/android", ("mcp:android",))):

    @area.says(f"the scopes of {path} are {', '.join(scopes)}")
    def _(world, path=path, scopes=scopes):
        found = world.get(f"/.well-known/oauth-protected-resource{path}").json()["scopes_supported"]
        equal(sorted(found), sorted(scopes))

    for scope in scopes:

        @area.says(f"{path} takes a token with {scope}")
        def _(world, path=path, scope=scope):
            world.pings(path, world.token(world.base + path, scope))


@area.says("mcp:android needs no credits: the tier is free")
def _(world):
    resource = f"{world.base}/mcp/android"
    token = Client(world, resource, "mcp:android").token(world.new_person(rate_class="free"))
    world.pings("/mcp/android", token)


@area.says("the server lists every scope of the interface")
def _(world):
    listed = world.get("/.well-known/oauth-authorization-server").json()["scopes_supported"]
    mcp = ("mcp:android", "mcp:chat", "mcp:projects", "mcp:devices")
    equal([scope for scope in (*API_SCOPES, *mcp) if scope not in listed], [])
