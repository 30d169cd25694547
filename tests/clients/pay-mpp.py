#!/usr/bin/env python3
"""Buys the plan with MPP, the `Payment` scheme of HTTP authentication, and shows each step. Needs nothing but Python.

    tests/clients/pay-mpp.py BASE_URL API_KEY [PAYPAL_URL]

BASE_URL and API_KEY are those that `tollgate demo` prints. With PAYPAL_URL, the demo's stand-in for PayPal, the script approves the
payment itself; without it, it prints the page where the owner of the account approves it, and waits for a confirmation on the terminal.
If the variable TOLLGATE_DEMO contains the output of `tollgate demo --json`, no argument is needed.
"""

import base64
import json
import os
import sys
import urllib.error
import urllib.request

# Looks before the script gives up.
LOOKS = 20


def send(url, headers, body=b""):
    """The answer to a POST, whatever its status: status, fields, JSON."""
    request = urllib.request.Request(url, data=body, headers=headers, method="POST")
    try:
        answer = urllib.request.urlopen(request, timeout=60)
    except urllib.error.HTTPError as error:
        answer = error
    text = answer.read()
    return answer.status, answer.headers, json.loads(text) if text else None


def parameters(challenge):
    """The parameters of `Payment a="b", c="d"`: a backslash stands before a quote or a backslash that is meant (RFC 9110 section 5.6.4)."""
    scheme, _, rest = challenge.partition(" ")
    if scheme.lower() != "payment":
        raise SystemExit(f"not a payment challenge: {scheme}")
    found, name, value, quoted, escaped = {}, "", "", False, False
    for letter in rest + ",":
        if escaped:
            value, escaped = value + letter, False
        elif quoted and letter == "\\":
            escaped = True
        elif letter == '"':
            quoted = not quoted
        elif quoted:
            value += letter
        elif letter == "=":
            name, value = value.strip(), ""
        elif letter == ",":
            if name:
                found[name] = value
            name, value = "", ""
        else:
            value += letter
    return found


def decode(text):
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def encode(value):
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def main():
    demo = json.loads(os.environ.get("TOLLGATE_DEMO", "{}"))
    arguments = sys.argv[1:] or [demo[name] for name in ("base_url", "api_key", "paypal_url") if name in demo]
    if not 2 <= len(arguments) <= 3:
        raise SystemExit(__doc__)
    base, key = arguments[0].rstrip("/"), arguments[1]
    paypal = arguments[2].rstrip("/") if len(arguments) == 3 else None
    # The service's own word is in its keys, in the name of its plan, and in the name of a field.
    word = key.split("-")[1]
    url = f"{base}/commerce/subscriptions/{word}-pro/mpp"
    bearer = f"Bearer {key}"

    status, fields, said = send(url, {"Authorization": bearer})
    if status == 200:
        return print("The account has the plan already, until", said["subscription"]["current_period_end"])
    if status != 402:
        raise SystemExit(f"{status}: {json.dumps(said)}")
    challenge = parameters(fields["WWW-Authenticate"])
    request = decode(challenge["request"])
    subscription = request["methodDetails"]["subscriptionId"]
    print(f"402: {int(request['amount']) / 100:.2f} {request['currency']} each month, {said['detail']}")
    print("The owner of the account agrees at", said["approval_url"])
    if paypal:
        status, _, _ = send(f"{paypal}/_control/approve/{subscription}", {})
        print("Agreed to at the stand-in for PayPal:", status)
    else:
        input("Press Enter once they have. ")

    credential = encode({"challenge": challenge, "payload": {"type": "subscription", "subscriptionId": subscription}})
    headers = {"Authorization": f"Payment {credential}", f"X-{word.capitalize()}-Authorization": bearer}
    for _ in range(LOOKS):
        status, fields, said = send(url, headers)
        if status not in (402, 503):
            break
        print(f"{status}: {said['payment_state']}, {said['detail']}")
        if not paypal:
            input(f"Press Enter to ask again; the service would have us wait {fields.get('Retry-After', '5')} seconds. ")
    if status != 200:
        raise SystemExit(f"{status}: {json.dumps(said)}")
    receipt = fields.get("Payment-Receipt")
    print("200: the plan is", said["subscription"]["status"], "until", said["subscription"]["current_period_end"])
    if receipt:
        print("Receipt:", json.dumps(decode(receipt)))


if __name__ == "__main__":
    main()
