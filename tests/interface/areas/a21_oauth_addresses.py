"""The addresses of OAuth and of its metadata."""

from statement import Area, each, equal, holds

area = Area("oauth-addresses")

SERVER = "/.well-known/oauth-authorization-server"
RESOURCE = "/.well-known/oauth-protected-resource"


def server(world):
    return world.get(world.root + SERVER).is_status(200).json()


@area.says("the metadata of the server is JSON at the root URL, for all")
def _(world):
    equal(world.get(world.root + SERVER).is_status(200).media_type(), "application/json")


ENDPOINTS = {
    "issuer": "",
    "authorization_endpoint": "/oauth/authorize",
    "token_endpoint": "/oauth/token",
    "registration_endpoint": "/oauth/register",
    "revocation_endpoint": "/oauth/revoke",
    "jwks_uri": "/.well-known/jwks.json",
}

for name, path in ENDPOINTS.items():

    @area.says(f"{name} is the base URL and {path or 'nothing else'}")
    def _(world, name=name, path=path):
        equal(server(world)[name], world.base + path)

    if name.endswith("_endpoint"):

        @area.says(f"there is an answer at {path}")
        def _(world, path=path, name=name):
            if name == "authorization_endpoint":
                holds("<html" in world.get(path).is_status(400).text(), "a page", path)
            else:
                holds("error" in world.post(path, "", None).is_status(400, 415).json(), "an error of OAuth", path)


@area.says("the server supports code, S256 and clients without a secret, and nothing weaker")
def _(world):
    found = server(world)
    equal(found["response_types_supported"], ["code"])
    equal(found["code_challenge_methods_supported"], ["S256"])
    equal(found["token_endpoint_auth_methods_supported"], ["none"])
    holds("authorization_code" in found["grant_types_supported"], "authorization_code", found)


@area.says("the server returns the issuer with the code, and says so")
def _(world):
    equal(server(world)["authorization_response_iss_parameter_supported"], True)


# Where the metadata of a resource is, and the resource.
METADATA = {
    "at the root URL": (lambda world: world.root + RESOURCE, lambda world: world.root),
    "of the API": (lambda world: f"{world.base}{RESOURCE}/v1", lambda world: world.api),
    "of the general MCP resource": (lambda world: f"{world.base}{RESOURCE}/mcp", lambda world: f"{world.base}/mcp"),
    "of the Android MCP resource": (
        lambda world: f"{world.base}{RESOURCE}/mcp/android",
        lambda world: f"{world.base}/mcp/android",
    ),
}

for name, (address, resource) in METADATA.items():

    @area.says(f"the metadata {name} names the resource and its authorization server")
    def _(world, address=address, resource=resource):
        found = world.get(address(world)).is_status(200).json()
        equal(found["resource"], resource(world))
        equal(found["authorization_servers"], [world.base])

    @area.says(f"the metadata {name} names scopes and where the token is sent")
    def _(world, address=address):
        found = world.get(address(world)).is_status(200).json()
        each(found["scopes_supported"], lambda scope: holds(":" in scope, "a scope", scope))
        equal(found["bearer_methods_supported"], ["header"])


@area.says("the key set is empty")
def _(world):
    equal(world.get("/.well-known/jwks.json").is_status(200).json()["keys"], [])
