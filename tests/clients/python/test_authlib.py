"""The stock `authlib` package against `tollgate demo`: register, sign in, allow, exchange, call, revoke."""

import html
import json
import os
import re
import subprocess
import sys
import time
import unittest
from urllib.parse import parse_qs, urljoin, urlsplit

# The demo speaks plain HTTP on this computer.
os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"

import requests
from authlib.common.security import generate_token
from authlib.integrations.requests_client import OAuth2Session

DEMO = json.loads(os.environ["TOLLGATE_DEMO"])
BASE = DEMO["base_url"]
# A message takes a moment; far more than one needs.
PATIENCE_SECS = 60


def tollgate(*arguments):
    """What a `tollgate` command with `--json` prints."""
    command = [os.environ["TOLLGATE_BIN"], *arguments, "--config", DEMO["config_file"], "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


def secret(text):
    if path := os.environ.get("TOLLGATE_TEST_SECRETS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(text + "\n")
    return text


class Person:
    """A browser without JavaScript: one cookie, which a cookie jar would not send over plain HTTP, and a mailbox."""

    def __init__(self, address):
        self.address = address
        self.cookie = None

    def send(self, path, fields=None):
        headers = {"cookie": self.cookie} if self.cookie else {}
        method = "POST" if fields is not None else "GET"
        answer = requests.request(
            method, urljoin(BASE, path), data=fields, headers=headers, allow_redirects=False, timeout=60
        )
        if given := answer.headers.get("set-cookie"):
            self.cookie = given.split(";")[0]
        return answer

    def open(self, path):
        """The page at the end of a path, and where it was found."""
        for _ in range(10):
            answer = self.send(path)
            if answer.status_code != 303:
                return urlsplit(answer.url).path, answer
            path = answer.headers["location"]
        raise AssertionError(f"{path} leads round in circles")

    def submit(self, page, action, **fields):
        hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page.text)
        own = {name: html.unescape(value) for name, value in hidden}
        answer = self.send(action, own | fields)
        assert answer.status_code == 303, answer.text
        return answer.headers["location"]

    def code(self):
        patience = time.monotonic() + PATIENCE_SECS
        while time.monotonic() < patience:
            found = requests.get(f"{DEMO['mailbox_url']}/_control/messages", params={"to": self.address}, timeout=60)
            if (messages := found.json()) and (code := re.search(r"\b\d{6,8}\b", messages[-1]["text"])):
                return code[0]
        raise AssertionError(f"no code came to {self.address}")

    def decide(self, url, decision="allow"):
        """Goes where an app sends the browser, signs in, and decides. Gives the address that the browser goes on to."""
        path, page = self.open(url)
        if path.startswith("/sign-in"):
            _, page = self.open(self.submit(page, "/sign-in", address=self.address))
            path, page = self.open(self.submit(page, "/sign-in/code", code=self.code()))
        assert path.startswith("/consent/") and "Access goes to" in page.text, page.text
        return self.submit(page, path, decision=decision)


class Authlib(unittest.TestCase):
    def test_authlib_goes_the_whole_way_and_gives_its_token_back(self):
        address = f"authlib-{os.getpid()}@example.com"
        tollgate("account", "create", "--email", address, "--class", "pro")
        server = requests.get(f"{BASE}/.well-known/oauth-authorization-server", timeout=60).json()
        redirect = "https://app.example/callback?from=authlib"
        metadata = {"client_name": "Stock client", "redirect_uris": [redirect], "token_endpoint_auth_method": "none"}
        client = requests.post(server["registration_endpoint"], json=metadata, timeout=60).json()
        verifier = generate_token(48)
        session = OAuth2Session(
            client["client_id"],
            redirect_uri=redirect,
            scope="api:models",
            token_endpoint_auth_method="none",
            code_challenge_method="S256",
        )
        resource = f"{BASE}/v1"
        url, state = session.create_authorization_url(
            server["authorization_endpoint"], code_verifier=verifier, resource=resource
        )
        back = Person(address).decide(url)
        self.assertTrue(back.startswith(redirect + "&code="), "what was registered stays")
        answer = parse_qs(urlsplit(back).query)
        self.assertEqual(answer["iss"], [BASE])
        secret(answer["code"][0])
        token = session.fetch_token(
            server["token_endpoint"],
            authorization_response=back,
            state=state,
            code_verifier=verifier,
            resource=resource,
        )
        secret(token["access_token"])
        self.assertEqual(token["scope"], "api:models")
        self.assertEqual(session.get(f"{BASE}/v1/models").status_code, 200)
        self.assertEqual(session.post(f"{BASE}/v1/chat/completions", json={}).status_code, 403)
        revoked = session.revoke_token(server["revocation_endpoint"], token=token["access_token"])
        self.assertEqual((revoked.status_code, revoked.content), (200, b""))
        self.assertEqual(session.get(f"{BASE}/v1/models").status_code, 401)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(bool(failed))
