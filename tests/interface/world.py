"""What the statements share: both gateways, a signed-in person, tokens by resource and scope, expectations of an operation."""

import functools

from gateway import BARE, DEGRADED, SETTINGS, BareGateway, Gateway, unique
from person import Client, Person
from schemas import ERROR
from statement import equal, holds, valid

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
MODELS = "/v1/models"
PRODUCT = "/commerce/products/svc-pro"
ONBOARDING = "/developer/onboarding"
CHECKOUT = "/ucp/v1/checkout-sessions"
MPP = "/commerce/subscriptions/svc-pro/mpp"
X402 = "/commerce/subscriptions/svc-pro/x402"

# Every operation: its method and path, the scope that it needs; below, what it answers to `World.call` with a valid credential.
OPERATIONS = {
    "listModels": ("GET", MODELS, "api:models"),
    "createChatCompletion": ("POST", CHAT, "api:chat"),
    "createCompletion": ("POST", TEXT, "api:completions"),
    "getSuperProProduct": ("GET", PRODUCT, None),
    "getDeveloperOnboarding": ("GET", ONBOARDING, None),
    "createUcpCheckoutSession": ("POST", CHECKOUT, "commerce:subscribe"),
    "purchaseSuperProWithMpp": ("POST", MPP, "commerce:subscribe"),
    "purchaseSuperProWithX402": ("POST", X402, "commerce:subscribe"),
}
ANSWERS = {
    "listModels": 200,
    "createChatCompletion": 200,
    "createCompletion": 200,
    "getSuperProProduct": 200,
    "getDeveloperOnboarding": 200,
    "createUcpCheckoutSession": 201,
    "purchaseSuperProWithMpp": 402,
    "purchaseSuperProWithX402": 402,
}
SECURED = {name: operation for name, operation in OPERATIONS.items() if operation[2]}
PAYMENT_ROUTES = (MPP, X402)


def ask(**members):
    """A chat request that no other one equals, with these members. A member of the value None is sent as null."""
    return {"model": "demo-small", "messages": [{"role": "user", "content": f"Question {unique()}"}]} | members


def prompt(**members):
    return {"model": "demo-small", "prompt": f"Question {unique()}"} | members


def without(body, *members):
    return {name: value for name, value in body.items() if name not in members}


def body_of(path):
    """A valid body for a path."""
    return (
        ask() if path == CHAT else prompt() if path == TEXT else {} if path.startswith(("/ucp", "/commerce")) else None
    )


class World(Gateway):
    """The gateway that most statements are checked at."""

    def __init__(self, program, folder):
        super().__init__(program, folder, "main", SETTINGS)
        self.program, self.folder = program, folder
        self._degraded = self._bare = None

    @property
    def degraded(self):
        """A gateway whose payment providers cannot be reached."""
        if self._degraded is None:
            self._degraded = Gateway(self.program, self.folder, "degraded", SETTINGS + DEGRADED)
        return self._degraded

    @property
    def bare(self):
        """A gateway whose settings name no payment provider."""
        if self._bare is None:
            self._bare = BareGateway(self.program, self.folder, "bare", BARE)
        return self._bare

    def close(self):
        for gateway in (self._degraded, self._bare, self):
            if gateway is not None:
                gateway.stop()

    @functools.cached_property
    def person(self):
        """The owner of an account with credits, in a browser."""
        return self.new_person("1000")

    def new_person(self, credits=None, rate_class="pro"):
        address = f"person-{unique()}@example.com"
        return Person(self, address, self.account(credits, rate_class, email=address))

    @property
    def api(self):
        return f"{self.base}/v1"

    def token(self, resource, *scopes):
        """An access token of the person for a resource, with these scopes."""
        tokens = self.__dict__.setdefault("tokens", {})
        if (resource, scopes) not in tokens:
            tokens[resource, scopes] = Client(self, resource, " ".join(scopes)).token(self.person)
        return tokens[resource, scopes]

    def balance(self, key="owner"):
        return self.get(MODELS, key).is_status(200).json()["x_svc"]["credits_remaining"]

    # Expectations.

    def takes(self, path, body):
        """A body that is answered."""
        return self.post(path, body).is_status(200).json()

    def refuses(self, path, body, param=None, status=400):
        """A body that is refused in the envelope of errors, by the name of the member that is wrong."""
        answer = self.post(path, body).is_status(status)
        error = valid(answer.json(), ERROR)["error"]
        if param is not None:
            holds(str(error["param"]).startswith(param), f"error.param {param}", error)
        return error

    def admits(self, operation, key):
        """A call that is answered as with a valid credential."""
        return self.call(operation, key).is_status(ANSWERS[operation])

    def pings(self, path, token):
        """A request to an MCP resource that its server answers."""
        accept = {"Accept": "application/json, text/event-stream"}
        answer = self.post(path, {"jsonrpc": "2.0", "id": 1, "method": "ping"}, token, accept)
        # The stand-in knows no request outside a session; whatever it answers is JSON-RPC, and no refusal of the gateway is.
        holds('"jsonrpc"' in answer.text(), "an answer of the MCP server", f"{answer.status} {answer.text()}")
        return answer

    def call(self, operation, key=None, headers=None):
        method, path, _ = OPERATIONS[operation]
        if method == "GET":
            return self.get(path, key, headers)
        return self.post(path, body_of(path), key, headers)


def no_token(answer):
    """That a credential was refused as none of this resource."""
    answer.is_status(401)
    scheme = answer.field("www-authenticate").split(" ")[0]
    equal(scheme, "Bearer")
