"""One HTTP request, and its response in parts; event streams; fields with parameters."""

import base64
import http.client
import json
import re
from urllib.parse import urlencode, urlsplit

from statement import Unmet, shown

TIMEOUT_SECS = 60


class Response:
    """A status, header fields (looked up without regard to case) and a body."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        try:
            return json.loads(self.body)
        except ValueError:
            raise Unmet("a body of JSON", f"{self.status} {self.text()}") from None

    def text(self):
        return self.body.decode("utf-8", "replace")

    def media_type(self):
        return self.headers.get("content-type", "").split(";")[0].strip()

    def is_status(self, *statuses):
        if self.status not in statuses:
            raise Unmet("status " + " or ".join(map(str, statuses)), f"{self.status} {shown(self.text())}")
        return self

    def field(self, name):
        value = self.headers.get(name)
        if value is None:
            raise Unmet(f"the header field {name}", f"{self.status} with {sorted(self.headers.keys())}")
        return value

    def events(self):
        """The values of the `data` lines of an event stream."""
        blocks = re.split(r"\r?\n\r?\n", self.text())
        lines = [line for block in blocks for line in block.splitlines() if line.startswith("data:")]
        return [line.removeprefix("data:").removeprefix(" ") for line in lines]

    def chunks(self):
        """The events of a completion, without the end mark."""
        return [json.loads(event) for event in self.events() if event != "[DONE]"]


def send(method, url, headers=None, body=None):
    """Sends a request on a connection of its own. A `dict` or `list` as body is sent as JSON."""
    headers = dict(headers or {})
    if isinstance(body, (dict, list)):
        body = json.dumps(body).encode()
        headers.setdefault("Content-Type", "application/json")
    elif isinstance(body, str):
        body = body.encode()
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_SECS)
    try:
        connection.request(method, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), body, headers)
        answer = connection.getresponse()
        return Response(answer.status, answer.headers, answer.read())
    except http.client.HTTPException as error:
        raise Unmet(f"a response to {method} {parts.path}", repr(error)) from None
    finally:
        connection.close()


def form(**fields):
    """A body of `application/x-www-form-urlencoded`, and its header field."""
    return {"Content-Type": "application/x-www-form-urlencoded"}, urlencode(fields)


def challenge(value):
    """A challenge of HTTP authentication as its scheme and its parameters (RFC 9110 section 11.6.1)."""
    scheme, _, rest = value.partition(" ")
    found = re.findall(r'([A-Za-z_-]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))', rest)
    return scheme, {name: re.sub(r"\\(.)", r"\1", quoted) or plain for name, quoted, plain in found}


def from_base64(text):
    """JSON in base64 of either alphabet, with or without padding."""
    try:
        return json.loads(
            base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_" if set("-_") & set(text) else None)
        )
    except ValueError:
        raise Unmet("JSON in base64", text) from None


def to_base64url(value):
    text = json.dumps(value, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()
