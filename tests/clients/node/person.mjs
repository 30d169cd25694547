// A person with a browser that runs no script: its cookies, forms as the pages have them, and a mailbox.

import assert from 'node:assert/strict';
import { appendFileSync } from 'node:fs';

// A message takes a moment; this many looks are far more than one needs.
const LOOKS = 2400;

export class Person {
  #demo;
  #address;
  #cookies = new Map();

  constructor(demo, address) {
    this.#demo = demo;
    this.#address = address;
  }

  // Opens a page, or sends a form. Gives the answer; the caller follows redirects.
  async #send(path, fields) {
    const cookie = [...this.#cookies].map(([name, value]) => `${name}=${value}`).join('; ');
    const request = { headers: cookie ? { cookie } : {}, redirect: 'manual' };
    if (fields) Object.assign(request, { method: 'POST', body: new URLSearchParams(fields) });
    const answer = await fetch(new URL(path, this.#demo.base_url), request);
    for (const given of answer.headers.getSetCookie()) {
      const [, name, value] = given.match(/^([^=]+)=([^;]*)/);
      this.#cookies.set(name, value);
    }
    return answer;
  }

  // The page at the end of a path, with the path it was found at.
  async #open(path) {
    for (let hops = 0; hops < 10; hops += 1) {
      const answer = await this.#send(path);
      if (answer.status !== 303) return { path, answer, text: await answer.text() };
      path = answer.headers.get('location');
    }
    throw new Error(`${path} leads round in circles`);
  }

  // Sends the form of a page: its own hidden fields, and these.
  async #submit(page, action, fields) {
    const hidden = [...page.text.matchAll(/<input type="hidden" name="([^"]+)" value="([^"]*)"/g)];
    const own = Object.fromEntries(hidden.map(([, name, value]) => [name, value.replaceAll('&amp;', '&')]));
    return this.#send(action, { ...own, ...fields });
  }

  // The newest code that came to the address.
  async #code() {
    const url = `${this.#demo.mailbox_url}/_control/messages?to=${encodeURIComponent(this.#address)}`;
    for (let look = 0; look < LOOKS; look += 1) {
      const messages = await (await fetch(url)).json();
      const code = messages.at(-1)?.text.match(/\b\d{6,8}\b/)?.[0];
      if (code) return code;
      await new Promise((wake) => setTimeout(wake, 25));
    }
    throw new Error(`no code came to ${this.#address}`);
  }

  // Opens a page for those who are signed in; otherwise signs in by a code first.
  async #enter(path) {
    let page = await this.#open(path);
    if (page.path.startsWith('/sign-in')) {
      assert.equal(page.answer.status, 200, page.text);
      const sent = await this.#submit(page, '/sign-in', { address: this.#address });
      assert.equal(sent.status, 303, await sent.text());
      page = await this.#open(sent.headers.get('location'));
      const typed = await this.#submit(page, '/sign-in/code', { code: await this.#code() });
      assert.equal(typed.status, 303, await typed.text());
      page = await this.#open(typed.headers.get('location'));
    }
    return page;
  }

  // Goes where an app sends the browser: signs in with a code, reads the page, and decides. Gives the address that the browser goes on to.
  async decide(url, decision = 'allow') {
    const page = await this.#enter(url.href ?? url);
    assert.match(page.path, /^\/consent\//, page.text);
    assert.equal(page.answer.status, 200, page.text);
    assert.match(page.text, /Access goes to/);
    const decided = await this.#submit(page, page.path, { decision });
    assert.equal(decided.status, 303, await decided.text());
    return new URL(decided.headers.get('location'));
  }

  // Finishes a checkout that a program has begun: reads what it costs, goes to PayPal, agrees there, and comes back.
  async finish(url) {
    const { pathname } = new URL(url);
    const page = await this.#enter(pathname);
    assert.equal(page.path, pathname, page.text);
    assert.match(page.text, /199\.00 USD each month/);
    const sent = await this.#submit(page, pathname, {});
    assert.equal(sent.status, 303, await sent.text());
    const ready = await this.#open(sent.headers.get('location'));
    const link = ready.text.match(/href="([^"]+)"[^>]*>Continue to PayPal/)[1].replaceAll('&amp;', '&');
    const agreed = await fetch(link, { method: 'POST', body: new URLSearchParams({ agree: '1' }), redirect: 'manual' });
    assert.equal(agreed.status, 303, await agreed.text());
    const { pathname: back, search } = new URL(agreed.headers.get('location'));
    return (await this.#open(back + search)).text;
  }

  // A page, as they see it who are signed in.
  async read(path) {
    return (await this.#enter(path)).text;
  }

  // Takes from the app that is listed first what it may do.
  async removeFirstApp() {
    const apps = await this.#open('/apps');
    const path = apps.text.match(/href="(\/apps\/[^"]+\/remove)"/)[1];
    const removed = await this.#submit(await this.#open(path), path, {});
    assert.equal(removed.status, 303, await removed.text());
  }
}

// Registers a secret for the search of the suite's output.
export function secret(text) {
  if (process.env.TOLLGATE_TEST_SECRETS) appendFileSync(process.env.TOLLGATE_TEST_SECRETS, `${text}\n`);
  return text;
}
