// The plan bought from `tollgate demo` by each of the scripts that the README names, and what its owner sees of it then.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { test } from 'node:test';

import { Person, secret } from './person.mjs';

const demo = JSON.parse(process.env.TOLLGATE_DEMO);
const scripts = process.env.TOLLGATE_CLIENTS;

const tollgate = (...args) =>
  JSON.parse(execFileSync(process.env.TOLLGATE_BIN, [...args, '--config', demo.config_file, '--json'], { timeout: 60_000 }));

// A new account, and the key of its program.
function newAccount(name) {
  const address = `${name}-${process.pid}@example.net`;
  const account = tollgate('account', 'create', '--email', address, '--class', 'free').id;
  const key = secret(tollgate('key', 'create', '--account', account, '--name', name).secret);
  return { person: new Person(demo, address), key };
}

// Runs a script; `onLine` gets each line, and when its promise resolves the script gets a line feed. Returns the output of a successful run.
async function runs(name, args, onLine = () => {}) {
  const script = spawn(join(scripts, name), args, { stdio: ['pipe', 'pipe', 'pipe'] });
  const said = [];
  for (const stream of [script.stdout, script.stderr]) {
    createInterface({ input: stream }).on('line', (line) => {
      said.push(line);
      onLine(line)?.then(() => script.stdin.write('\n'), () => script.kill());
    });
  }
  const [status] = await once(script, 'close');
  assert.equal(status, 0, said.join('\n'));
  return said.join('\n');
}

// The requests that an account may send in a minute.
async function quota(key) {
  const answer = await fetch(`${demo.base_url}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
  await answer.text();
  return answer.headers.get('ratelimit-limit');
}

// What holds however it was bought: the quota is another at once, the owner sees the plan, and buying again charges nothing.
async function has({ person, key }, renewal, again) {
  assert.equal(await quota(key), '600');
  for (const path of ['/plan', '/']) {
    const page = await person.read(path);
    assert.match(page, /Active/, path);
    assert.match(page, renewal, path);
  }
  assert.match(await person.read('/plan'), /Payments for the plan/);
  assert.match(await again(), /already|^had/m);
}

test('a program buys the plan with x402', async () => {
  const buyer = newAccount('x402');
  const before = await quota(buyer.key);
  const buy = () => runs('pay-x402', [demo.base_url, buyer.key]);
  assert.match(await buy(), /^bought/m);
  assert.notEqual(await quota(buyer.key), before);
  await has(buyer, /does not renew/, buy);
});

test('a program buys the plan with MPP', async () => {
  const buyer = newAccount('mpp');
  const buy = () => runs('pay-mpp.py', [demo.base_url, buyer.key, demo.paypal_url]);
  assert.match(await buy(), /the plan is active/);
  await has(buyer, /PayPal charges [^.]+\.00 USD next on [^,]+, and every month after it/, buy);
});

test('a program buys the plan with UCP, and its owner finishes the checkout', async () => {
  const buyer = newAccount('ucp');
  let finished;
  const buy = () =>
    runs('pay-ucp.py', [demo.base_url, buyer.key], (line) => {
      const url = line.match(/http\S+\/commerce\/continue\/\S+/)?.[0];
      if (url) return (finished = buyer.person.finish(url));
    });
  assert.match(await buy(), /the account has the plan/);
  assert.match(await finished, /is active/);
  await has(buyer, /PayPal charges [^.]+\.00 USD next on [^,]+, and every month after it/, buy);
});
