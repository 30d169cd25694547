"""Resources, and the credentials that are valid at each."""

from statement import Area, holds
from wire import challenge
from world import SECURED, no_token

area = Area("audience")

# The resources as functions of the world, and a scope of each.
RESOURCES = {
    "the API": (lambda world: world.api, "api"),
    "the root URL": (lambda world: world.root, "api"),
    "the base URL": (lambda world: world.base, "api"),
    "the general MCP resource": (lambda world: f"{world.base}/mcp", "mcp:chat"),
    "the Android MCP resource": (lambda world: f"{world.base}/mcp/android", "mcp:android"),
}


def token(world, resource, scope):
    address, own = RESOURCES[resource]
    return world.token(address(world), scope if own == "api" else own)


for resource, (_, kind) in RESOURCES.items():
    for name, (_, _, scope) in SECURED.items():
        if kind == "api":

            @area.says(f"{name} takes a token of {resource}")
            def _(world, resource=resource, name=name, scope=scope):
                world.admits(name, token(world, resource, scope))
        else:

            @area.says(f"{name} refuses a token of {resource}")
            def _(world, resource=resource, name=name, scope=scope):
                no_token(world.call(name, token(world, resource, scope)))


for path in ("/mcp", "/mcp/android"):
    for resource, (_, kind) in RESOURCES.items():
        own = (path == "/mcp") == (resource == "the general MCP resource") and kind != "api"
        if own:

            @area.says(f"{path} takes a token of {resource}")
            def _(world, path=path, resource=resource):
                world.pings(path, token(world, resource, ""))
        else:

            @area.says(f"{path} refuses a token of {resource}")
            def _(world, path=path, resource=resource):
                no_token(world.post(path, {}, token(world, resource, "api:models")))

    @area.says(f"{path} refuses an API key")
    def _(world, path=path):
        no_token(world.post(path, {}, world.owner_key))

    @area.says(f"{path} refuses a request without a credential and names its metadata")
    def _(world, path=path):
        answer = world.post(path, {}, None)
        no_token(answer)
        _, parameters = challenge(answer.field("www-authenticate"))
        found = world.get(parameters["resource_metadata"]).is_status(200).json()
        holds(found["resource"] == world.base + path, world.base + path, found)
