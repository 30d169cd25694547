"""Runs programs beside `tollgate demo`: beside_demo.py TOLLGATE -- PROGRAM ARGUMENT... -- PROGRAM ARGUMENT...

Starts the demo on free ports, waits for its one line of JSON, hands that line to each program in TOLLGATE_DEMO, then ends the demo
with SIGINT. Fails when a program fails, or when the demo does not leave in order: status 0, its folder gone, its ports closed.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import urlsplit

# Far above what a busy machine needs; nothing waits for them to pass.
READY_SECS = 120
SUITE_SECS = 600
LEAVE_SECS = 60


def main():
    program, suites = sys.argv[1], parts(sys.argv[3:])
    logs = os.environ.get("TOLLGATE_TEST_LOGS")
    # One for each demo: the output of all of them is searched for secrets.
    log = Path(logs, f"demo-{os.getpid()}.log").open("wb") if logs else None
    # Its standard output shows the key, on purpose, so that is kept out of what is searched for secrets.
    demo = subprocess.Popen(
        [program, "demo", "--json", "--port", "0"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    try:
        passed = beside(demo, program, suites)
    finally:
        if demo.poll() is None:
            demo.kill()
        demo.wait()
    sys.exit(0 if passed else 1)


def parts(arguments):
    """The arguments between one `--` and the next."""
    found = [[]]
    for argument in arguments:
        if argument == "--":
            found.append([])
        else:
            found[-1].append(argument)
    return found


def beside(demo, program, suites):
    line = first_line(demo)
    addresses = json.loads(line)
    if path := os.environ.get("TOLLGATE_TEST_SECRETS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(addresses["api_key"] + "\n")
    environment = {
        **os.environ,
        "TOLLGATE_BIN": program,
        "TOLLGATE_DEMO": line,
        "NODE_EXTRA_CA_CERTS": addresses["ca_file"],
        # The clients would send even this through a proxy.
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
    }
    passed = True
    for suite in suites:
        print(f"-- {' '.join(Path(part).name for part in suite)}", flush=True)
        passed &= subprocess.run(suite, env=environment, stdin=subprocess.DEVNULL, timeout=SUITE_SECS).returncode == 0
    return leaves(demo, addresses) and passed


def first_line(demo):
    """The line that says that everything is ready; whatever comes after it is read and dropped."""
    ready = threading.Event()
    lines = []

    def read():
        for line in demo.stdout:
            lines.append(line)
            ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    if not ready.wait(READY_SECS) or not lines:
        sys.exit(f"the demo printed no line of JSON (status {demo.poll()})")
    return lines[0]


def leaves(demo, addresses):
    demo.send_signal(signal.SIGINT)
    try:
        status = demo.wait(LEAVE_SECS)
    except subprocess.TimeoutExpired:
        print(f"the demo is still there {LEAVE_SECS} s after SIGINT")
        return False
    left = [f"status {status}"] if status else []
    left += [path for name in ("config_file", "ca_file") if Path(path := addresses[name]).exists()]
    left += [url for name, url in addresses.items() if name.endswith("_url") and is_open(url)]
    print(f"the demo left behind: {', '.join(left)}" if left else "the demo left nothing behind")
    print(f"{int(not left)} passed, {int(bool(left))} failed")
    return not left


def is_open(url):
    address = urlsplit(url)
    try:
        socket.create_connection((address.hostname, address.port), timeout=5).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
