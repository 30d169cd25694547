"""Buying the plan by each route, as the owner of a new account."""

from eth_account import Account
from x402 import x402ClientSync
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm import EthAccountSigner
from x402.mechanisms.evm.exact import ExactEvmScheme

from statement import holds
from wire import challenge, from_base64, send, to_base64url
from world import CHECKOUT, MPP, X402


def offer(answer):
    """The parameters of the challenge of a 402, and its request in the clear."""
    scheme, parameters = challenge(answer.field("www-authenticate"))
    return scheme, parameters, from_base64(parameters["request"])


def proof(parameters, subscription):
    """The field values of a retry with a payment credential."""
    payload = {"type": "subscription", "subscriptionId": subscription}
    return f"Payment {to_base64url({'challenge': parameters, 'payload': payload})}"


def retry(world, key, parameters, subscription, body=None):
    headers = {"Authorization": proof(parameters, subscription), "X-Svc-Authorization": f"Bearer {key}"}
    return world.post(MPP, body, None, headers)


def by_mpp(world, key):
    """The answer to the retry after the owner has approved the payment."""
    answer = world.post(MPP, None, key).is_status(402)
    _, parameters, request = offer(answer)
    subscription = request["methodDetails"]["subscriptionId"]
    world.paypal(f"approve/{subscription}")
    return retry(world, key, parameters, subscription)


def by_x402(world, key):
    """The answer to a signed transfer of a new wallet."""
    client = x402ClientSync()
    client.register("eip155:*", ExactEvmScheme(signer=EthAccountSigner(Account.create())))
    client.set_spend_controls({"max_amount_per_payment": "$199"})
    return x402_requests(client).post(world.base + X402, json={}, headers=world.bearer(key), timeout=60)


def by_ucp(world, person, key):
    """The URL of a checkout that its owner approves in a browser."""
    answer = world.post(CHECKOUT, {}, key).is_status(201)
    url = answer.field("location")
    path, page = person.open(answer.json()["continue_url"])
    if path.startswith("/sign-in"):
        path, page = person.sign_in(page)
    page = person.follow(person.submit(page, path))[1]
    holds("ba_token" in page.text(), "a page with a link to PayPal", page.text())
    listed = send("GET", f"{world.demo['paypal_url']}/_control/subscriptions").json()["subscriptions"]
    world.paypal(f"approve/{listed[-1]['id']}")
    return url
