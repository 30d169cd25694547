"""The authorization request, the decision, and the exchange of the code."""

import html
import re
from urllib.parse import parse_qs, urlsplit

from gateway import unique, used
from person import REDIRECT, Client, Person
from statement import Area, equal, holds, one_of
from world import MODELS

area = Area("authorization")


def client(world, scope="api:models", resource=None):
    return Client(world, resource or world.api, scope)


def code(world, one):
    return used(world.person.decide(one.url())[1]["code"])


def error_at(world, one, **changes):
    """The error of a refused request. The page of the refusal leads back to the client with it; `None` where it does not lead there."""
    page = world.person.send(one.url(**changes)).is_status(400)
    links = [html.unescape(link) for link in re.findall(r'href="([^"]+)"', page.text())]
    back = [parse_qs(urlsplit(link).query) for link in links if link.startswith("https://app.example/")]
    if not back:
        return None
    equal(back[0]["state"], [one.state])
    return back[0]["error"][0]


@area.says("a person who is not signed in is sent to sign in first")
def _(world):
    path, page = Person(world, "new@example.com").open(client(world).url())
    holds(path.startswith("/sign-in") and "<form" in page.text(), "the page to sign in", path)


@area.says("signing in works with the e-mail address of the account")
def _(world):
    person = world.new_person()
    path, page = person.sign_in()
    equal(page.status, 200)
    holds(html.escape(person.address) in person.open("/")[1].text(), "the address on the overview", path)


@area.says("signing in works with the phone number of the account")
def _(world):
    phone = f"+4915112{unique():06}"
    person = Person(world, phone, world.account(phone=phone))
    one = client(world)
    _, answer = person.decide(one.url())
    holds("code" in answer, "a code", sorted(answer))


@area.says("the person sees the scopes, the client and the account before the decision")
def _(world):
    _, page = world.person.consent(client(world, "api:models api:chat").url())
    text = page.text()
    for part in ("Interface", "See models", "Send chat requests", world.person.address):
        holds(part in text, part, text)


@area.says("a person without credits is shown the way to add them, and can approve")
def _(world):
    person = world.new_person()
    path, page = person.consent(client(world, "api:chat").url())
    holds("credits" in page.text(), "credits", page.text())
    location = person.submit(page, path, decision="allow").is_status(302, 303).field("location")
    holds("code=" in location, "a code", location)


@area.says("approval sends the browser to the redirect URI with code, state and issuer")
def _(world):
    one = client(world)
    back, answer = world.person.decide(one.url())
    equal(back.split("?")[0], REDIRECT)
    equal((answer["state"], answer["iss"]), (one.state, world.base))
    used(answer["code"])


@area.says("refusal sends the browser there with access_denied, state and issuer, and no code")
def _(world):
    one = client(world)
    _, answer = world.person.decide(one.url(), "cancel")
    equal((answer["error"], answer["state"], answer["iss"]), ("access_denied", one.state, world.base))
    holds("code" not in answer, "no code", answer)


@area.says("redirect_uri has to be one that was registered, to the letter; a page says so, and nothing is sent to it")
def _(world):
    one = client(world)
    for uri in (
        REDIRECT + "/",
        REDIRECT + "?a=1",
        REDIRECT.upper(),
        "https://evil.example/callback",
        REDIRECT.replace("https", "http"),
    ):
        equal(error_at(world, one, redirect_uri=uri), None)


@area.says("an unknown client is refused on a page")
def _(world):
    equal(error_at(world, client(world), client_id="c_none"), None)
    equal(error_at(world, client(world), client_id=None), None)


# A parameter, values with which the request is refused, and the error. A method left out means plain.
for name, values, error in [
    ("response_type", ["token", "code token"], "unsupported_response_type"),
    ("response_type", [None, ""], "invalid_request"),
    ("code_challenge", [None, "", "short"], "invalid_request"),
    ("code_challenge_method", [None, "plain", "s256"], "invalid_request"),
    ("scope", ["api:none", "mcp:chat"], "invalid_scope"),
    ("resource", ["https://other.example/", "/v1"], "invalid_target"),
]:

    @area.says(
        f"{name} {' or '.join(str(value or 'missing') for value in values)} is refused, and the client gets {error}"
    )
    def _(world, name=name, values=values, error=error):
        one = client(world)
        for value in values:
            equal(error_at(world, one, **{name: value}), error)


@area.says("the exchange gives a bearer token with its scope and lifetime")
def _(world):
    one = client(world, "api:models api:chat")
    answer = one.exchange(code(world, one)).is_status(200)
    found = answer.json()
    used(found["access_token"])
    equal(found["token_type"].lower(), "bearer")
    equal(sorted(found["scope"].split()), ["api:chat", "api:models"])
    holds(found["expires_in"] > 0, "a lifetime", found["expires_in"])
    holds("no-store" in answer.field("cache-control"), "no-store", answer.field("cache-control"))


@area.says("a code is used once: the second exchange is refused")
def _(world):
    one = client(world)
    own = code(world, one)
    used(one.exchange(own).is_status(200).json()["access_token"])
    equal(one.exchange(own).is_status(400).json()["error"], "invalid_grant")


@area.says("the exchange needs the verifier of the challenge")
def _(world):
    for verifier in ("a" * 43, None, ""):
        one = client(world)
        one_of(
            one.exchange(code(world, one), code_verifier=verifier).is_status(400).json()["error"],
            ("invalid_grant", "invalid_request"),
        )


@area.says("the exchange needs the resource of the request")
def _(world):
    for resource in (lambda world: f"{world.base}/mcp", lambda world: "https://other.example/"):
        one = client(world)
        one_of(
            one.exchange(code(world, one), resource=resource(world)).is_status(400).json()["error"],
            ("invalid_target", "invalid_grant"),
        )


@area.says("the exchange needs the redirect URI of the request")
def _(world):
    one = client(world)
    one_of(
        one.exchange(code(world, one), redirect_uri="https://app.example/other").is_status(400).json()["error"],
        ("invalid_grant", "invalid_request"),
    )


@area.says("a code is that of its client")
def _(world):
    one, other = client(world), client(world)
    one_of(one.exchange(code(world, one), client_id=other.id).status, (400, 401))


@area.says("an invented code is refused")
def _(world):
    equal(client(world).exchange("c0de").is_status(400).json()["error"], "invalid_grant")


@area.says("a token has the scopes that were approved, and no others")
def _(world):
    one = client(world)
    token = one.token(world.person)
    world.get(MODELS, token).is_status(200)
    world.post("/v1/chat/completions", {}, token).is_status(403)


@area.says("a decision needs the session of the person: without it nothing is approved")
def _(world):
    path, _ = world.person.consent(client(world).url())
    stranger = Person(world, "stranger@example.com")
    answer = stranger.send(path, {"decision": "allow"})
    holds(
        "code=" not in answer.headers.get("location", ""), "no code", urlsplit(answer.headers.get("location", "")).path
    )


@area.says("approval costs no credits")
def _(world):
    before = world.balance(world.token(world.api, "api:models"))
    client(world).token(world.person)
    equal(world.balance(world.token(world.api, "api:models")), before)
