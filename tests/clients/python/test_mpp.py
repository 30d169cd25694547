"""The stock package `pympp` against `tollgate demo`: it pays for the plan by a payment method that it does not know."""

import asyncio
import sys
import unittest
import urllib.request

from demo import DEMO, new_key
from mpp import Credential, Receipt
from mpp.client import ClientMethod, Method, Mpp
from pydantic import BaseModel

URL = DEMO["base_url"] + "/commerce/subscriptions/svc-pro/mpp"


class Details(BaseModel):
    approvalUrl: str
    subscriptionId: str
    planId: str
    periodUnit: str
    periodCount: str


class Asked(BaseModel):
    amount: str
    currency: str
    methodDetails: Details


class Proof(BaseModel):
    type: str
    subscriptionId: str


PAYPAL = Method(name="paypal", intent="charge", request_model=Asked, payload_model=Proof)


def approve(subscription):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"{DEMO['paypal_url']}/_control/approve/{subscription}", data=b"")
    opener.open(request, timeout=60).close()


class Buying(unittest.TestCase):
    def test_the_plan_is_paid_for_and_its_receipt_read(self):
        # In both fields: the client puts its payment in the place of the first and leaves the second.
        bearer = f"Bearer {new_key(rate_class='free')}"
        headers = {"Authorization": bearer, "X-Svc-Authorization": bearer}
        seen = []

        async def pay(asked):
            challenge = asked.challenge
            subscription = challenge.request["methodDetails"]["subscriptionId"]
            seen.append(subscription)
            await asyncio.to_thread(approve, subscription)
            payload = {"type": "subscription", "subscriptionId": subscription}
            return Credential(challenge=challenge.to_echo(), payload=payload).to_authorization()

        async def buy():
            async with Mpp([ClientMethod(method=PAYPAL, create_credential=pay)]) as mpp:
                first = await mpp.fetch(URL, method="POST", headers=headers)
                again = await mpp.fetch(URL, method="POST", headers=headers)
                return first, again

        first, again = asyncio.run(buy())
        self.assertEqual(first.status_code, 200, first.text)
        self.assertEqual(first.json()["subscription"]["status"], "active")
        receipt = Receipt.from_payment_receipt(first.headers["payment-receipt"])
        self.assertEqual((receipt.status, receipt.method, [receipt.reference]), ("success", "paypal", seen))
        self.assertTrue(again.json()["already_active"])
        self.assertEqual(again.headers["payment-receipt"], first.headers["payment-receipt"])


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    sys.exit(bool(failed))
