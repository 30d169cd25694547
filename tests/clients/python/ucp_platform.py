#!/usr/bin/env python3
"""A platform of the Universal Commerce Protocol that buys the plan, from discovery to the order, and shows each step. Needs nothing but Python.

    tests/clients/python/ucp_platform.py BASE_URL API_KEY [PAYPAL_URL MAILBOX_URL SIGN_IN_AS]

BASE_URL and API_KEY are those that `tollgate demo` prints. The owner of the account opens the page that the checkout leads to, signs in and
agrees at PayPal; the script waits for a confirmation on the terminal. With the addresses of the demo's stand-ins for PayPal and for a
mailbox, and the address that the account signs in with, the script is the owner too: it signs in, presses the buttons, and agrees. Where
the variable TOLLGATE_DEMO holds what `tollgate demo --json` has printed, nothing has to be named.
"""

import json
import os
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
import uuid

AGENT = 'profile="https://platform.example/.well-known/ucp"'

# Looks before the script gives up.
LOOKS = 20


class NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


OPENER = urllib.request.build_opener(NoRedirects)


def send(method, url, headers=None, body=None):
    """The answer, whatever its status: status, fields, text."""
    request = urllib.request.Request(url, data=body, headers=headers or {}, method=method)
    try:
        answer = OPENER.open(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, answer.headers, answer.read().decode()


class Platform:
    """A platform that works for the owner of an account."""

    def __init__(self, base, key):
        status, _, text = send("GET", f"{base}/.well-known/ucp")
        if status != 200:
            raise SystemExit(f"{base} does not speak UCP: {status} {text}")
        profile = json.loads(text)["ucp"]
        services = profile["services"]["dev.ucp.shopping"]
        self.endpoint = next(one["endpoint"] for one in services if one["transport"] == "rest")
        self.key = key
        print("UCP", profile["version"], "at", self.endpoint)

    def ask(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.key}", "UCP-Agent": AGENT}
        if method != "GET":
            headers |= {"Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
        data = None if body is None else json.dumps(body).encode()
        status, fields, text = send(method, f"{self.endpoint}/checkout-sessions{path}", headers, data)
        return status, fields, json.loads(text)


class Owner:
    """The owner of the account, with a browser that knows no script."""

    def __init__(self, base, mailbox, address):
        self.base, self.cookie, self.page = base, "", ""
        self.sign_in(mailbox, address)

    def browse(self, method, path, **fields):
        headers = {"Cookie": self.cookie} if self.cookie else {}
        body = None
        if method == "POST":
            token = re.search(r'name="csrf" value="([^"]+)"', self.page).group(1)
            body = urllib.parse.urlencode({"csrf": token} | fields).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        url = urllib.parse.urljoin(self.base, path)
        status, answered, self.page = send(method, url, headers, body)
        if given := answered.get("Set-Cookie"):
            self.cookie = given.split(";")[0]
        if status == 303:
            return self.browse("GET", answered["Location"])
        return status

    def sign_in(self, mailbox, address):
        letters = f"{mailbox}/_control/messages?to={urllib.parse.quote(address)}"
        before = len(json.loads(send("GET", letters)[2]))
        self.browse("GET", "/sign-in")
        self.browse("POST", "/sign-in", address=address)
        sent = []
        # The mailbox has no event to wait for; a letter is there after a few looks.
        while len(sent) <= before:
            sent = json.loads(send("GET", letters)[2])
        code = re.search(r"\b\d{8}\b", sent[-1]["text"]).group(0)
        self.browse("POST", "/sign-in/code", code=code)

    def agree(self, page, paypal):
        """Opens the page of a checkout, presses its button, and agrees at the stand-in for PayPal."""
        before = {one["id"] for one in json.loads(send("GET", f"{paypal}/_control/subscriptions")[2])["subscriptions"]}
        path = urllib.parse.urlsplit(page).path
        self.browse("GET", path)
        status = self.browse("POST", path)
        if status != 200:
            raise SystemExit(f"the page does not lead to PayPal: {status}")
        after = json.loads(send("GET", f"{paypal}/_control/subscriptions")[2])["subscriptions"]
        made = [one["id"] for one in after if one["id"] not in before] or [after[-1]["id"]]
        return send("POST", f"{paypal}/_control/approve/{made[-1]}", body=b"")[0]


def main():
    demo = json.loads(os.environ.get("TOLLGATE_DEMO", "{}"))
    names = ("base_url", "api_key", "paypal_url", "mailbox_url", "sign_in_as")
    arguments = sys.argv[1:] or [demo[name] for name in names if name in demo]
    if len(arguments) not in (2, 5):
        raise SystemExit(__doc__)
    base, key = arguments[0].rstrip("/"), arguments[1]
    platform = Platform(base, key)
    # The service's own word is in its keys, and in the name of its plan.
    product = f"{key.split('-')[1]}-pro-monthly"
    status, _, session = platform.ask("POST", "", {"line_items": [{"item": {"id": product}, "quantity": 1}]})
    if status != 201:
        raise SystemExit(f"{status}: {json.dumps(session)}")
    line = session["line_items"][0]
    print(f"{status}: checkout {session['id']}, {line['item']['title']}, {session['status']}")
    for message in session["messages"]:
        print(f"  {message['type']}: {message['content']}")
    if session["status"] == "completed":
        return print("The account has the plan already:", session["order"]["permalink_url"])
    print("The owner of the account agrees at", session["continue_url"])
    if len(arguments) == 5:
        paypal, mailbox, address = arguments[2:]
        owner = Owner(base, mailbox.rstrip("/"), address)
        print("Agreed to at the stand-in for PayPal:", owner.agree(session["continue_url"], paypal.rstrip("/")))
    else:
        input("Press Enter once they have. ")

    path = f"/{session['id']}"
    for _ in range(LOOKS):
        status, fields, session = platform.ask("POST", f"{path}/complete", {"payment": {"instruments": []}})
        if status not in (200, 503):
            break
        print(f"{status}: {session.get('status', session.get('content'))}, {session['payment_state']}")
        if session.get("status") == "completed":
            break
        if len(arguments) == 2:
            input(f"Press Enter to ask again; the service would have us wait {fields.get('Retry-After', '5')} seconds. ")
    if status == 409:
        # A webhook event or the page has completed it already.
        status, _, session = platform.ask("GET", path)
    if session.get("status") != "completed":
        raise SystemExit(f"{status}: {json.dumps(session)}")
    print("Order", session["order"]["id"], "at", session["order"]["permalink_url"])


if __name__ == "__main__":
    main()
