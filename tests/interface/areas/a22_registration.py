"""Registration of OAuth clients."""

from person import Person, metadata
from statement import Area, equal, holds

area = Area("registration")


def register(world, **changes):
    body = {name: value for name, value in metadata(**changes).items() if value is not None}
    return world.post("/oauth/register", body, None)


@area.says("the answer carries a client_id, and what was registered")
def _(world):
    answer = register(world).is_status(201).json()
    holds(isinstance(answer["client_id"], str) and answer["client_id"], "a client_id", answer)
    for name, value in metadata().items():
        equal(answer[name], value)


@area.says("no client secret is issued")
def _(world):
    holds("client_secret" not in register(world).is_status(201).json(), "no client_secret", None)


@area.says("two registrations have different ids")
def _(world):
    holds(len({register(world).json()["client_id"] for _ in range(2)}) == 2, "two ids", None)


@area.says("it needs no credential, and creates no account")
def _(world):
    before = len(world.command("account", "list"))
    register(world).is_status(201)
    equal(len(world.command("account", "list")), before)


TAKEN = """
    https://app.example/callback
    https://app.example/callback?from=app
    http://localhost/callback
    http://localhost:8765/callback
    http://127.0.0.1:8765/callback
    http://[::1]:8765/callback
"""
REFUSED = """
    http://app.example/callback
    ftp://app.example/
    app.example/callback
    /callback
    javascript:alert(1)
    https://app.example/#part
    http://localhost.example/callback
    http://127.0.0.1.example/
"""

for uri in TAKEN.split():

    @area.says(f"redirect URI taken: {uri}")
    def _(world, uri=uri):
        equal(register(world, redirect_uris=[uri]).is_status(201).json()["redirect_uris"], [uri])


for uri in (*REFUSED.split(), ""):

    @area.says(f"redirect URI refused: {uri or 'an empty one'}")
    def _(world, uri=uri):
        equal(register(world, redirect_uris=[uri]).is_status(400).json()["error"], "invalid_redirect_uri")


@area.says("several redirect URIs are taken")
def _(world):
    uris = ["https://app.example/a", "http://localhost:8765/b"]
    equal(register(world, redirect_uris=uris).is_status(201).json()["redirect_uris"], uris)


@area.says("redirect_uris is a list with at least one URI")
def _(world):
    for value in (None, [], "https://app.example/callback", [1]):
        register(world, redirect_uris=value).is_status(400)


@area.says("client_name is a string")
def _(world):
    register(world, client_name=1).is_status(400)


@area.says(
    "grant_types, response_types and token_endpoint_auth_method: another value is refused or replaced by what is supported"
)
def _(world):
    for member, value, own in (
        ("grant_types", ["password"], ["authorization_code"]),
        ("response_types", ["token"], ["code"]),
        ("token_endpoint_auth_method", "client_secret_basic", "none"),
    ):
        answer = register(world, **{member: value})
        holds(answer.status == 400 or answer.json()[member] == own, f"400 or {own}", answer.text())


@area.says("the body is application/json")
def _(world):
    answer = world.post("/oauth/register", "client_name=x", None, {"Content-Type": "application/x-www-form-urlencoded"})
    answer.is_status(400, 415)


@area.says("an error is JSON with error and error_description")
def _(world):
    answer = register(world, redirect_uris=["ftp://app.example/"]).is_status(400)
    equal(answer.media_type(), "application/json")
    holds({"error", "error_description"} <= set(answer.json()), "error and error_description", answer.json())


@area.says("an account is made when its address is proved by a code, and not before")
def _(world):
    address = "unproved@example.com"
    person = Person(world, address)
    before = len(world.command("account", "list"))
    person.submit(person.open("/sign-up")[1], "/sign-up", address=address).is_status(303)
    equal(len(world.command("account", "list")), before)
    person.follow(person.submit(person.open("/sign-in/code")[1], "/sign-in/code", code=person.code(0)))
    equal(len(world.command("account", "list")), before + 1)


@area.says("a registered client gets no token without a person")
def _(world):
    client = register(world).json()["client_id"]
    for grant in ("client_credentials", "password", "urn:ietf:params:oauth:grant-type:device_code"):
        answer = world.post(
            "/oauth/token",
            f"grant_type={grant}&client_id={client}&username=a&password=b",
            None,
            {"Content-Type": "application/x-www-form-urlencoded"},
        )
        equal(answer.is_status(400).json()["error"], "unsupported_grant_type")
