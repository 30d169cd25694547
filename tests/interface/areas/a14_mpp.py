"""Buying by MPP: the challenge, the retry, the receipt."""

from purchase import by_mpp, offer, proof, retry
from schemas import ERROR, PROBLEM, SUBSCRIPTION, URI
from statement import Area, equal, holds, valid
from wire import from_base64, to_base64url
from world import MPP

area = Area("mpp")


def asked(world):
    key = world.key(rate_class="free")
    answer = world.post(MPP, None, key).is_status(402)
    return key, answer, *offer(answer)


@area.says("without a payment: 402 with a WWW-Authenticate challenge of the scheme Payment")
def _(world):
    _, _, scheme, parameters, _ = asked(world)
    equal(scheme, "Payment")
    for name in ("id", "realm", "method", "intent", "request"):
        holds(parameters.get(name), f"the parameter {name}", sorted(parameters))


for name, expected in {"intent": "charge", "method": "paypal"}.items():

    @area.says(f"the offer has {name} {expected}")
    def _(world, name=name, expected=expected):
        equal(asked(world)[3][name], expected)


for name, expected in {"amount": "19900", "currency": "USD"}.items():

    @area.says(f"the offer has {name} {expected}, a string")
    def _(world, name=name, expected=expected):
        equal(asked(world)[4][name], expected)


@area.says("the 402 names an approval URL")
def _(world):
    _, answer, _, _, request = asked(world)
    url = valid(answer.json()["approval_url"], URI)
    equal(request["methodDetails"]["approvalUrl"], url)


@area.says("the body of the 402 is application/problem+json")
def _(world):
    _, answer, *_ = asked(world)
    equal(answer.media_type(), "application/problem+json")
    valid(answer.json(), PROBLEM)


@area.says("a retry before the owner approved: 402 again")
def _(world):
    key, _, _, parameters, request = asked(world)
    answer = retry(world, key, parameters, request["methodDetails"]["subscriptionId"]).is_status(402)
    equal(answer.field("www-authenticate").split(" ")[0], "Payment")


@area.says("a retry after approval: 200, and the subscription is active")
def _(world):
    answer = by_mpp(world, world.key(rate_class="free")).is_status(200)
    equal(valid(answer.json(), SUBSCRIPTION)["success"], True)
    equal(answer.json()["subscription"]["status"], "active")


@area.says("Payment-Receipt is a receipt in base64url")
def _(world):
    value = by_mpp(world, world.key(rate_class="free")).is_status(200).field("payment-receipt")
    holds(not set(value) & set("+/="), "base64url without padding", value)
    receipt = from_base64(value)
    equal((receipt["method"], receipt["status"]), ("paypal", "success"))


@area.says("on the retry the account's bearer credential is in X-Svc-Authorization: without it 401")
def _(world):
    _, _, _, parameters, request = asked(world)
    headers = {"Authorization": proof(parameters, request["methodDetails"]["subscriptionId"])}
    world.post(MPP, None, None, headers).is_status(401)


@area.says("X-Svc-Authorization has the form Bearer, white space, credential")
def _(world):
    key, _, _, parameters, request = asked(world)
    payment = proof(parameters, request["methodDetails"]["subscriptionId"])
    for value in (key, f"Basic {key}", "Bearer", "Bearer "):
        world.post(MPP, None, None, {"Authorization": payment, "X-Svc-Authorization": value}).is_status(400, 401)
    for space in (" ", "   ", "\t"):
        headers = {"Authorization": payment, "X-Svc-Authorization": f"Bearer{space}{key}"}
        world.post(MPP, None, None, headers).is_status(402)


@area.says("a retry with the credential of another account is refused")
def _(world):
    _, _, _, parameters, request = asked(world)
    subscription = request["methodDetails"]["subscriptionId"]
    world.paypal(f"approve/{subscription}")
    other = world.key(rate_class="free")
    holds(retry(world, other, parameters, subscription).status != 200, "no plan for another account", 200)


@area.says("a retry with a changed challenge is refused: 402 with another problem, or 400")
def _(world):
    key, _, _, parameters, request = asked(world)
    subscription = request["methodDetails"]["subscriptionId"]
    honest = retry(world, key, parameters, subscription).is_status(402).json()["type"]
    cheaper = to_base64url(request | {"amount": "1"})
    for change in ({"id": "A" * 43}, {"request": cheaper}, {"method": "card"}):
        answer = retry(world, key, parameters | change, subscription).is_status(400, 402)
        holds(valid(answer.json(), PROBLEM)["type"] != honest, "another problem", answer.json())


@area.says("a payment that is not there yet: 402 again, and 200 when it is")
def _(world):
    key, _, _, parameters, request = asked(world)
    subscription = request["methodDetails"]["subscriptionId"]
    world.paypal(f"approve/{subscription}")
    world.paypal("lag?reads=1")
    answers = [retry(world, key, parameters, subscription).status for _ in range(6)]
    holds(set(answers) <= {200, 402} and answers[-1] == 200, "402 and then 200", answers)


@area.says("the account has the plan: 200 with already_active true, without a payment")
def _(world):
    key = world.key(rate_class="free")
    by_mpp(world, key).is_status(200)
    equal(world.post(MPP, None, key).is_status(200).json()["already_active"], True)


@area.says("an OAuth token with commerce:subscribe buys too")
def _(world):
    token = world.token(world.api, "commerce:subscribe")
    world.post(MPP, None, token).is_status(402)


@area.says("no credential: 401; without the scope: 403")
def _(world):
    valid(world.post(MPP, None, None).is_status(401).json(), ERROR)
    valid(world.post(MPP, None, world.token(world.api, "api:chat")).is_status(403).json(), ERROR)


@area.says("PayPal unavailable: 503 in the envelope of errors")
def _(world):
    valid(world.degraded.post(MPP, None).is_status(503).json(), ERROR)


@area.says("PayPal fails at the first request: 503, and the next one gets its challenge")
def _(world):
    key = world.key(rate_class="free")
    world.paypal("fault", {"operation": "subscribe", "effect": "unavailable", "times": 5})
    answer = world.post(MPP, None, key)
    holds(answer.status in (402, 503), "503, or 402 after a retry", answer.status)
    statuses = [world.post(MPP, None, key).status for _ in range(8)]
    equal(statuses[-1], 402)


@area.says("MPP is not set up: 503 in the envelope of errors, and no challenge")
def _(world):
    answer = world.bare.post(MPP, None).is_status(503)
    valid(answer.json(), ERROR)
    equal(answer.headers.get("www-authenticate"), None)
