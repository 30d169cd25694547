"""What both parties need: the gateway that `tollgate demo` runs, accounts on it, and the model provider's handles."""

import itertools
import json
import os
import subprocess
import urllib.request

DEMO = json.loads(os.environ["TOLLGATE_DEMO"])
MODEL = DEMO["model"]
BASE_URL = DEMO["base_url"] + "/v1"

# One fixed sentence, and one token a word: what the stand-in provider says and how it counts.
ANSWER = "The toll is paid and the gate stands open, so drive on while the light lasts."
ANSWER_TOKENS = 16

_numbers = itertools.count(1)


def tollgate(*arguments):
    """What a `tollgate` command with `--json` prints."""
    command = [os.environ["TOLLGATE_BIN"], *arguments, "--config", DEMO["config_file"], "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return json.loads(done.stdout)


def new_key(credits=None, rate_class="pro"):
    """The secret of a key of a new account, which has `credits` (none at all without) and the limits of `rate_class`."""
    number = f"{os.getpid()}-{next(_numbers)}"
    account = tollgate("account", "create", "--email", f"{number}@example.com", "--class", rate_class)["id"]
    if credits is not None:
        tollgate("credits", "grant", "--account", account, "--amount", credits, "--reference", number)
    secret = tollgate("key", "create", "--account", account, "--name", "stock client")["secret"]
    used(secret)
    return secret


def used(secret):
    """Notes a secret for the search through all output."""
    if path := os.environ.get("TOLLGATE_TEST_SECRETS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(secret + "\n")


def gate():
    """A unique name for a point where the provider stops."""
    return f"python-{os.getpid()}-{next(_numbers)}"


def provider(action, **body):
    """Works a handle of the stand-in provider."""
    data = None if action == "calls" else json.dumps(body).encode()
    request = urllib.request.Request(f"{DEMO['provider_url']}/_control/{action}", data=data)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)


def calls(marker):
    """The calls that reached the provider with `marker` in their body."""
    return [call for call in provider("calls")["calls"] if marker in call["body"]]
