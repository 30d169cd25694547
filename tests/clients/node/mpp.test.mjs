// The stock package `mppx` against `tollgate demo`: it pays for the plan by a payment method that it does not know.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';

import { Challenge, Credential, Method, Receipt } from 'mppx';
import { Mppx } from 'mppx/client';
import { z } from 'zod/mini';

import { secret } from './person.mjs';

const demo = JSON.parse(process.env.TOLLGATE_DEMO);
const url = `${demo.base_url}/commerce/subscriptions/svc-pro/mpp`;

const tollgate = (...args) =>
  JSON.parse(execFileSync(process.env.TOLLGATE_BIN, [...args, '--config', demo.config_file, '--json'], { timeout: 60_000 }));

// The key of a new account.
function buyer(name) {
  const account = tollgate('account', 'create', '--email', `${name}-${process.pid}@example.com`, '--class', 'free').id;
  return secret(tollgate('key', 'create', '--account', account, '--name', name).secret);
}

const control = (path) => fetch(`${demo.paypal_url}/_control/${path}`, { method: 'POST' });

// What a client has to know of the method: the shape of what is asked for, and of the proof.
const method = Method.from({
  name: 'paypal',
  intent: 'charge',
  schema: {
    credential: { payload: z.object({ type: z.literal('subscription'), subscriptionId: z.string() }) },
    request: z.object({
      amount: z.string(),
      currency: z.string(),
      methodDetails: z.object({ approvalUrl: z.string(), subscriptionId: z.string() }),
    }),
  },
});

// A client whose owner agrees when `agrees` says so, at what number of challenge.
function client(agrees) {
  const seen = [];
  const paypal = Method.toClient(method, {
    async createCredential({ challenge }) {
      seen.push(challenge);
      const { subscriptionId, approvalUrl } = challenge.request.methodDetails;
      assert.ok(approvalUrl.startsWith(demo.paypal_url), approvalUrl);
      if (agrees(seen.length)) assert.ok((await control(`approve/${subscriptionId}`)).ok);
      return secret(Credential.serialize({ challenge, payload: { type: 'subscription', subscriptionId } }));
    },
  });
  return { seen, pay: Mppx.create({ methods: [paypal], polyfill: false }) };
}

// The account's credential goes with the first request in both fields, and stays in the second one beside the payment.
const headers = (key) => ({ authorization: `Bearer ${key}`, 'x-svc-authorization': `Bearer ${key}` });

test('mppx pays for the plan and gets its receipt', async () => {
  const key = buyer('mppx');
  const { seen, pay } = client(() => true);
  const answer = await pay.fetch(url, { method: 'POST', headers: headers(key) });
  const said = await answer.json();
  assert.equal(answer.status, 200, JSON.stringify(said));
  assert.equal(said.success, true);
  assert.equal(said.subscription.status, 'active');
  assert.equal(seen.length, 1);
  assert.equal(seen[0].realm, new URL(demo.base_url).hostname);
  assert.equal(seen[0].request.amount, '19900');
  assert.equal(seen[0].request.currency, 'USD');
  const receipt = Receipt.deserialize(answer.headers.get('payment-receipt'));
  assert.equal(receipt.status, 'success');
  assert.equal(receipt.method, 'paypal');
  assert.equal(receipt.reference, seen[0].request.methodDetails.subscriptionId);

  const again = await pay.fetch(url, { method: 'POST', headers: headers(key) });
  assert.equal(again.status, 200);
  assert.equal((await again.json()).already_active, true);
  assert.equal(seen.length, 1, 'nothing more is asked for');
});

test('mppx is asked again, for the same subscription, until the owner has agreed', async () => {
  const key = buyer('mppx-waits');
  const { seen, pay } = client((times) => times === 3);
  const answer = await pay.fetch(url, { method: 'POST', headers: headers(key) });
  assert.equal(answer.status, 200, await answer.text());
  assert.equal(seen.length, 3);
  const subscriptions = new Set(seen.map((challenge) => challenge.request.methodDetails.subscriptionId));
  assert.equal(subscriptions.size, 1);
  assert.equal(new Set(seen.map((challenge) => challenge.id)).size, 3);
});

test('mppx gives up on an owner who does not agree, and nothing is charged', async () => {
  const key = buyer('mppx-never');
  const { seen, pay } = client(() => false);
  const answer = await pay.fetch(url, { method: 'POST', headers: headers(key) });
  assert.equal(answer.status, 402);
  const said = await answer.json();
  assert.equal(said.payment_state, 'approval_pending');
  assert.equal(said.retry_action, 'approve_then_retry');
  const id = seen[0].request.methodDetails.subscriptionId;
  const { subscriptions } = await (await fetch(`${demo.paypal_url}/_control/subscriptions`)).json();
  assert.equal(subscriptions.find((one) => one.id === id).kept_cents, 0);
});

test('a challenge is what mppx takes for one, and its credential is not believed from another account', async () => {
  const [mine, theirs] = [buyer('mppx-mine'), buyer('mppx-theirs')];
  const offered = await fetch(url, { method: 'POST', headers: headers(mine) });
  assert.equal(offered.status, 402);
  const challenge = Challenge.fromResponse(offered);
  assert.ok(new Date(challenge.expires) > new Date());
  const { subscriptionId } = challenge.request.methodDetails;
  const credential = secret(Credential.serialize({ challenge, payload: { type: 'subscription', subscriptionId } }));
  const stolen = await fetch(url, {
    method: 'POST',
    headers: { authorization: credential, 'x-svc-authorization': `Bearer ${theirs}` },
  });
  assert.equal(stolen.status, 402);
  assert.equal((await stolen.json()).type, 'https://paymentauth.org/problems/invalid-challenge');
});

test('mppx finds nothing wrong with the route and its documents', () => {
  const program = new URL(import.meta.resolve('mppx')).pathname.replace(/[^/]+$/, 'bin.js');
  const key = buyer('mppx-validate');
  const args = [program, 'validate', demo.base_url, '-e', `POST:${new URL(url).pathname}`, '-H', `Authorization: Bearer ${key}`];
  // Under `CI` it would write colours into a pipe too.
  const env = { ...process.env, NO_COLOR: '1' };
  // Ends with another status than 0 when it finds something.
  const said = execFileSync(process.execPath, args, { env, timeout: 60_000, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  assert.match(said, /✓ Challenge parseable \(paypal\/charge\)/);
  assert.match(said, /✓ Realm matches server hostname/);
  assert.doesNotMatch(said, /✗/, said);
});
