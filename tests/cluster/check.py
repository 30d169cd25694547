"""The cluster of conf/examples/cluster: check.py TOLLGATE. Prints one line for each check, then the counts."""

import collections
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import yaml

PROGRAM = sys.argv[1]
EXAMPLE = Path(__file__).resolve().parents[2] / "conf" / "examples" / "cluster"
# Far above what a busy machine needs; nothing waits for them to pass.
START_SECS = 180
LEAVE_SECS = 60
# Of 20 keys each of three gateways has some: that it has none has a chance of 3 * (2/3)^20, or one in a thousand.
KEYS = 20  # With all other requests fewer than the sixty a minute of the class `free`.
COUNTS = collections.Counter()


def check(what, is_true, found=""):
    COUNTS["passed" if is_true else "failed"] += 1
    print(f"ok: {what}" if is_true else f"FAILED: {what}: {found}", flush=True)


def main():
    compose()
    os.umask(0o022)
    example = subprocess.Popen(
        [str(EXAMPLE / "run"), "--program", PROGRAM, "--port", "0", "--json"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    try:
        facts = json.loads(example.stdout.readline())
        if path := os.environ.get("TOLLGATE_TEST_SECRETS"):
            with open(path, "a", encoding="utf-8") as file:
                file.write(facts["api_key"] + "\n")
        use(facts)
        example.send_signal(signal.SIGINT)
        check("it ends by SIGINT", example.wait(LEAVE_SECS) == 0, example.returncode)
        check("its folder is removed", not Path(facts["folder"]).exists())
        left = [name for name, number in facts["process_ids"].items() if Path(f"/proc/{number}").exists()]
        check("its processes have ended", not left, left)
    finally:
        if example.poll() is None:
            example.send_signal(signal.SIGINT)
            example.wait(LEAVE_SECS)
    print(f"{COUNTS['passed']} passed, {COUNTS['failed']} failed")
    sys.exit(1 if COUNTS["failed"] else 0)


def compose():
    """Each gateway of compose.yaml has settings that `tollgate check` accepts, and names what is in the file."""
    document = yaml.safe_load((EXAMPLE / "compose.yaml").read_text())
    services = document["services"]
    gateways = {name: service for name, service in services.items() if name.startswith("gateway-")}
    nodes = [service["environment"]["TOLLGATE__STORE__NODE"] for service in gateways.values()]
    check("three gateways with names of their own", len(gateways) == 3 and len(set(nodes)) == 3, nodes)
    for name, service in gateways.items():
        # `${NAME:-default}` of the file is that default here.
        plain = {key: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for key, value in service["environment"].items()}
        # These exist in the container alone.
        plain.pop("TOLLGATE__STORE__PASSWORD_FILE")
        plain["TOLLGATE__ADMIN__SOCKET"] = "/tmp/control.sock"
        done = subprocess.run(
            [PROGRAM, "check", "--config", str(EXAMPLE / "tollgate.toml")], env={**os.environ, **plain}, capture_output=True, text=True
        )
        check(f"the settings of {name}", done.returncode == 0, done.stdout + done.stderr)
        check(f"{name} mounts the settings", any(mount.startswith("./tollgate.toml:") for mount in service["volumes"]))
        check(f"{name} has the password", service["secrets"][0] in document["secrets"])
    balancer = services["balancer"]
    behind = {balancer["environment"][f"NODE_{node}"].split(":")[0] for node in "ABC"}
    check("HAProxy leads to each gateway", behind == set(gateways), behind)
    address = balancer["networks"]["default"]["ipv4_address"]
    trusted = json.loads(gateways["gateway-a"]["environment"]["TOLLGATE__LISTENER__0__TRUSTED_PROXIES"])
    check("the gateways trust HAProxy alone", trusted == [address], trusted)


def use(facts):
    account, environment = facts["account"], {**os.environ, **facts["settings"]}

    def command(*arguments):
        done = subprocess.run([PROGRAM, *arguments, "--json"], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout and json.loads(done.stdout)

    def served():
        """Completions that each node has answered."""
        counts = {}
        for node, url in facts["admin_urls"].items():
            try:
                with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
                    text = answer.read().decode()
            except OSError:
                continue
            lines = [line for line in text.splitlines() if re.match(r'tollgate_requests_total\{.*"/v1/chat/completions"', line)]
            counts[node] = sum(int(float(line.rsplit(" ", 1)[1])) for line in lines)
        return counts

    def client(key):
        return openai.OpenAI(base_url=facts["url"] + "/v1", api_key=key, max_retries=0)

    def ask(key, words):
        return client(key).chat.completions.create(model="small", messages=[{"role": "user", "content": words}])

    _, nodes = command("nodes")
    check("three nodes run", [node["state"] for node in nodes] == ["running"] * 3, nodes)

    answer = ask(facts["api_key"], "first")
    check("a completion", answer.choices[0].message.content == "Hello from the example.", answer)
    stream = client(facts["api_key"]).chat.completions.create(
        model="small", messages=[{"role": "user", "content": "second"}], stream=True
    )
    words = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    check("a stream", words == "Hello from the example.", words)

    before = served()
    for number in range(6):
        ask(facts["api_key"], f"again {number}")
    after = served()
    used = [node for node in after if after[node] != before[node]]
    check("requests of one key go to one gateway", len(used) == 1, (before, after))

    keys = []
    for number in range(KEYS):
        _, made = command("key", "create", "--account", account, "--name", f"key {number}")
        keys.append(made["secret"])
    if path := os.environ.get("TOLLGATE_TEST_SECRETS"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(key + "\n" for key in keys))
    before = served()
    for number, key in enumerate(keys):
        ask(key, f"of key {number}")
    after = served()
    check("requests of many keys go to every gateway", all(after[node] > before[node] for node in after), (before, after))

    # The gateway of the first key is killed. What was sent to it fails at most; a connection that it refuses goes to another one.
    killed = used[0]
    os.kill(facts["process_ids"][killed], signal.SIGKILL)
    deadline = time.monotonic() + LEAVE_SECS
    while Path(f"/proc/{facts['process_ids'][killed]}/fd").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{facts['process_ids'][killed]}/stat").read_text().rsplit(") ", 1)[1].startswith("Z"):
            break
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda number: ask(facts["api_key"], f"after {number}"), range(8)))
    check("a killed gateway costs no later request", len(answers) == 8)
    status, recovered = command("nodes", "recover", killed)
    check("it is recovered by command", status == 0, recovered)

    status, books = command("audit")
    check("the books balance", status == 0, books)
    _, shown = command("credits", "show", "--account", account)
    # 2 + 6 + KEYS + 8 answers of 8 and 5 tokens at 0.15 and 0.6 credits a million: 4.2 millionths of a credit, charged as 4 or 5.
    spent = 100 - float(shown["available"])
    count = 2 + 6 + KEYS + 8
    check("every answer is charged once", count * 4e-6 - 1e-9 <= spent <= count * 5e-6 + 1e-9 and float(shown["held"]) == 0, shown)


main()
