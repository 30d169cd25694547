"""Buying by UCP: a platform that speaks the protocol, from discovery to the order, and `spck-conformance`, a public suite for UCP servers,
against the protocol's address, over TLS 1.3.

The suite knows no credential, so a proxy (`ucp_proxy.py`) adds one. What it reports beside passes is listed here with its reason; anything else fails the
test.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import demo
from ucp_proxy import Proxy

# What the suite cannot find out by itself.
CONFIG = {
    "product_id": "svc-pro-monthly",
    "currency": "USD",
    "out_of_stock_id": "sold-out",
    "payment": {"escalation_payment": {"payment": {"instruments": []}}},
    "negotiation": {"validates_profile_url": True},
    "eligibility": {"unrecognized": "com.example.loyalty_gold"},
    "unavailable": {"business_outcome": True},
}

# Checks that this service cannot pass, and why.
DEVIATES = {
    "eligibility.unrecognized_not_blocking": "it completes with a card that it brings; here the owner agrees at PayPal, so nothing is "
    "completed without a person",
}

# Kinds of checks that need what is not there, by how their names begin.
NOT_TESTED = {
    "signature.": "answers are not signed, and without profiles being fetched no signature of a request can be verified",
    "identity.": "they drive a browser through sign-in; tests/clients/python/test_authlib.py and tests/browser do",
    "negotiation.": "they need profiles that are fetched, which is off",
    "discovery.": "they need the suite's own schema validator, which its package lacks; tests/e2e/ucp holds the profile against the schemas",
    "transport.": "the suite looks for a program that its package lacks; the proxy asks for TLS 1.3 and gets it",
    "checkout.https_tls13_minimum": "as for `transport.`",
    "profile.leaf_no_supported_versions": "one version is spoken",
    "payment.no_credential_echo": "it completes with a card",
    "payment.handlers_context_filtered": "no payment handler is offered",
    "totals.sublines_sum_invariant": "totals have no lines below them",
    "eligibility.": "no claim of a buyer is ever recognised",
    "idempotency.": "they need hooks into the server's clock and store; tests/e2e/ucp and crates/payments/purchase/tests/idempotency.rs have them",
}


class Buying(unittest.TestCase):
    def test_an_account_buys_the_plan_by_a_checkout(self):
        address = f"ucp-{os.getpid()}@example.com"
        account = demo.tollgate("account", "create", "--email", address, "--class", "free")["id"]
        secret = demo.tollgate("key", "create", "--account", account, "--name", "platform")["secret"]
        demo.used(secret)
        script = os.path.join(os.path.dirname(__file__), "ucp_platform.py")
        urls = [demo.DEMO[name] for name in ("paypal_url", "mailbox_url")]
        command = [sys.executable, "-B", script, demo.DEMO["base_url"], secret, *urls, address]
        for outcome in ("Order sub_", "The account has the plan already"):
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(outcome, done.stdout)


class Conformance(unittest.TestCase):
    def test_nothing_deviates_that_can_apply(self):
        proxy = Proxy(demo.DEMO, demo.new_key())
        self.addCleanup(proxy.close)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
            json.dump(CONFIG, config)
            config.flush()
            command = [os.path.join(os.path.dirname(sys.executable), "spck-conformance"), "--server", proxy.url]
            done = subprocess.run(
                [*command, "--config", config.name, "--json"], capture_output=True, text=True, timeout=300, check=False
            )
        report = json.loads(done.stdout)
        found = {}
        for check in report["checks"]:
            found.setdefault(check["status"], []).append(check["id"])
        self.assertEqual(sorted(found.get("deviation", [])), sorted(DEVIATES))
        self.assertGreaterEqual(len(found.get("clean-pass", [])), 40)
        for name in found.get("not-tested", []):
            self.assertTrue(any(name.startswith(known) for known in NOT_TESTED), f"{name} was not tested, and is not listed in NOT_TESTED")


if __name__ == "__main__":
    unittest.main()
