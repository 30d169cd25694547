"""The stock `x402` package paying the gateway: its client refuses 199 USD until its limit is raised, then signs, and the plan is active."""

import json
import unittest

import requests
from demo import DEMO, new_key
from eth_account import Account
from x402 import x402ClientSync
from x402.http.clients.requests import x402_requests
from x402.mechanisms.evm import EthAccountSigner
from x402.mechanisms.evm.exact import ExactEvmScheme

BUY = DEMO["base_url"] + "/commerce/subscriptions/svc-pro/x402"


def wallet(cap=None):
    """A client with a new wallet, whose cap stays as it is in stock clients without `cap`."""
    client = x402ClientSync()
    client.register("eip155:*", ExactEvmScheme(signer=EthAccountSigner(Account.create())))
    if cap is not None:
        client.set_spend_controls({"max_amount_per_payment": cap})
    return client


class Buying(unittest.TestCase):
    def setUp(self):
        self.headers = {"Authorization": f"Bearer {new_key(rate_class='free')}"}

    def test_a_stock_client_buys_when_its_cap_is_raised(self):
        with self.assertRaises(Exception):
            x402_requests(wallet()).post(BUY, json={}, headers=self.headers, timeout=60)
        session = x402_requests(wallet("$199"))
        paid = session.post(BUY, json={}, headers=self.headers, timeout=60)
        self.assertEqual(paid.status_code, 200, paid.text)
        self.assertFalse(paid.json()["already_active"])
        self.assertIn("PAYMENT-RESPONSE", paid.headers)
        again = session.post(BUY, json={}, headers=self.headers, timeout=60)
        self.assertTrue(again.json()["already_active"], json.dumps(again.json()))


if __name__ == "__main__":
    unittest.main()
