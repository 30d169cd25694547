"""schemathesis over the OpenAPI document of `tollgate demo`: every operation with requests that fit and requests that do not.

Its seed is fixed, so a failure can be looked at again. Each group of operations has an account of its own, whose quota it does not use up.
"""

import base64
import json
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

from demo import DEMO, new_key

SEED = 20261121
# What a group takes is 5 to 20 seconds; nothing waits for this to pass.
SUITE_SECS = 180
# What a way of paying says that is not set up; every other failure is one of ours.
UNAVAILABLE = "payment_route_unavailable"


def document():
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(DEMO["base_url"] + "/openapi.json", timeout=60) as answer:
        return json.load(answer)


class Schemathesis(unittest.TestCase):
    def check(self, tag, phases="examples,coverage,fuzzing"):
        with tempfile.TemporaryDirectory() as folder:
            record = Path(folder, "events.ndjson")
            command = [
                str(Path(sys.executable).with_name("schemathesis")),
                "--config-file",
                str(Path(__file__).with_name("schemathesis.toml")),
                *["run", DEMO["base_url"] + "/openapi.json", "--include-tag", tag],
                *["--header", f"Authorization: Bearer {new_key(credits='1000')}"],
                *["--seed", str(SEED), "--max-examples", "15", "--continue-on-failure"],
                *["--phases", phases, "--no-color"],
                *["--report", "ndjson", "--report-ndjson-path", str(record)],
            ]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SUITE_SECS)
            said = "\n".join(line[:400] for line in done.stdout.splitlines())
            self.assertEqual(done.returncode, 0, said + done.stderr[-2000:])
            given = list(answers(record))
        self.assertGreater(len(given), 5, "that is hardly a look")
        for status, headers, body in given:
            self.assertIn("x-request-id", headers, f"{status} {body}")
            if status >= 500:
                self.assertIn(f'"code":"{UNAVAILABLE}"', body)

    def test_every_operation_belongs_to_a_group(self):
        tags = {tag for methods in document()["paths"].values() for one in methods.values() for tag in one["tags"]}
        self.assertEqual(tags, {name.removeprefix("test_of_") for name in dir(self) if name.startswith("test_of_")})

    def test_of_models(self):
        self.check("models")

    def test_of_completions(self):
        self.check("completions")

    def test_of_commerce(self):
        self.check("commerce", "examples,coverage,fuzzing,stateful")

    def test_of_access(self):
        self.check("access")

    def test_of_onboarding(self):
        self.check("onboarding")


def answers(record):
    """Status, fields and body of every answer that was recorded."""
    for line in record.read_text(encoding="utf-8").splitlines():
        for interaction in json.loads(line).get("ScenarioFinished", {}).get("recorder", {}).get("interactions", {}).values():
            if answer := interaction.get("response"):
                body = (answer.get("content") or {}).get("$base64", "")
                yield answer["status_code"], answer["headers"], base64.b64decode(body).decode(errors="replace")


if __name__ == "__main__":
    result = unittest.main(verbosity=2, exit=False).result
    print(f"{result.testsRun - len(result.failures) - len(result.errors)} passed, {len(result.failures) + len(result.errors)} failed")
    raise SystemExit(not result.wasSuccessful())
