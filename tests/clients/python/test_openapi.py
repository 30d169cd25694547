"""The OpenAPI document of `tollgate demo`: it is one by the published schema, and what is served is what it says."""

import base64
import json
import unittest
import urllib.error
import urllib.request

import jsonschema
from openapi_spec_validator import validate

from demo import DEMO, MODEL, new_key

ASK = {"model": MODEL, "messages": [{"role": "user", "content": "May I pass?"}]}


def fetch(path, body=None, key=DEMO["api_key"]):
    """Status, fields and JSON body of an answer."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    request = urllib.request.Request(DEMO["base_url"] + path, data=data, headers=headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, answer.headers, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.headers, json.load(refused)


def medias(value, where):
    """Every description of a body with its place in the document."""
    if isinstance(value, dict):
        if "schema" in value and "in" not in value:
            yield where, value
        for name, inner in value.items():
            yield from medias(inner, f"{where}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from medias(inner, f"{where}/{number}")


class OpenApi(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        _, _, cls.document = fetch("/openapi.json", key=None)

    def schema(self, where):
        """The validator of a schema of the document, with what it refers to."""
        whole = {"$ref": f"#{where}", "components": self.document["components"], "paths": self.document["paths"]}
        return jsonschema.Draft202012Validator(whole, format_checker=jsonschema.FormatChecker())

    def answer_of(self, operation, status):
        """Where the schema of an operation's JSON answer stands."""
        for path, methods in self.document["paths"].items():
            for method, described in methods.items():
                if described["operationId"] == operation:
                    answer = described["responses"][str(status)]
                    if "$ref" in answer:
                        return answer["$ref"][1:] + "/content/application~1json/schema"
                    media = next(iter(answer["content"])).replace("/", "~1")
                    path = path.replace("/", "~1")
                    return f"/paths/{path}/{method}/responses/{status}/content/{media}/schema"
        self.fail(f"no operation is called {operation}")

    def check(self, operation, status, got):
        found, headers, body = got
        self.assertEqual(found, status, body)
        self.schema(self.answer_of(operation, status)).validate(body)
        return headers, body

    def test_it_is_an_openapi_document(self):
        validate(self.document)
        self.assertEqual(self.document["openapi"], "3.1.0")
        self.assertEqual(self.document["info"]["version"], "1.0.0")
        self.assertEqual(self.document["servers"][0]["url"], DEMO["base_url"])

    def test_its_examples_are_what_it_says(self):
        found = 0
        for where, media in medias(self.document["paths"], "/paths"):
            if "example" in media:
                found += 1
                with self.subTest(where):
                    self.schema(f"{where}/schema").validate(media["example"])
        self.assertGreater(found, 8)

    def test_its_offers_are_ones_by_the_draft_that_defines_them(self):
        """draft-payment-discovery-01, appendix "JSON Schema for x-payment-info"; each paid operation answers 402 and describes its 200."""
        offer = {
            "type": "object",
            "required": ["intent", "method", "amount"],
            "properties": {
                "intent": {"enum": ["charge", "session"]},
                "method": {"type": "string"},
                "amount": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^(0|[1-9][0-9]*)$"}]},
                "currency": {"type": "string"},
                "description": {"type": "string"},
            },
            "additionalProperties": False,
        }
        offers = {"type": "array", "minItems": 1, "items": offer}
        info = {"type": "object", "required": ["offers"], "properties": {"offers": offers}, "additionalProperties": False}
        paid = {}
        for methods in self.document["paths"].values():
            for described in methods.values():
                if "x-payment-info" in described:
                    jsonschema.Draft202012Validator(info).validate(described["x-payment-info"])
                    self.assertIn("402", described["responses"])
                    self.assertIn("schema", described["responses"]["200"]["content"]["application/json"])
                    paid[described["operationId"]] = described["x-payment-info"]["offers"][0]["amount"]
        self.assertEqual(paid, {"purchaseSuperProWithMpp": "19900", "purchaseSuperProWithX402": "199000000"})
        service = self.document["x-service-info"]
        self.assertTrue(all(isinstance(one, str) for one in service["categories"]))
        self.assertEqual(set(service["docs"]), {"homepage", "apiReference", "llms"})

    def test_answers_are_what_it_says(self):
        self.check("listModels", 200, fetch("/v1/models"))
        self.check("createChatCompletion", 200, fetch("/v1/chat/completions", ASK))
        text = {"model": MODEL, "prompt": ["A toll is", "A gate is"]}
        self.check("createCompletion", 200, fetch("/v1/completions", text))
        self.check("getDeveloperOnboarding", 200, fetch("/developer/onboarding", key=None))
        _, product = self.check("getSuperProProduct", 200, fetch("/commerce/products/svc-pro", key=None))
        self.assertEqual(set(product["purchase"]), {"ucp", "mpp", "x402", "paypal"})

    def test_what_a_program_is_asked_for_is_what_it_says(self):
        key = new_key(rate_class="free")
        headers, problem = self.check("purchaseSuperProWithX402", 402, fetch("/commerce/subscriptions/svc-pro/x402", {}, key=key))
        self.assertEqual(json.loads(base64.b64decode(headers["PAYMENT-REQUIRED"]))["accepts"][0]["amount"], "199000000")
        self.assertEqual((problem["payment_state"], problem["retry_action"]), ("required", "pay"))
        headers, problem = self.check("purchaseSuperProWithMpp", 402, fetch("/commerce/subscriptions/svc-pro/mpp", {}, key=key))
        self.assertTrue(headers["WWW-Authenticate"].startswith("Payment "))
        self.assertEqual(headers["Content-Type"], "application/problem+json")
        self.assertEqual((problem["payment_state"], problem["retry_action"]), ("required", "approve_then_retry"))
        headers, session = self.check("createUcpCheckoutSession", 201, fetch("/ucp/v1/checkout-sessions", {}, key=key))
        self.assertEqual(headers["Location"], f"{DEMO['base_url']}/ucp/v1/checkout-sessions/{session['id']}")
        path = headers["Location"].removeprefix(DEMO["base_url"])
        _, again = self.check("getUcpCheckoutSession", 200, fetch(path, key=key))
        self.assertEqual(again["id"], session["id"])
        self.check("getUcpCheckoutSession", 404, fetch(path, key=new_key()))

    def test_refusals_are_what_it_says(self):
        chat = "/v1/chat/completions"
        self.check("createChatCompletion", 400, fetch(chat, {"messages": []}))
        headers, _ = self.check("createChatCompletion", 401, fetch(chat, ASK, key=None))
        self.assertTrue(headers["WWW-Authenticate"].startswith("Bearer "))
        _, body = self.check("createChatCompletion", 402, fetch(chat, ASK, key=new_key()))
        self.assertIn("topup_url", body["error"])
        self.check("listModels", 405, fetch("/v1/models", {}))

    def test_a_refusal_for_asking_too_often_has_every_field_that_it_names(self):
        key = new_key(credits="1", rate_class="free")
        for _ in range(1000):
            got = fetch("/v1/models", key=key)
            if got[0] == 429:
                break
        headers, _ = self.check("listModels", 429, got)
        for name in self.document["components"]["responses"]["Error429"]["headers"]:
            self.assertIsNotNone(headers[name], name)

    def test_requests_that_it_allows_are_taken_and_others_are_not(self):
        schema = self.schema("/components/schemas/ChatCompletionRequest")
        for member, value in [
            ("temperature", 0),
            ("temperature", -1),
            ("max_tokens", 1),
            ("max_tokens", 0),
            ("stream", "yes"),
            ("tools", [{}]),
            ("tools", {}),
            ("not_described", [1]),
        ]:
            body = {**ASK, member: value}
            status, _, answer = fetch("/v1/chat/completions", body)
            self.assertEqual(schema.is_valid(body), status == 200, f"{member} {value}: {answer}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
