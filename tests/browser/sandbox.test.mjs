// The sandbox: streaming with JavaScript, whole responses without, and errors.

import assert from "node:assert/strict";
import { test } from "node:test";

import { demo, every, signUp, signedIn } from "./browser.mjs";

/** Has the stand-in for the model provider answer in this way. */
async function provider(path, plan) {
  const answer = await fetch(`${demo.provider_url}/_control/${path}`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(plan),
  });
  assert.ok(answer.ok, `${path}: ${answer.status} ${await answer.text()}`);
}

async function send(page, text) {
  await page.getByRole("textbox", { name: "Message" }).fill(text);
  await page.getByRole("button", { name: "Send" }).click();
}

test("a response is streamed and shows its cost", async () => {
  const page = await signedIn();
  await page.goto("/sandbox");
  const secret = /svc_at_|sk-svc-[0-9A-Za-z]{46}/;
  assert.doesNotMatch(await page.content(), secret, "no secret stands in the page");
  await every(page, "sandbox");
  await send(page, `Explain ${Math.random()}`);
  await page.getByText(/^Answer complete\. [0-9.<  ]+ credits\.$/).waitFor({ state: "attached" });
  for (const name of ["Cost", "Tokens", "Cache", "First token"]) await page.getByText(name, { exact: true }).waitFor();
  assert.doesNotMatch(await page.content(), secret, "nor afterwards");
  await page.getByRole("checkbox", { name: "Stream the answer" }).uncheck();
  await page.getByRole("textbox", { name: "Max tokens" }).fill("16");
  await send(page, "And now in one piece?");
  await page.getByText("Cost", { exact: true }).nth(1).waitFor();
  const code = page.getByRole("group", { name: "The same request in code" });
  for (const [language, says] of [["curl", '"max_tokens": 16'], ["Python", "max_tokens=16"], ["JavaScript", '"max_tokens": 16']]) {
    await code.getByText(language, { exact: true }).click();
    assert.ok(await code.getByRole("radio", { name: language }).isChecked());
    const text = await code.getByRole("region", { name: new RegExp(language) }).textContent();
    assert.ok(text.includes(says), text);
    assert.ok(text.includes("SVC_API_KEY"), text);
  }
  await every(page, "sandbox-answered");
  await page.getByRole("link", { name: "New conversation" }).click();
  await page.getByText(/^Ask something\. This model costs/).waitFor();
  await page.context().close();
});

test("a repeated question is a cache hit unless the cache is disabled", async () => {
  const page = await signedIn();
  const question = `Once more ${Math.random()}`;
  const asked = async (cached) => {
    await page.goto("/sandbox");
    if (!cached) await page.getByRole("checkbox", { name: "Allow cached answers" }).uncheck();
    await send(page, question);
    await page.getByText(/^Answer complete\./).waitFor({ state: "attached" });
    return page.locator(".facts .pill").textContent();
  };
  assert.equal(await asked(true), "Not cached");
  assert.equal(await asked(true), "From cache");
  assert.equal(await asked(false), "Not cached");
  await page.context().close();
});

test("without JavaScript the form gets a whole response and contains the conversation", async () => {
  const page = await signedIn(undefined, { javaScriptEnabled: false });
  await page.goto("/sandbox");
  assert.equal(await page.getByRole("checkbox", { name: "Stream the answer" }).isVisible(), false);
  await send(page, `First ${Math.random()}`);
  await page.getByText("Cost", { exact: true }).waitFor();
  await send(page, "Second?");
  await page.getByText("Second?").first().waitFor();
  assert.equal(await page.getByText("You", { exact: true }).count(), 2);
  await page.getByText("At most", { exact: false }).first().waitFor();
  await page.context().close();
});

test("API errors are shown with a link to their remedy", async () => {
  const page = await signUp();
  await page.goto("/sandbox");
  // More than what a new account is given.
  await page.getByRole("textbox", { name: "Max tokens" }).fill("100000000");
  await send(page, "Can I pay?");
  await page.getByText("insufficient_credits", { exact: true }).waitFor();
  await page.getByText("Request sent", { exact: true }).click();
  const sent = await page.getByRole("region", { name: "Request sent" }).textContent();
  assert.match(sent, /^POST \/v1\/chat\/completions\n/);
  const body = JSON.parse(sent.slice(sent.indexOf("{")));
  assert.equal(body.max_tokens, 100000000);
  assert.deepEqual(body.messages, [{ role: "user", content: "Can I pay?" }]);
  assert.equal(await page.getByRole("textbox", { name: "Message" }).inputValue(), "Can I pay?", "the message is kept");
  assert.equal(await page.locator(".said-error").getByRole("link", { name: "Add credits" }).getAttribute("href"), "/credits/add");
  await every(page, "sandbox-refused");
  await page.context().close();
});

test("Stop replaces Send during a response and cancels it", async () => {
  const page = await signedIn();
  await page.goto("/sandbox");
  await provider("script", { times: 1, path: "/chat/completions", holds: [{ before: 4, gate: "half way" }] });
  await send(page, `Slowly ${Math.random()}`);
  await page.getByText("Writing", { exact: true }).waitFor();
  await page.waitForFunction(() => [...document.querySelectorAll(".said-text")].at(-1).textContent !== "");
  assert.equal(await page.getByRole("button", { name: "Send" }).isVisible(), false);
  await every(page, "sandbox-writing");
  await page.getByRole("button", { name: "Stop" }).click();
  await page.getByText(/^Stopped\. The output up to this point is charged/).waitFor();
  assert.ok(await page.getByRole("button", { name: "Send" }).isVisible());
  assert.equal(await page.getByText("Writing", { exact: true }).count(), 0);
  await provider("open", { gate: "half way" });
  await page.context().close();
});

test("a cut response is marked as cut", async () => {
  const page = await signedIn();
  await page.goto("/sandbox");
  await provider("script", { times: 1, path: "/chat/completions", cut: { after_events: 4 } });
  await send(page, `Break off ${Math.random()}`);
  await page.getByText("upstream_error", { exact: true }).waitFor();
  assert.match(await page.locator("#sandbox-status").textContent(), /^The request failed:/);
  await page.context().close();
});
