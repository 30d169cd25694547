// The consent page: an app requests access, the owner allows it, and removes it in the list. The browser is redirected to a real app.

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { createServer } from "node:http";
import { after, before, test } from "node:test";

import { demo, every, identify, person, signUp, signedIn, tabTo } from "./browser.mjs";

// The app: it registers, and listens where its answers go.
const app = createServer((request, response) => {
  // A browser also asks for a picture of the app.
  const url = new URL(request.url, redirect);
  if (url.pathname === "/back") answers.push(url);
  response.setHeader("content-type", "text/html");
  response.end("<title>Back in the app</title><p>Back in the app.");
});
const answers = [];
let redirect;
let client;

const post = (path, body) =>
  fetch(`${demo.base_url}${path}`, body instanceof URLSearchParams ? { method: "POST", body } : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) });

const register = async (name, uri) => (await (await post("/oauth/register", { client_name: name, redirect_uris: [uri] })).json()).client_id;

before(async () => {
  await new Promise((done) => app.listen(0, "127.0.0.1", done));
  redirect = `http://127.0.0.1:${app.address().port}/back`;
  client = await register("Notebook Copilot", redirect);
});

after(() => app.close());

const verifier = randomBytes(32).toString("base64url");

const asking = (changes = {}) =>
  `/oauth/authorize?${new URLSearchParams({
    client_id: client,
    redirect_uri: redirect,
    response_type: "code",
    code_challenge: createHash("sha256").update(verifier).digest("base64url"),
    code_challenge_method: "S256",
    scope: "api:models api:chat",
    state: "kept",
    ...changes,
  })}`;

for (const javaScriptEnabled of [true, false]) {
  test(`an app is allowed after sign-in and removed, ${javaScriptEnabled ? "with" : "without"} JavaScript`, async () => {
    const page = await signedIn(person(), { javaScriptEnabled });
    await page.goto(asking());
    await page.getByRole("heading", { name: "Allow this app to use your account?" }).waitFor();
    const goes = page.getByRole("region", { name: "Access goes to" });
    assert.match(await goes.textContent(), /An application on this computer/);
    assert.equal(await page.evaluate(() => document.activeElement.tagName).catch(() => "BODY"), "BODY", "nothing is focused by itself");
    await page.getByRole("button", { name: "Allow access" }).click();
    await page.getByText("Back in the app.").waitFor();
    const back = answers.at(-1);
    assert.equal(back.searchParams.get("state"), "kept");
    assert.equal(back.searchParams.get("iss"), demo.base_url);
    const form = new URLSearchParams({
      grant_type: "authorization_code",
      code: back.searchParams.get("code"),
      redirect_uri: redirect,
      client_id: client,
      code_verifier: verifier,
    });
    const token = (await (await post("/oauth/token", form)).json()).access_token;
    const models = () => fetch(`${demo.base_url}/v1/models`, { headers: { authorization: `Bearer ${token}` } });
    assert.equal((await models()).status, 200);
    await page.goto("/apps");
    await page.getByRole("link", { name: "Remove access for Notebook Copilot" }).click();
    await page.getByRole("button", { name: "Remove access for Notebook Copilot" }).click();
    await page.getByText("The app is removed.").waitFor();
    assert.equal((await models()).status, 401);
    assert.deepEqual(page.complaints, []);
    await page.context().close();
  });
}

test("cancelling by keyboard returns access_denied", async () => {
  const page = await signedIn();
  await page.goto(asking());
  await tabTo(page, "Cancel");
  await page.keyboard.press("Enter");
  await page.getByText("Back in the app.").waitFor();
  assert.equal(answers.at(-1).searchParams.get("error"), "access_denied");
  assert.equal(answers.at(-1).searchParams.get("code"), null);
  await page.context().close();
});

test("the consent pages pass the common checks", async () => {
  const page = await signedIn();
  await page.goto(asking());
  await every(page, "consent-loopback");
  const strange = "https://app.xn--bcher-kva.a-rather-long-name-of-a-host-that-has-to-break.example:8443/cb";
  const other = await register("Notebook Copilot", strange);
  await page.goto(asking({ client_id: other, redirect_uri: strange, scope: "api:models api:chat api:completions commerce:subscribe" }));
  await every(page, "consent-buying");
  await page.getByRole("button", { name: "Allow access and buying" }).waitFor();
  await page.goto("/oauth/authorize?client_id=unknown");
  await page.getByRole("heading", { name: "This request cannot be trusted" }).waitFor();
  await every(page, "consent-refused");
  await page.goto("/apps");
  await every(page, "apps-empty");
  await page.goto(asking());
  await page.getByRole("button", { name: "Allow access" }).click();
  await page.getByText("Back in the app.").waitFor();
  const form = { grant_type: "authorization_code", code: answers.at(-1).searchParams.get("code"), redirect_uri: redirect, client_id: client, code_verifier: verifier };
  assert.equal((await post("/oauth/token", new URLSearchParams(form))).status, 200);
  await page.goto("/apps");
  await every(page, "apps");
  await page.getByRole("link", { name: "Remove access for Notebook Copilot" }).click();
  await every(page, "apps-remove");
  await page.context().close();
});

test("another account decides on the same request", async () => {
  // The second has an account, and has got no code for a while: an address gets one in 30 seconds.
  const [first, second] = [person(), demo.sign_in_as];
  const page = await signUp(first);
  await page.goto(asking());
  await page.getByText(`Signed in as ${first}.`).waitFor();
  await every(page, "consent-account");
  await page.getByRole("button", { name: "Use another account" }).click();
  await page.getByText("Then you decide on access for “Notebook Copilot”.").waitFor();
  await identify(page, second);
  await page.getByText(`Signed in as ${second}.`).waitFor();
  await page.getByRole("button", { name: "Allow access" }).click();
  await page.getByText("Back in the app.").waitFor();
  assert.equal(answers.at(-1).searchParams.get("state"), "kept");
  assert.ok(answers.at(-1).searchParams.get("code"));
  await page.context().close();
});
