"""The bodies of the requests that buy the plan."""

from schemas import ERROR
from statement import Area, equal, valid
from world import CHECKOUT, MPP, PAYMENT_ROUTES, X402

area = Area("purchase-requests")

PRODUCT_ID = "svc-pro-monthly"


# Checkout: an open body, which may be missing.

CHECKOUTS = [
    ("no body", None),
    ("an empty object", {}),
    ("product_id of the plan", {"product_id": PRODUCT_ID}),
    ("line_items of open objects", {"line_items": [{"item": {"id": PRODUCT_ID}, "quantity": 1, "other": 1}]}),
    ("any other member", {"product_id": PRODUCT_ID, "other": {"deep": [1]}}),
]

for text, body in CHECKOUTS:
    area.says(f"checkout, taken: {text}")(lambda world, body=body: world.post(CHECKOUT, body).is_status(201))

for text, body in [
    ("another product_id", {"product_id": "svc-pro-yearly"}),
    ("a product_id that is no string", {"product_id": 1}),
    ("line_items that are no array", {"line_items": {}}),
    ("line_items with something that is no object", {"line_items": ["plan"]}),
    ("an array", []),
]:

    @area.says(f"checkout, refused: {text}")
    def _(world, body=body):
        valid(world.post(CHECKOUT, body).is_status(400, 404).json(), ERROR)


# Payments: a closed body, which may be missing.

for path in PAYMENT_ROUTES:
    name = path.rsplit("/", 1)[1]
    for text, body in [
        ("no body", None),
        ("an empty object", {}),
        ("product_id of the plan", {"product_id": PRODUCT_ID}),
        ("an idempotency_key of one character", {"idempotency_key": "k"}),
        ("an idempotency_key of 255 characters", {"idempotency_key": "k" * 255}),
        ("both", {"product_id": PRODUCT_ID, "idempotency_key": "key-1"}),
    ]:

        @area.says(f"{name}, taken: {text}")
        def _(world, path=path, body=body):
            world.post(path, body, world.key()).is_status(402)

    for text, body, member in [
        ("another member", {"other": 1}, "other"),
        ("a payment in the body", {"payment": {"signature": "0x00"}}, "payment"),
        ("another product_id", {"product_id": "svc-pro-yearly"}, "product_id"),
        ("a product_id that is no string", {"product_id": 1}, "product_id"),
        ("an empty idempotency_key", {"idempotency_key": ""}, "idempotency_key"),
        ("an idempotency_key of 256 characters", {"idempotency_key": "k" * 256}, "idempotency_key"),
        ("an idempotency_key that is no string", {"idempotency_key": 1}, "idempotency_key"),
        ("an array", [], None),
        ("something that is no JSON", "{", None),
    ]:

        @area.says(f"{name}, refused with 400, and the member named: {text}")
        def _(world, path=path, body=body, member=member):
            headers = {"Content-Type": "application/json"}
            error = valid(world.post(path, body, headers=headers).is_status(400).json(), ERROR)["error"]
            if member:
                equal(error["param"], member)


@area.says("a body that is refused is answered alike by both payment routes")
def _(world):
    codes = [world.post(path, {"other": 1}).json()["error"]["code"] for path in (MPP, X402)]
    equal(codes[0], codes[1])
