"""The table of operations: their methods, paths and credentials; and the addresses beside it."""

from schemas import ERROR
from statement import Area, equal, holds, one_of, valid
from wire import send
from world import OPERATIONS, SECURED, body_of

area = Area("endpoints")

for name, (method, path, _) in OPERATIONS.items():

    @area.says(f"{name} is {method} {path}")
    def _(world, name=name):
        world.admits(name, "owner")

    @area.says(f"{path} refuses other methods with 405 and names those it has")
    def _(world, path=path, method=method):
        other = "DELETE" if method == "POST" else "POST"

        answer = send(other, world.url(path), world.bearer("owner"), body_of(path)).is_status(405)
        holds(method in answer.field("allow"), method, answer.field("allow"))
        valid(answer.json(), ERROR)


for name, (_, _, scope) in SECURED.items():

    @area.says(f"{name} takes an API key")
    def _(world, name=name):
        world.admits(name, world.owner_key)

    @area.says(f"{name} takes a token with {scope} alone")
    def _(world, name=name, scope=scope):
        world.admits(name, world.token(world.api, scope))

    @area.says(f"{name} takes no request without a credential")
    def _(world, name=name):
        valid(world.call(name, None).is_status(401).json(), ERROR)


for name in ("getSuperProProduct", "getDeveloperOnboarding"):

    @area.says(f"{name} needs no credential, and is not hindered by a wrong one")
    def _(world, name=name):
        world.call(name, None).is_status(200)
        world.call(name, "sk-svc-wrong").is_status(200)


@area.says("every operation of the table is in the description of the API, with its operationId and credentials")
def _(world):
    paths = world.get("/openapi.json").is_status(200).json()["paths"]
    for name, (method, path, scope) in OPERATIONS.items():
        operation = paths[path][method.lower()]
        equal(operation["operationId"], name)
        security = [scopes for one in operation.get("security", []) for scopes in one.values()]
        equal(bool(security), bool(scope))
        if scope:
            # A key, which has no scopes here, or a token with the scope.
            holds([] in security and [scope] in security, f"a key or {scope}", security)


@area.says("bodies of requests are JSON: another media type is refused with 415")
def _(world):
    headers = {"Content-Type": "text/plain"}
    valid(world.post("/v1/chat/completions", "{}", headers=headers).is_status(415).json(), ERROR)


@area.says("bodies of responses are JSON, or an event stream where one was asked for")
def _(world):
    for name in OPERATIONS:
        one_of(world.call(name, "owner").media_type(), ("application/json", "application/problem+json"))


@area.says("any other path below /v1 and /ucp: 404 in the envelope of errors, whatever Accept says (agreed)")
def _(world):
    for path in ("/v1", "/v1/", "/v1/none", "/v1/chat", "/ucp", "/ucp/v1/none"):
        for accept in ("*/*", "application/json", "text/html,application/xhtml+xml,*/*;q=0.8"):
            answer = world.get(path, "owner", {"Accept": accept}).is_status(404)
            equal(answer.media_type(), "application/json")
            valid(answer.json(), ERROR)


@area.says("the UCP discovery document is a JSON object for all")
def _(world):
    valid(world.get("/.well-known/ucp").is_status(200).json(), {"type": "object"})


INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "interface", "version": "1"},
    },
}
BOTH = {"Accept": "application/json, text/event-stream"}

for path, scope in (("/mcp", "mcp:chat"), ("/mcp/android", "mcp:android")):

    @area.says(f"{path} speaks Streamable HTTP")
    def _(world, path=path, scope=scope):
        token = world.token(world.base + path, scope)
        answer = world.post(path, INITIALIZE, token, BOTH).is_status(200)
        one_of(answer.media_type(), ("application/json", "text/event-stream"))
        holds("protocolVersion" in answer.text(), "a result with protocolVersion", answer.text())


@area.says("a second MCP request in its session is answered too")
def _(world):
    token = world.token(f"{world.base}/mcp", "mcp:chat")
    opened = world.post("/mcp", INITIALIZE, token, BOTH).is_status(200)
    session = {"Mcp-Session-Id": opened.headers["mcp-session-id"]} if opened.headers.get("mcp-session-id") else {}
    body = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    world.post("/mcp", body, token, BOTH | session).is_status(200)


area.cannot_see("the tools of the MCP resources", "they are not part of the interface")
