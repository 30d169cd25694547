// What every test of a page needs: the demo, a browser, people who sign in, and what holds for every page.
//
//   import { beforeEach, test } from "node:test";
//   import { every, open, person, signedIn } from "./browser.mjs";
//
//   test("the page of keys", async () => {
//     const page = await signedIn();                      // demo@example.net, or signedIn("person@example.net")
//     await page.goto("/keys");
//     await every(page, "keys");                          // sideways scroll, axe, headings, 200 % text; pictures
//   });

import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after } from "node:test";

import { chromium } from "playwright-core";

/** Addresses and keys of the demo, as it printed them. */
export const demo = JSON.parse(process.env.TOLLGATE_DEMO);

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const pictures = process.env.TOLLGATE_SCREENSHOTS;
const WIDTHS = [320, 390, 1280];
const HEIGHT = 900;

let chromiumRuns;

/** The one browser of this file. */
function browser() {
  chromiumRuns ??= chromium.launch({
    executablePath: process.env.TOLLGATE_CHROMIUM,
    // Tests run as root in containers, which its sandbox refuses; it opens nothing but the demo.
    args: ["--no-sandbox", "--disable-dev-shm-usage"],
  });
  return chromiumRuns;
}

after(async () => {
  if (chromiumRuns) await (await chromiumRuns).close();
});

/**
 * A page in a browser of its own, as one person has it. `options.javaScriptEnabled: false` is a browser without scripts,
 * `options.colorScheme: "dark"` one at night. Whatever a policy stops, or a script fails at, fails the test that closes or judges it.
 */
export async function open(options = {}) {
  const context = await (await browser()).newContext({
    baseURL: demo.base_url,
    // A colour on its way to another is no colour to judge.
    reducedMotion: "reduce",
    viewport: { width: 1280, height: HEIGHT },
    ...options,
  });
  const page = await context.newPage();
  page.complaints = [];
  page.on("console", (message) => {
    if (message.type() === "error" || /Content Security Policy|Refused to/.test(message.text())) {
      // A status of 4xx is written to the console too, and is what some tests are after.
      if (!/status of 4\d\d/.test(message.text())) page.complaints.push(message.text());
    }
  });
  page.on("pageerror", (error) => page.complaints.push(String(error)));
  return page;
}

/** The newest code that was sent to an address, once there are more than `before`. */
export async function code(address, before = 0) {
  const at = `${demo.mailbox_url}/_control/messages?to=${encodeURIComponent(address)}`;
  for (;;) {
    const messages = await (await fetch(at)).json();
    if (messages.length > before) return messages.at(-1).text.match(/\b\d{8}\b/)[0];
    await new Promise((done) => setTimeout(done, 50));
  }
}

/** How many messages went to an address. */
export async function sent(address) {
  const at = `${demo.mailbox_url}/_control/messages?to=${encodeURIComponent(address)}`;
  return (await (await fetch(at)).json()).length;
}

let people = 0;

/** An unused address. */
export function person() {
  people += 1;
  return `person-${process.pid}-${people}@example.net`;
}

/** Makes an account and stays signed in to it. */
export async function signUp(address = person(), options = {}) {
  return enter("/sign-up", address, options);
}

/** Cookies of each address that has signed in to this demo, for all files: an address gets one code in 30 seconds. */
const SESSIONS = new URL(`sessions-${new URL(demo.base_url).port}.json`, import.meta.url);

/** A signed-in page. The session is reused. */
export async function signedIn(address = demo.sign_in_as, options = {}) {
  const sessions = existsSync(SESSIONS) ? JSON.parse(readFileSync(SESSIONS)) : {};
  if (!sessions[address]) {
    const known = address === demo.sign_in_as;
    const page = await enter(known ? "/sign-in" : "/sign-up", address, {});
    sessions[address] = await page.context().cookies();
    writeFileSync(SESSIONS, JSON.stringify(sessions));
    await page.context().close();
  }
  const page = await open(options);
  await page.context().addCookies(sessions[address]);
  return page;
}

async function enter(at, address, options) {
  const page = await open(options);
  await page.goto(at);
  await identify(page, address);
  await page.waitForURL((url) => url.pathname === "/");
  return page;
}

/** Signs in, or up, on the page that asks for an address. */
export async function identify(page, address) {
  for (;;) {
    const before = await sent(address);
    await page.getByLabel("E-mail or phone number").fill(address);
    await page.getByRole("button", { name: "Send code" }).click();
    if (new URL(page.url()).pathname === "/sign-in/code") {
      await page.getByLabel("Code").fill(await code(address, before));
      await page.getByRole("button", { name: "Continue" }).click();
      return;
    }
    // A code was sent to the same address a moment ago.
    await page.waitForTimeout(2000);
  }
}

/**
 * What holds for every page, whatever it is about, with pictures of it named `name`: light and dark, three widths, text at 200 %, the order
 * of headings, landmarks, and nothing that a policy or a script complained of. Leaves the page as it was.
 */
export async function every(page, name) {
  mkdirSync(pictures, { recursive: true });
  const scripts = await page.evaluate(() => true).catch(() => false);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    for (const width of WIDTHS) {
      await page.setViewportSize({ width, height: HEIGHT });
      await noSidewaysScroll(page, `${name} at ${width} px, ${colorScheme}`);
      if (width > 320) {
        const path = join(pictures, `${name}-${width}-${colorScheme}.png`);
        await page.screenshot({ path, fullPage: true });
        if (scripts) await accessible(page, `${name} at ${width} px, ${colorScheme}`);
      }
    }
  }
  await page.emulateMedia({ colorScheme: "light" });
  await page.setViewportSize({ width: 1280, height: HEIGHT });
  await headingsInOrder(page, name);
  await largeText(page, name);
  assert.deepEqual(page.complaints, [], `${name}: what the browser complained of`);
}

export async function noSidewaysScroll(page, where) {
  const [inside, window] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  assert.ok(inside <= window, `${where}: ${inside} px wide in a window of ${window} px`);
}

/** axe-core finds nothing. Run in a world of its own, so that the page's policy does not keep it out. */
export async function accessible(page, where) {
  const session = await page.context().newCDPSession(page);
  const { frameTree } = await session.send("Page.getFrameTree");
  const world = await session.send("Page.createIsolatedWorld", { frameId: frameTree.frame.id });
  const run = async (expression) => {
    const answer = await session.send("Runtime.evaluate", {
      expression,
      contextId: world.executionContextId,
      awaitPromise: true,
      returnByValue: true,
    });
    assert.equal(answer.exceptionDetails, undefined, JSON.stringify(answer.exceptionDetails));
    return answer.result.value;
  };
  await run(`${axe}; true`);
  const found = await run(`axe.run(document, { resultTypes: ["violations"] }).then((all) =>
    all.violations.map((one) => one.id + ": " + one.help + " at " + one.nodes.map((node) => node.target + " " + node.html).join(" | ")))`);
  await session.detach();
  assert.deepEqual(found, [], `${where}: findings of axe`);
}

/** One h1, and no level left out on the way down. */
export async function headingsInOrder(page, where) {
  const levels = await page.evaluate(() =>
    [...document.querySelectorAll("h1,h2,h3,h4,h5,h6")]
      .filter((one) => one.checkVisibility())
      .map((one) => Number(one.tagName[1])),
  );
  assert.equal(levels.filter((level) => level === 1).length, 1, `${where}: one h1 in ${levels}`);
  const main = levels.slice(levels.indexOf(1));
  main.reduce((before, level) => {
    assert.ok(level <= before + 1, `${where}: from h${before} to h${level}`);
    return level;
  });
}

/** Text of twice the size: nothing scrolls sideways. */
export async function largeText(page, where) {
  const sheet = await page.evaluateHandle(() => {
    const before = document.documentElement.style.fontSize;
    document.documentElement.style.setProperty("font-size", "200%");
    return { before };
  });
  await noSidewaysScroll(page, `${where} with text at 200 %`);
  await page.evaluate(({ before }) => {
    document.documentElement.style.fontSize = before;
  }, await sheet.jsonValue());
}

/** Presses Tab until what has the focus is called `name`; fails after going round. */
export async function tabTo(page, name) {
  for (let presses = 0; presses < 200; presses += 1) {
    await page.keyboard.press("Tab");
    const here = await page.evaluate(() => {
      const one = document.activeElement;
      const label = one.labels?.[0]?.textContent ?? one.getAttribute("aria-label") ?? one.textContent;
      return (label ?? "").replace(/\s+/g, " ").trim();
    });
    if (here === name) {
      const seen = await page.evaluate(() => getComputedStyle(document.activeElement).outlineStyle !== "none");
      assert.ok(seen, `the focus on ${name} can be seen`);
      return;
    }
  }
  assert.fail(`Tab never reaches ${name}`);
}
