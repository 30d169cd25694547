// Sign-up, sign-in and sign-out: with and without JavaScript, by keyboard alone, with screenshots.

import assert from "node:assert/strict";
import { test } from "node:test";

import { code, demo, every, open, person, sent, signUp, tabTo } from "./browser.mjs";

for (const javaScriptEnabled of [true, false]) {
  const how = javaScriptEnabled ? "with" : "without";

  test(`an account is created and signed out, ${how} JavaScript`, async () => {
    const address = person();
    const page = await open({ javaScriptEnabled });
    await page.goto("/");
    await page.getByRole("link", { name: "Create an account" }).click();
    assert.equal(await page.title(), "Create your account – svc");
    await page.getByRole("textbox", { name: "E-mail or phone number" }).fill(address);
    await page.getByRole("button", { name: "Send code" }).click();
    await page.getByRole("heading", { name: "Enter the code we sent" }).waitFor();
    await page.getByRole("textbox", { name: "Code" }).fill(await code(address));
    await page.getByRole("button", { name: "Continue" }).click();
    await page.getByRole("heading", { level: 1, name: /Overview|Send your first request/ }).waitFor();
    assert.equal(await page.getByText(address).first().isVisible(), true);
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("You are signed out.").waitFor();
    await page.goto("/");
    assert.equal(new URL(page.url()).pathname, "/sign-in");
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}

test("a phone number gets its code by text message", async () => {
  const number = `+4930${process.pid}`.padEnd(13, "7");
  const page = await signUp(number);
  assert.ok(await page.getByText(number).first().isVisible());
  const messages = await (await fetch(`${demo.mailbox_url}/_control/messages?to=${encodeURIComponent(number)}`)).json();
  assert.match(messages.at(-1).text, /^\d{8} is your code/);
  assert.match(messages.at(-1).text, /\n@\S+ #\d{8}$/);
  await page.context().close();
});

test("sign-in by keyboard alone", async () => {
  const address = person();
  await (await signUp(address)).context().close();
  const page = await open();
  // One code in half a minute for one address; here it is typed, not asked for.
  await page.goto("/sign-in");
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Skip to content");
  const other = person();
  await tabTo(page, "E-mail or phone number");
  await page.keyboard.type(other);
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Enter the code we sent" }).waitFor();
  await tabTo(page, "Code");
  await page.keyboard.type("0000 0000");
  await page.keyboard.press("Enter");
  await page.getByText("That code is not right. You have 4 tries left.").first().waitFor();
  const focused = await page.evaluate(() => document.activeElement.textContent);
  assert.match(focused, /There is a problem/, "the box over a refused form has the focus");
  await page.context().close();
});

test("the sign-in pages pass the common checks", async () => {
  const page = await open();
  await page.goto("/sign-in");
  await every(page, "sign-in");
  await page.goto("/sign-up");
  await every(page, "sign-up");
  await page.getByLabel("E-mail or phone number").fill("unknown");
  await page.getByRole("button", { name: "Send code" }).click();
  await page.getByRole("link", { name: /Enter an e-mail address like/ }).waitFor();
  assert.equal(await page.title(), "Error: Create your account – svc");
  assert.equal(await page.getByLabel("E-mail or phone number").inputValue(), "unknown");
  await every(page, "sign-up-refused");
  await page.getByLabel("E-mail or phone number").fill(person());
  await page.getByRole("button", { name: "Send code" }).click();
  await page.getByRole("heading", { name: "Enter the code we sent" }).waitFor();
  await every(page, "code");
  await page.getByLabel("Code").fill("1");
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByText("Enter the 8 digits of the code.").first().waitFor();
  assert.equal(await page.getByLabel("Code").inputValue(), "", "a code that was typed is not shown again");
  await every(page, "code-refused");
  await page.goto("/nothing/at/all").catch(() => {});
  await page.goto("/keys/nothing/at/all");
  await every(page, "not-found");
  await page.context().close();
});

test("a rate-limited code request shows the wait", async () => {
  const address = person();
  const page = await open();
  for (let times = 0; times < 2; times += 1) {
    await page.goto("/sign-in");
    await page.getByLabel("E-mail or phone number").fill(address);
    await page.getByRole("button", { name: "Send code" }).click();
  }
  await page.getByText(/Too many codes were requested. Try again in \d+ seconds?\./).first().waitFor();
  assert.equal(await sent(address), 0, "an address without an account gets no message");
  await every(page, "sign-in-too-often");
  await page.context().close();
});

test("the mobile menu opens, closes with Escape and restores the focus", async () => {
  const page = await signUp();
  await page.setViewportSize({ width: 390, height: 800 });
  const menu = page.getByRole("button", { name: "Menu" });
  await menu.click();
  await page.getByRole("link", { name: "API keys" }).waitFor({ state: "visible" });
  await page.keyboard.press("Escape");
  assert.equal(await page.getByRole("link", { name: "API keys" }).isVisible(), false);
  assert.equal(await page.evaluate(() => document.activeElement.textContent.trim()), "Menu");
  await page.context().close();
});
