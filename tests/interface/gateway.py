"""A running `tollgate demo` with settings of its own: addresses, commands, and the controls of its stand-ins."""

import contextlib
import functools
import itertools
import json
import os
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from wire import send

READY_SECS = 120
LEAVE_SECS = 60

# The URL of discovery differs from the base URL, so that both are visible. Both names are those of this machine.
SETTINGS = """
[service]
root_url = "http://localhost:{port}"

[plan]
included_device_slots = 3
computer_use_tasks_per_month = 500
features = ["More requests"]

[credits]
signup_grant = "0"

[limits]
classes.pro = {{ quota = 100000, window_secs = 60 }}
classes.register = {{ quota = 10000, window_secs = 60, burst = 10000 }}
classes.authorize = {{ quota = 10000, window_secs = 60 }}
classes.oauth = {{ quota = 10000, window_secs = 60 }}
classes.mcp = {{ quota = 10000, window_secs = 60 }}
classes.probe = {{ quota = 3, window_secs = 60 }}
failed_credentials = {{ quota = 100000, window_secs = 60 }}
missing_credentials = {{ quota = 100000, window_secs = 60 }}

[onboarding.free_tier]
apk_download_url = "https://example.com/app.apk"
"""

# PayPal and the facilitator refuse connections; one route is deprecated.
DEGRADED = """
[payments.paypal]
base_url = "http://127.0.0.1:{closed}"

[payments.x402]
facilitator_url = "http://127.0.0.1:{closed}"
rpc_url = "http://127.0.0.1:{closed}/rpc"

[[route_change]]
path = "/v1/completions"
deprecated_at = "2026-01-01T00:00:00Z"
sunset_at = "2036-01-01T00:00:00Z"
successor = "/v1/chat/completions"
"""

# Nothing is for sale, and the model says nothing about itself that it need not say. There is no stand-in.
BARE = """
[[listener]]
address = "127.0.0.1:{port}"

[admin]
address = "127.0.0.1:0"

[store]
url = "sqlite:bare.db"

[[provider]]
name = "none"
base_url = "http://127.0.0.1:{closed}"

[[model]]
id = "bare"
providers = [{{ provider = "none", model = "bare" }}]
price = {{ input = "1", output = "1" }}

[telemetry]
access_log = "access.log"
"""

_numbers = itertools.count(1)


def unique():
    """A number that occurs once in a run, and so does a text that contains it."""
    return next(_numbers)


_secrets = set()


def used(secret):
    """Notes a secret: output does not contain it."""
    if secret not in _secrets:
        _secrets.add(secret)
        if path := os.environ.get("TOLLGATE_TEST_SECRETS"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(secret + "\n")
    return secret


def without_secrets(text):
    for secret in _secrets:
        text = text.replace(secret, "[secret]")
    return text


def free_ports():
    """A free port whose successor is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port


class Gateway:
    """The process, started with settings that override those of the demo."""

    def __init__(self, program, folder, name, settings):
        self.program, self.port = program, None
        file = Path(folder, f"{name}.toml")
        logs = os.environ.get("TOLLGATE_TEST_LOGS", folder)
        self.log = Path(logs, f"interface-{name}.log")
        # Between the choice of a port and its use another process may take it.
        for _ in range(5):
            self.port = free_ports()
            file.write_text(settings.format(port=self.port, closed=free_ports()), encoding="utf-8")
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    [program, *self.arguments(file)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            if self.is_ready(file):
                break
            self.stop()
        else:
            raise RuntimeError(f"the gateway did not start: {self.log.read_text(encoding='utf-8')}")
        self.base = self.demo["base_url"]
        self.root = f"http://localhost:{self.port}"

    def arguments(self, file):
        return ["demo", "--json", "--port", str(self.port), "--config", str(file)]

    def is_ready(self, _file):
        line = self.first_line()
        if line:
            self.demo = json.loads(line)
            used(self.demo["api_key"])
        return bool(line)

    def first_line(self):
        lines = []
        reader = threading.Thread(target=lambda: lines.append(self.process.stdout.readline()), daemon=True)
        reader.start()
        reader.join(READY_SECS)
        return lines[0] if lines else None

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(LEAVE_SECS)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()

    def command(self, *arguments):
        """What a command of the program prints as JSON."""
        command = [self.program, *arguments, "--config", self.demo["config_file"], "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"`{' '.join(arguments)}` ended with {done.returncode}: {done.stderr}")
        return json.loads(done.stdout)

    def account(self, credits=None, rate_class="pro", email=None, phone=None):
        """The id of a new account."""
        login = ("--phone", phone) if phone else ("--email", email or f"account-{unique()}@example.com")
        account = self.command("account", "create", *login, "--class", rate_class)["id"]
        if credits:
            reference = f"grant-{unique()}"
            self.command("credits", "grant", "--account", account, "--amount", credits, "--reference", reference)
        return account

    def key_of(self, account, *options):
        secret = self.command("key", "create", "--account", account, "--name", f"key-{unique()}", *options)["secret"]
        return used(secret)

    def key(self, credits="100", rate_class="pro"):
        """The key of a new account."""
        return self.key_of(self.account(credits, rate_class))

    @functools.cached_property
    def owner(self):
        """The id of an account with credits for all that does not change it."""
        return self.account("100000")

    @functools.cached_property
    def owner_key(self):
        return self.key_of(self.owner)

    # Requests. Without a credential of its own a request has the owner's key; `key=None` sends none.

    def bearer(self, key):
        if key is None:
            return {}
        return {"Authorization": f"Bearer {self.owner_key if key == 'owner' else key}"}

    def get(self, path, key=None, headers=None):
        return send("GET", self.url(path), self.bearer(key) | (headers or {}))

    def post(self, path, body=None, key="owner", headers=None):
        return send("POST", self.url(path), self.bearer(key) | (headers or {}), body)

    def url(self, path):
        return path if "://" in path else self.base + path

    # Stand-ins.

    def provider(self, action, body=None):
        method = "GET" if action == "calls" else "POST"
        return send(method, f"{self.demo['provider_url']}/_control/{action}", None, body).is_status(200).json()

    def provider_calls(self, marker):
        """The bodies with `marker` in them that reached the model provider."""
        return [json.loads(call["body"]) for call in self.provider("calls")["calls"] if marker in call["body"]]

    def paypal(self, action, body=None):
        return send(
            "POST", f"{self.demo['paypal_url']}/_control/{action}", None, body if body is not None else b""
        ).is_status(200)

    def facilitator(self, action, body=None):
        url = f"{self.demo['facilitator_url']}/_control/{action}"
        return send("POST", url, None, body if body is not None else b"").is_status(200)

    def messages(self, address):
        url = f"{self.demo['mailbox_url']}/_control/messages?to={address.replace('@', '%40').replace('+', '%2B')}"
        return send("GET", url).is_status(200).json()


class BareGateway(Gateway):
    """A gateway of `tollgate serve` without stand-ins."""

    def arguments(self, file):
        return ["serve", "--config", str(file)]

    def is_ready(self, file):
        self.demo = {"base_url": f"http://127.0.0.1:{self.port}", "config_file": str(file)}
        until = time.monotonic() + READY_SECS
        while self.process.poll() is None and time.monotonic() < until:
            # The listener is open before the commands can reach the gateway; an answer comes after that.
            with contextlib.suppress(OSError):
                return send("GET", f"{self.demo['base_url']}/developer/onboarding").status == 200
        return False
