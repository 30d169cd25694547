// The dashboard: overview, keys, usage and docs, with and without JavaScript, with screenshots.

import assert from "node:assert/strict";
import { test } from "node:test";

import { demo, every, open, signUp, signedIn, tabTo } from "./browser.mjs";

/** Asks the API once, as a program would. */
async function ask(key, body = {}) {
  const answer = await fetch(`${demo.base_url}/v1/chat/completions`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${key}` },
    body: JSON.stringify({ model: demo.model, messages: [{ role: "user", content: `Hello ${Math.random()}` }], ...body }),
  });
  await answer.text();
  return answer.status;
}

test("a new account is guided to the first request", async () => {
  const page = await signUp();
  await page.getByRole("heading", { name: "Send your first request in three steps" }).waitFor();
  await page.getByRole("link", { name: "Create key" }).waitFor();
  const code = page.getByRole("group", { name: "First request" });
  for (const language of ["curl", "Python", "JavaScript"]) {
    await code.getByText(language, { exact: true }).click();
    assert.match(await code.getByRole("region", { name: `First request: ${language}` }).textContent(), /chat|openai/);
  }
  await every(page, "overview-first-run");
  await page.goto("/keys");
  await page.getByText("No keys yet. A key lets your program call the API in your name.").waitFor();
  await every(page, "keys-empty");
  await page.goto("/usage");
  await page.getByText(/^No requests from/).waitFor();
  await every(page, "usage-empty");
  await page.context().close();
});

test("the overview shows the balance and the spending by model", async () => {
  assert.equal(await ask(demo.api_key), 200);
  const page = await signedIn();
  await page.goto("/");
  await page.getByRole("region", { name: "Account at a glance" }).waitFor();
  for (const name of ["7 days", "90 days", "30 days"]) {
    await page.getByRole("link", { name, exact: true }).click();
    assert.equal(await page.getByRole("link", { name, exact: true }).getAttribute("aria-current"), "true");
  }
  await page.getByRole("img", { name: /^Credits spent per day by model from / }).waitFor();
  await every(page, "overview");
  await page.getByText("Show as a table").click();
  await page.getByRole("group", { name: "Show as a table" }).getByRole("row").nth(1).getByRole("link").click();
  assert.equal(new URL(page.url()).pathname, "/usage");
  await page.goto("/");
  await page.getByText("Show as a table").click();
  await every(page, "overview-table");
  await page.context().close();
});

for (const javaScriptEnabled of [true, false]) {
  const how = javaScriptEnabled ? "with" : "without";

  test(`a key is created, used and revoked, ${how} JavaScript`, async () => {
    const name = `worker-${how}`;
    const page = await signedIn(undefined, { javaScriptEnabled });
    await page.goto("/keys");
    await page.getByRole("link", { name: "Create key" }).click();
    if (javaScriptEnabled) await every(page, "keys-create");
    await page.getByRole("textbox", { name: "Name" }).fill(name);
    await page.getByRole("group", { name: "May call" }).getByLabel("Buy or renew the Pro plan").isChecked().then((buys) => assert.equal(buys, false));
    await page.getByRole("group", { name: "Ends" }).getByLabel("In 30 days").check();
    await page.getByRole("button", { name: "Create key" }).click();
    await page.getByRole("status", { name: `Key “${name}” is ready` }).waitFor();
    const key = await page.getByRole("textbox", { name: "Secret key" }).inputValue();
    assert.match(key, /^sk-svc-[0-9A-Za-z]{46}$/);
    const copy = page.getByRole("button", { name: "Copy key" });
    assert.equal(await copy.isVisible(), javaScriptEnabled, "the button that copies needs a script");
    if (javaScriptEnabled) {
      await page.context().grantPermissions(["clipboard-read", "clipboard-write"]);
      await copy.click();
      await page.getByText("Copied").first().waitFor();
      assert.equal(await page.evaluate(() => navigator.clipboard.readText()), key);
      await every(page, "keys-created");
    }
    assert.equal(page.url().includes(key), false);
    assert.equal(await ask(key), 200);
    await page.getByRole("link", { name: "I have saved the key" }).click();
    assert.equal((await page.content()).includes(key), false, "it is not shown again");
    const row = page.getByRole("row", { name: new RegExp(name) });
    assert.match(await row.textContent(), /Chat, text, models.*just now/);
    if (javaScriptEnabled) await every(page, "keys");
    await row.getByRole("link", { name: `Change key ${name}` }).click();
    if (javaScriptEnabled) await every(page, "keys-edit");
    await page.getByText("Limit what it spends").click();
    await page.getByRole("textbox", { name: "Spending cap in credits" }).fill("2.5");
    await page.getByRole("button", { name: "Save changes" }).click();
    await page.getByText(`Key ${name} is changed.`).waitFor();
    await page.getByText("up to 2.50 credits a month").first().waitFor();
    if (javaScriptEnabled) await every(page, "keys-changed");
    await row.getByRole("link", { name: `Revoke key ${name}` }).click();
    await page.getByRole("heading", { name: `Revoke ${name}?` }).waitFor();
    if (javaScriptEnabled) await every(page, "keys-revoke");
    await page.getByRole("button", { name: `Revoke key ${name}` }).click();
    await page.getByText(`Key ${name} is revoked.`).waitFor();
    assert.equal(await ask(key), 401);
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}

test("a refused form shows the error beside its field", async () => {
  const page = await signedIn();
  await page.goto("/keys/create");
  // What a browser would refuse by itself is sent all the same.
  await page.locator("main form").evaluate((form) => form.setAttribute("novalidate", ""));
  await page.getByRole("button", { name: "Create key" }).click();
  const problem = page.getByRole("link", { name: "Give the key a name, for example ci-runner." });
  await problem.waitFor();
  assert.equal(await page.title(), "Error: Create a key – svc");
  await problem.click();
  assert.equal(await page.evaluate(() => document.activeElement.id), "name");
  await every(page, "keys-create-refused");
  await page.context().close();
});

test("a key is created by keyboard alone", async () => {
  const page = await signedIn();
  await page.goto("/keys");
  await tabTo(page, "Create key");
  await page.keyboard.press("Enter");
  await page.waitForURL((url) => url.pathname === "/keys/create");
  await tabTo(page, "Name");
  await page.keyboard.type("typed-by-hand");
  await tabTo(page, "Create key");
  await page.keyboard.press("Enter");
  await page.getByRole("status", { name: "Key “typed-by-hand” is ready" }).waitFor();
  await page.reload();
  await page.getByText("This key was already created.").waitFor();
  await page.context().close();
});

test("usage is filtered by day, model and key, and exported as CSV", async () => {
  assert.equal(await ask(demo.api_key), 200);
  const page = await signedIn();
  await page.goto("/usage");
  for (const name of ["From", "To"]) await page.getByRole("textbox", { name, exact: true }).waitFor();
  await page.getByRole("combobox", { name: "Model" }).selectOption(demo.model);
  await page.getByRole("combobox", { name: "Key" }).waitFor();
  await page.getByRole("button", { name: "Show" }).click();
  await page.getByRole("status").getByText(`Only model ${demo.model}`).waitFor();
  await page.getByRole("link", { name: "Show all models" }).click();
  assert.equal(await page.getByText(`Only model ${demo.model}`).count(), 0);
  assert.equal(await ask(demo.api_key, { model: "no-such-model" }), 400);
  // Written a second later: the page is loaded until it has it, or the test's time is over.
  while ((await page.getByText("model_not_supported").count()) === 0) await page.reload();
  await page.getByRole("row").filter({ hasText: "400 model_not_supported" }).first().waitFor();
  await page.getByRole("table", { name: "Requests" }).getByText("Details").first().click();
  await page.getByText(/^req_[0-9a-f]{32}$/).first().waitFor();
  await every(page, "usage");
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download CSV" }).click()]);
  assert.match(file.suggestedFilename(), /^usage-\d{4}-\d\d-\d\d-\d{4}-\d\d-\d\d\.csv$/);
  await page.goto("/usage?from=2026-11-07&to=2026-11-06");
  await page.getByRole("link", { name: "The end is before the start." }).waitFor();
  await every(page, "usage-refused");
  await page.context().close();
});

test("the docs are public and contain the addresses of this service", async () => {
  const page = await open();
  await page.goto("/docs");
  await page.getByText(`${demo.base_url}/v1`).first().waitFor();
  for (const [chapter, name] of [
    ["Quick start", "docs"],
    ["Errors", "docs-errors"],
    ["Limits", "docs-limits"],
    ["Paying from a program", "docs-paying"],
    ["Lifecycle", "docs-lifecycle"],
  ]) {
    await page.getByRole("navigation", { name: "Docs" }).getByRole("link", { name: chapter, exact: true }).click();
    await page.getByRole("heading", { level: 1, name: chapter }).waitFor();
    await every(page, name);
  }
  await page.goto("/docs/errors#insufficient_credits");
  assert.equal(await page.locator("tr:target").count(), 1, "each code has an address");
  await page.context().close();
});
