"""What packages/walk has: checks, the blocks of a document, the shell of the operator, and a stand-in for a provider."""

import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import textwrap
import threading
import time
import traceback

CHECKOUT = pathlib.Path("/checkout")
PROVIDER_KEY = "sk-of-the-provider"

counts = {"passed": 0, "failed": 0}


def check(what, works):
    """Passes if the function returns; what it raises is printed."""
    try:
        works()
    except Exception as error:  # Whatever it is, the next steps are tried.
        counts["failed"] += 1
        said = str(error) if isinstance(error, AssertionError) and str(error) else traceback.format_exc()
        print(f"FAILED: {what}\n{textwrap.indent(said, '  ')}", flush=True)
    else:
        counts["passed"] += 1
        print(f"ok: {what}", flush=True)


def until(holds, secs=20):
    """What the function returns once that is true."""
    end = time.monotonic() + secs
    while not (found := holds()):
        assert time.monotonic() < end, f"not within {secs} s"
        time.sleep(0.05)
    return found


class Document:
    """The blocks of a document: heading, language, text."""

    def __init__(self, name):
        self.text = (CHECKOUT / name).read_text()
        self.blocks, heading, block = [], "", None
        for line in self.text.splitlines():
            fence = re.match(r" *```(\w*)$", line)
            if block is not None and not fence:
                block[2].append(line)
            elif block is not None:
                self.blocks.append((block[0], block[1], textwrap.dedent("\n".join(block[2])) + "\n"))
                block = None
            elif fence:
                block = (heading, fence[1], [])
            elif title := re.match(r"#+ (.*)", line):
                heading = title[1]
        self.run = set()

    def block(self, heading, number=1, language="sh"):
        found = [text for there, of, text in self.blocks if (there, of) == (heading, language)]
        assert len(found) >= number, f"the document has no block {number} of {language} below `{heading}`"
        if language == "sh":
            self.run.add((heading, number))
        return found[number - 1]

    def left(self):
        """The blocks of commands that were not run."""
        numbers, left = {}, []
        for heading, language, text in self.blocks:
            if language == "sh":
                numbers[heading] = numbers.get(heading, 0) + 1
                if (heading, numbers[heading]) not in self.run:
                    left.append(f"{heading}, block {numbers[heading]}: {text.splitlines()[0]}")
        return left


class Shell:
    """The shell of the operator, root's."""

    def __init__(self):
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.environment = {**os.environ, "PATH": path, "SYSTEMD_EDITOR": "/packages/editor", "TERM": "dumb", "SYSTEMD_PAGER": "cat"}

    def run(self, text, typed="", ends=(0,), folder=CHECKOUT, interrupted=None):
        """Runs a block. `interrupted` is a text in its output after which Ctrl-C is pressed."""
        for name, value in re.findall(r"^export (\w+)=(\S+)$", text, re.M):
            self.environment[name] = value
        # The comments beside `systemctl edit` are what the operator writes there.
        edited = "".join(f"{line}\n" for line in re.findall(r"(?:^| )# ?(.*)$", text, re.M)) if "systemctl edit" in text else ""
        command = ["bash", "-e", "-o", "pipefail", "-c", text]
        if edited:
            command = ["script", "-qefc", text, "/dev/null"]
        process = subprocess.Popen(
            command,
            env={**self.environment, "EDITED": edited, "SHELL": "/bin/bash"},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        if interrupted:
            said = ""
            for line in process.stdout:
                said += line
                if re.search(interrupted, line):
                    os.killpg(process.pid, signal.SIGINT)
                    break
            said += process.communicate(timeout=60)[0]
            assert re.search(interrupted, said), f"{text}\n{said}"
            return said
        try:
            said, _ = process.communicate(typed, timeout=180)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"still runs after 180 s:\n{text}\n{process.communicate()[0]}") from None
        assert process.returncode in ends, f"{text.rstrip()}\nends with {process.returncode}:\n{said}"
        return said


class Provider(http.server.BaseHTTPRequestHandler):
    """A stand-in for a hosted provider, which wants its key."""

    protocol_version = "HTTP/1.1"
    USAGE = {"prompt_tokens": 1000, "completion_tokens": 1000, "total_tokens": 2000}

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "gpt-4o-mini", "object": "model"}]})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        common = {"id": "chatcmpl-1", "created": int(time.time()), "model": request["model"]}
        if request.get("stream"):
            return self.stream(common, request)
        message = {"role": "assistant", "content": "Hello to you too."}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return self.answer({**common, "object": "chat.completion", "choices": [choice], "usage": self.USAGE})

    def answer(self, value):
        right = self.headers["Authorization"] == f"Bearer {PROVIDER.key}"
        body = json.dumps(value if right else {"error": {"message": "wrong key"}}).encode()
        self.send_response(200 if right else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, common, request):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        common["object"] = "chat.completion.chunk"
        self.event({**common, "choices": [{"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}]})
        if "slowly" in request["messages"][0]["content"]:
            PROVIDER.released.wait(120)
        self.event({**common, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        self.event({**common, "choices": [], "usage": self.USAGE})
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def log_message(self, *_):
        pass


PROVIDER = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
PROVIDER.key = PROVIDER_KEY
PROVIDER.asked = 0
PROVIDER.released = threading.Event()
threading.Thread(target=PROVIDER.serve_forever, daemon=True).start()
