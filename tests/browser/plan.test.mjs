// The plan bought by a program: the owner completes the checkout, and the plan is shown on its page and on the overview.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { appendFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";

import { demo, every, person, signedIn } from "./browser.mjs";

const tollgate = (...args) =>
  JSON.parse(execFileSync(process.env.TOLLGATE_BIN, [...args, "--config", demo.config_file, "--json"], { timeout: 60_000 }));

/** A new account, and the key of its program. */
function newAccount() {
  const address = person();
  const account = tollgate("account", "create", "--email", address, "--class", "free").id;
  const { secret } = tollgate("key", "create", "--account", account, "--name", "buyer");
  if (process.env.TOLLGATE_TEST_SECRETS) appendFileSync(process.env.TOLLGATE_TEST_SECRETS, `${secret}\n`);
  return { address, key: secret };
}

/** Starts a script that buys. `line(pattern)` waits for what it says, `enter()` presses Enter, `done` is its good end. */
function buys(name, ...args) {
  const script = spawn(join(process.env.TOLLGATE_CLIENTS, name), args, { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: script.stdout });
  const done = once(script, "close").then(([status]) => assert.equal(status, 0));
  return {
    done,
    enter: () => script.stdin.write("\n"),
    async line(pattern) {
      for await (const line of lines) {
        const found = line.match(pattern);
        if (found) return found[0];
      }
      throw new Error(`${name} said nothing like ${pattern}`);
    },
  };
}

/** The plan as its owner sees it, on both pages that show it. */
async function shows(page, words, picture) {
  for (const path of ["/plan", "/"]) {
    await page.goto(path);
    await page.getByText("Active", { exact: true }).first().waitFor();
    await page.getByText(words).first().waitFor();
  }
  await page.goto("/plan");
  const payments = page.getByRole("table", { name: "Payments for the plan" });
  assert.equal(await payments.getByText("199.00 USD").count(), 1);
  await every(page, picture);
}

test("a checkout of a program is approved at PayPal, and the plan is active for both", async () => {
  const { address, key } = newAccount();
  const script = buys("pay-ucp.py", demo.base_url, key);
  const url = await script.line(/http\S+\/commerce\/continue\/\S+/);
  const page = await signedIn(address);
  await page.goto(url);
  await page.getByText("199.00 USD each month").waitFor();
  await every(page, "checkout");
  await page.getByRole("button", { name: "Continue with PayPal" }).click();
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: /agree/i }).first().click();
  await page.getByRole("heading", { name: "Pro is active" }).waitFor();
  await every(page, "checkout-done");
  script.enter();
  await script.done;
  await shows(page, /PayPal charges .+ next on .+ every month/, "plan-monthly");
  await page.context().close();
});

test("a plan bought by a program with MPP is shown to its owner", async () => {
  const { address, key } = newAccount();
  await buys("pay-mpp.py", demo.base_url, key, demo.paypal_url).done;
  const page = await signedIn(address);
  await shows(page, /PayPal charges .+ next on .+ every month/, "plan-mpp");
  await page.context().close();
});

test("the pages on payments and deprecations pass the common checks", async () => {
  const page = await signedIn();
  for (const [path, picture] of [
    ["/docs/paying", "docs-paying"],
    ["/docs/lifecycle", "docs-lifecycle"],
  ]) {
    await page.goto(path);
    await every(page, picture);
  }
  await page.context().close();
});
