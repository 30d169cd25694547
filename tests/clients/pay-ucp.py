#!/usr/bin/env python3
"""Buys the plan with a checkout of the Universal Commerce Protocol, and shows each step. Needs nothing but Python.

    tests/clients/pay-ucp.py BASE_URL API_KEY

BASE_URL and API_KEY are those that `tollgate demo` prints. The script prints the page where the owner of the account
approves the subscription, and waits for an empty line on the terminal.
"""

import json
import sys
import urllib.error
import urllib.request
import uuid

# Looks before the script gives up on an owner who does not agree.
LOOKS = 20


def send(method, url, headers, body=None):
    """The answer to a request, whatever its status: status, fields, JSON."""
    request = urllib.request.Request(url, data=body, headers=headers, method=method)
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    text = answer.read()
    return answer.status, answer.headers, json.loads(text) if text else None


def main():
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    base, key = sys.argv[1].rstrip("/"), sys.argv[2]
    bearer = {"Authorization": f"Bearer {key}"}
    # The service's own word is in its keys and in the name of what it sells.
    product = f"{key.split('-')[1]}-pro-monthly"

    # Should the answer be lost, the same key gives the same session.
    begun = {**bearer, "Content-Type": "application/json", "Idempotency-Key": str(uuid.uuid4())}
    body = json.dumps({"product_id": product}).encode()
    status, fields, session = send("POST", f"{base}/ucp/v1/checkout-sessions", begun, body)
    if status != 201:
        raise SystemExit(f"{status}: {json.dumps(session)}")
    if session["status"] == "completed":
        return print("The account has the plan already.")
    print("201: a checkout, which the owner of the account finishes at", session["continue_url"], flush=True)

    for _ in range(LOOKS):
        input("Press Enter when they have: ")
        status, _, session = send("GET", fields["Location"], bearer)
        if status == 200 and session["status"] == "completed":
            return print("200: the checkout is completed; the account has the plan.")
        if status not in (200, 429, 503):
            raise SystemExit(f"{status}: {json.dumps(session)}")
        print(f"{status}: not yet.")
    raise SystemExit("The subscription was not approved. Nothing was charged.")


if __name__ == "__main__":
    main()
