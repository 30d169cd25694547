// The checkout page of the owner: from the program's link to PayPal and back, with screenshots.

import assert from "node:assert/strict";
import { test } from "node:test";

import { demo, every, open, person, signUp } from "./browser.mjs";

const SESSIONS = `${demo.base_url}/ucp/2026-04-08/checkout-sessions`;

// Makes a key as a person does, and gives what a program sends with it.
async function program(page) {
  await page.goto("/keys/create");
  await page.getByRole("textbox", { name: "Name" }).fill("notebook");
  await page.getByRole("checkbox", { name: /buy/i }).check();
  await page.getByRole("button", { name: "Create key" }).click();
  const key = await page.getByRole("textbox", { name: "Secret key" }).inputValue();
  return {
    authorization: `Bearer ${key}`,
    "content-type": "application/json",
    "ucp-agent": 'profile="https://platform.example/.well-known/ucp"',
  };
}

// Begins a checkout as a program does.
async function begin(headers) {
  const word = headers.authorization.split("-")[1];
  const body = JSON.stringify({ line_items: [{ item: { id: `${word}-pro-monthly` }, quantity: 1 }] });
  const answer = await fetch(SESSIONS, { method: "POST", headers, body });
  assert.equal(answer.status, 201, await answer.clone().text());
  return answer.json();
}

const status = async (headers, session) => (await (await fetch(`${SESSIONS}/${session.id}`, { headers })).json()).status;

for (const javaScriptEnabled of [true, false]) {
  const how = javaScriptEnabled ? "with" : "without";

  test(`an owner completes a checkout at PayPal, ${how} JavaScript`, async () => {
    const page = await signUp(person(), { javaScriptEnabled });
    const headers = await program(page);
    const session = await begin(headers);
    await page.goto(new URL(session.continue_url).pathname);
    await page.getByRole("heading", { name: "Finish buying Pro" }).waitFor();
    await page.getByText("199.00 USD each month").waitFor();
    await page.getByText("“notebook”").waitFor();
    await page.getByRole("button", { name: "Continue with PayPal" }).click();
    await page.getByRole("link", { name: "Continue to PayPal" }).click();
    await page.getByRole("button", { name: "Agree and subscribe" }).click();
    await page.getByRole("heading", { name: "Pro is active" }).waitFor();
    assert.equal(await status(headers, session), "completed");
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}

test("the checkout redirects to sign-in and back", async () => {
  const address = person();
  const owner = await signUp(address);
  const headers = await program(owner);
  const session = await begin(headers);
  const page = await open();
  await page.goto(new URL(session.continue_url).pathname);
  assert.match(page.url(), /\/sign-in\?next=/);
  await page.context().close();
  await owner.context().close();
});

test("the checkout pages pass the common checks", async () => {
  const page = await signUp(person());
  const headers = await program(page);
  const session = await begin(headers);
  const path = new URL(session.continue_url).pathname;
  await page.goto(path);
  await every(page, "checkout");
  await page.getByRole("button", { name: "Continue with PayPal" }).click();
  await page.getByRole("link", { name: "Continue to PayPal" }).waitFor();
  await every(page, "checkout-led");
  await page.goto(`${path}?left=1`);
  await every(page, "checkout-left");
  await page.goto(`${path}?back=1`);
  await every(page, "checkout-waiting");
  await fetch(`${SESSIONS}/${session.id}/cancel`, { method: "POST", headers, body: "{}" });
  await page.goto(path);
  await page.getByRole("heading", { name: "This checkout has ended" }).waitFor();
  await every(page, "checkout-ended");
  const other = await begin(headers);
  await page.goto(new URL(other.continue_url).pathname);
  await page.getByRole("button", { name: "Continue with PayPal" }).click();
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Agree and subscribe" }).click();
  await page.getByRole("heading", { name: "Pro is active" }).waitFor();
  await every(page, "checkout-done");
  const stranger = await signUp(person());
  await stranger.goto(path);
  await stranger.getByRole("heading", { name: "This checkout belongs to another account" }).waitFor();
  await every(stranger, "checkout-of-another");
  await stranger.context().close();
  await page.context().close();
});
