// The plan bought by a person at PayPal, cancelled and resumed, with and without JavaScript, with screenshots.

import assert from "node:assert/strict";
import { test } from "node:test";

import { demo, every, person, signUp } from "./browser.mjs";

const control = (path) => fetch(`${demo.paypal_url}/_control/${path}`, { method: "POST" });

// Begins to buy; ends on the page that leads to PayPal.
async function begin(page) {
  await page.goto("/plan");
  await page.getByRole("link", { name: "Buy Pro for 199.00 USD a month" }).click();
  await page.getByText("You pay 199.00 USD now, and again every month.").waitFor();
  await page.getByRole("button", { name: "Pay with PayPal" }).click();
  await page.getByRole("link", { name: "Continue to PayPal" }).waitFor();
}

for (const javaScriptEnabled of [true, false]) {
  const how = javaScriptEnabled ? "with" : "without";

  test(`the plan is bought at PayPal, cancelled and resumed, ${how} JavaScript`, async () => {
    const page = await signUp(person(), { javaScriptEnabled });
    await begin(page);
    await page.getByRole("link", { name: "Continue to PayPal" }).click();
    await page.getByRole("button", { name: "Agree and subscribe" }).click();
    await page.getByRole("heading", { name: "You have Pro" }).waitFor();
    await page.getByRole("link", { name: "See your plan" }).click();
    await page.getByText(/PayPal charges .+ next on .+ every month/).waitFor();
    await page.getByRole("link", { name: "Cancel plan" }).click();
    await page.getByRole("heading", { name: "Cancel Pro?" }).waitFor();
    await page.getByRole("button", { name: "Cancel plan" }).click();
    await page.getByText(/Canceled: it lasts until .* and does not renew\./).waitFor();
    assert.equal(await page.getByRole("link", { name: "Cancel plan" }).count(), 0);
    await page.getByText(/You can resume Pro until/).waitFor();
    if (javaScriptEnabled) await every(page, "plan-cancelled");
    await page.getByRole("link", { name: "Resume Pro" }).click();
    await page.getByText(/You pay 199.00 USD on .*, and every month after it\./).waitFor();
    if (javaScriptEnabled) await every(page, "plan-resume");
    await page.getByRole("button", { name: "Resume Pro" }).click();
    await page.getByText(/PayPal charges .+ next on .+ every month/).waitFor();
    await page.getByRole("link", { name: "Cancel plan" }).waitFor();
    assert.equal(await page.getByRole("link", { name: "Resume Pro" }).count(), 0);
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}

test("cancelling at PayPal charges nothing and can be repeated", async () => {
  const page = await signUp(person());
  await begin(page);
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Cancel and return" }).click();
  await page.getByText("You did not agree. Nothing was charged.").waitFor();
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Agree and subscribe" }).click();
  await page.getByRole("heading", { name: "You have Pro" }).waitFor();
  await page.context().close();
});

test("the page polls for an approval that PayPal confirms late", async () => {
  const page = await signUp(person());
  await begin(page);
  await control("lag?reads=2");
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Agree and subscribe" }).click();
  await page.getByRole("heading", { name: "You have Pro" }).waitFor();
  await control("lag?reads=0");
  await page.context().close();
});

test("the plan pages pass the common checks", async () => {
  const page = await signUp(person());
  await page.goto("/plan");
  await page.getByRole("link", { name: "Buy Pro for 199.00 USD a month" }).waitFor();
  await every(page, "plan");
  await page.goto("/plan/begin");
  await every(page, "plan-begin");
  await begin(page);
  await every(page, "plan-order");
  await page.goto(`${new URL(page.url()).pathname}?back=1`);
  await page.getByRole("heading", { name: "Waiting for PayPal" }).waitFor();
  await page.goto(new URL(page.url()).pathname);
  await page.getByRole("link", { name: "Continue to PayPal" }).click();
  await page.getByRole("button", { name: "Agree and subscribe" }).click();
  await page.getByRole("heading", { name: "You have Pro" }).waitFor();
  await every(page, "plan-bought");
  await page.goto("/plan");
  await every(page, "plan-active");
  await page.goto("/plan/cancel");
  await every(page, "plan-cancel");
  await page.context().close();
});
