// Top-ups: from the amount to PayPal's page and back, with and without JavaScript, with screenshots.

import assert from "node:assert/strict";
import { test } from "node:test";

import { demo, every, person, signUp } from "./browser.mjs";

// Chooses an amount and orders it; ends on the page that leads to PayPal.
async function order(page, amount) {
  await page.goto("/credits/add");
  await page.getByRole("group", { name: "Amount" }).getByRole("radio", { name: amount }).check();
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByText("You pay 20.00 USD now, once.").waitFor();
  await page.getByRole("button", { name: "Pay 20.00 USD with PayPal" }).click();
  await page.getByRole("link", { name: "Continue to PayPal" }).waitFor();
}

for (const javaScriptEnabled of [true, false]) {
  const how = javaScriptEnabled ? "with" : "without";

  test(`credits bought at PayPal are in the ledger, ${how} JavaScript`, async () => {
    const page = await signUp(person(), { javaScriptEnabled });
    await order(page, "20.00 USD, 2,000 credits");
    await page.getByRole("link", { name: "Continue to PayPal" }).click();
    await page.getByRole("button", { name: "Pay now" }).click();
    await page.getByText("2,000 credits added").waitFor();
    await page.reload();
    await page.getByText("You paid 20.00 USD, once.").waitFor();
    await page.getByRole("link", { name: "See your credits" }).click();
    const ledger = page.getByRole("table", { name: "Ledger" });
    assert.equal(await ledger.getByText("Added by PayPal").count(), 1);
    assert.equal(await page.getByRole("term").filter({ hasText: "Available" }).count(), 1);
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}

test("cancelling at PayPal charges nothing and can be repeated", async () => {
  const page = await signUp(person());
  await order(page, "20.00 USD, 2,000 credits");
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Cancel and return" }).click();
  await page.getByText("You did not pay. Nothing was charged.").waitFor();
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Pay now" }).click();
  await page.getByText("2,000 credits added").waitFor();
  await page.context().close();
});

test("the page polls for a payment that PayPal confirms late", async () => {
  const control = (path) => fetch(`${demo.paypal_url}/_control/${path}`, { method: "POST" });
  const page = await signUp(person());
  await order(page, "20.00 USD, 2,000 credits");
  await control("lag?reads=2");
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Pay now" }).click();
  await page.getByText("2,000 credits added").waitFor();
  await control("lag?reads=0");
  await page.context().close();
});

test("the credits pages pass the common checks", async () => {
  const page = await signUp(person());
  await page.goto("/credits");
  await every(page, "credits");
  await page.goto("/credits/add");
  await every(page, "credits-add");
  await page.getByRole("radio", { name: "Other amount" }).check();
  await page.getByRole("textbox", { name: "Other amount in USD" }).fill("4");
  await page.getByRole("button", { name: "Continue" }).click();
  await page.getByRole("link", { name: "Enter an amount from 5 to 500 USD." }).waitFor();
  assert.equal(await page.title(), "Error: Add credits – svc");
  await every(page, "credits-add-refused");
  await page.goto("/credits/add?amount=20.00");
  await every(page, "credits-review");
  await page.getByRole("button", { name: "Pay 20.00 USD with PayPal" }).click();
  await page.getByRole("link", { name: "Continue to PayPal" }).waitFor();
  await every(page, "credits-order");
  await page.goto(`${new URL(page.url()).pathname}?back=1`);
  await page.getByRole("heading", { name: "Waiting for PayPal" }).waitFor();
  await order(page, "20.00 USD, 2,000 credits");
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Pay now" }).click();
  await page.getByText("2,000 credits added").waitFor();
  await every(page, "credits-added");
  await page.goto("/credits");
  await every(page, "credits-after");
  await page.context().close();
});
