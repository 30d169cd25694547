"""A browser without JavaScript (one cookie, forms, a mailbox), and the OAuth client that sends it to the service."""

import base64
import hashlib
import html
import re
import secrets
import time
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from gateway import unique, used
from statement import Unmet, holds, shown
from wire import form, send

# A message takes a moment; this is far more than one needs.
MESSAGE_SECS = 60
REDIRECT = "https://app.example/callback"


class Person:
    """The owner of an account, in a browser."""

    def __init__(self, gateway, address, account=None):
        self.gateway, self.address, self.account = gateway, address, account
        self.cookie = None

    def send(self, path, fields=None):
        headers, body = form(**fields) if fields is not None else ({}, None)
        if self.cookie:
            headers["Cookie"] = self.cookie
        # Browsers say where a form comes from.
        headers["Origin"] = self.gateway.base
        answer = send("GET" if fields is None else "POST", urljoin(self.gateway.base, path), headers, body)
        if given := answer.headers.get("set-cookie"):
            self.cookie = given.split(";")[0]
        return answer

    def open(self, path):
        """The page at the end of the redirects within the service: its path, and the response."""
        for _ in range(10):
            answer = self.send(path)
            location = answer.headers.get("location")
            if answer.status not in (302, 303, 307) or not location:
                return urlsplit(path).path, answer
            path = location
        raise Unmet("a page", f"redirects without end at {path}")

    def submit(self, page, action, **fields):
        """Sends the form of a page, with its hidden fields."""
        tags = re.findall(r'<input type="hidden"[^>]*>', page.text())
        hidden = {}
        for tag in tags:
            name, value = re.search(r'name="([^"]+)"', tag), re.search(r'value="([^"]*)"', tag)
            hidden[name[1]] = html.unescape(value[1]) if value else ""
        return self.send(action, hidden | fields)

    def follow(self, answer):
        answer.is_status(303)
        return self.open(answer.field("location"))

    def sign_in(self, page=None, path="/sign-in"):
        """Signs in with the code of a message. Gives the page that follows."""
        before = len(self.gateway.messages(self.address))
        page = page or self.open(path)[1]
        _, page = self.follow(self.submit(page, path, address=self.address))
        return self.follow(self.submit(page, "/sign-in/code", code=self.code(before)))

    def code(self, before):
        until = time.monotonic() + MESSAGE_SECS
        while time.monotonic() < until:
            messages = self.gateway.messages(self.address)[before:]
            if messages and (code := re.search(r"\b\d{6,8}\b", messages[-1]["text"])):
                return used(code[0])
        raise Unmet("a message with a code", f"none to {self.address}")

    def consent(self, url):
        """Opens an authorization request and signs in when asked to. Gives the path and the page of the decision."""
        path, page = self.open(url)
        if path.startswith("/sign-in"):
            path, page = self.sign_in(page)
        holds(
            path.startswith("/consent/") and page.status == 200,
            "the page of the decision",
            f"{path} {page.status} {shown(page.text())}",
        )
        return path, page

    def decide(self, url, decision="allow"):
        """Gives the URL at the client that the browser is sent to, and its parameters."""
        path, page = self.consent(url)
        back = self.submit(page, path, decision=decision).is_status(302, 303).field("location")
        return back, {name: values[0] for name, values in parse_qs(urlsplit(back).query).items()}


class Client:
    """A registered OAuth client and one attempt to get a token: verifier, challenge and state are new."""

    def __init__(self, gateway, resource, scope):
        self.gateway, self.resource, self.scope = gateway, resource, scope
        self.verifier = secrets.token_urlsafe(48)
        digest = hashlib.sha256(self.verifier.encode()).digest()
        self.challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        self.state = f"state-{unique()}"
        self.id = register(gateway)

    def url(self, **changes):
        """The authorization request. A parameter of the value None is left out."""
        fields = {
            "client_id": self.id,
            "redirect_uri": REDIRECT,
            "response_type": "code",
            "code_challenge": self.challenge,
            "code_challenge_method": "S256",
            "scope": self.scope,
            "resource": self.resource,
            "state": self.state,
        } | changes
        fields = {name: value for name, value in fields.items() if value is not None}
        return f"{self.gateway.base}/oauth/authorize?{urlencode(fields)}"

    def exchange(self, code, **changes):
        fields = {
            "grant_type": "authorization_code",
            "client_id": self.id,
            "redirect_uri": REDIRECT,
            "code": code,
            "code_verifier": self.verifier,
            "resource": self.resource,
        } | changes
        headers, body = form(**{name: value for name, value in fields.items() if value is not None})
        return send("POST", f"{self.gateway.base}/oauth/token", headers, body)

    def token(self, person):
        _, answer = person.decide(self.url())
        token = self.exchange(used(answer["code"])).is_status(200).json()["access_token"]
        return used(token)


def metadata(**changes):
    return {
        "client_name": "Interface",
        "redirect_uris": [REDIRECT],
        "grant_types": ["authorization_code"],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    } | changes


def register(gateway):
    return gateway.post("/oauth/register", metadata(), key=None).is_status(201).json()["client_id"]
