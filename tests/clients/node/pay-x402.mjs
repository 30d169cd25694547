// Buys the plan of a tollgate demo with stock x402 packages: a wallet is made, the offer of the 402 is signed with it, and the request is
// sent again with the payment. The demo's chain gives every wallet enough USDC; elsewhere the wallet has to have it.
//
//   pay-x402.mjs BASE_URL API_KEY [PRIVATE_KEY]
//
// PLAN in the environment names another plan than that of a service with the usual name.

import { ExactEvmScheme } from '@x402/evm';
import { decodePaymentResponseHeader, wrapFetchWithPaymentFromConfig } from '@x402/fetch';
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts';

const [baseUrl, apiKey, privateKey = generatePrivateKey()] = process.argv.slice(2);
if (!apiKey) {
  console.error('usage: pay-x402.mjs BASE_URL API_KEY [PRIVATE_KEY]');
  process.exit(2);
}
const plan = process.env.PLAN ?? 'svc-pro';
const account = privateKeyToAccount(privateKey);
const pay = wrapFetchWithPaymentFromConfig(fetch, {
  schemes: [{ network: 'eip155:*', client: new ExactEvmScheme(account) }],
  // Stock clients sign for at most 1 USD by default.
  spendControls: { maxAmountPerPayment: '$199' },
});
const answer = await pay(`${baseUrl}/commerce/subscriptions/${plan}/x402`, {
  method: 'POST',
  headers: { Authorization: `Bearer ${apiKey}`, 'Content-Type': 'application/json' },
  body: '{}',
});
const body = await answer.json();
if (!answer.ok) {
  console.error(`${answer.status}: ${body.detail ?? JSON.stringify(body)}`);
  process.exit(1);
}
const receipt = answer.headers.get('PAYMENT-RESPONSE');
if (receipt) {
  const { payer, transaction, network } = decodePaymentResponseHeader(receipt);
  console.log(`paid by   ${payer}\nin        ${transaction} on ${network}`);
}
console.log(`${body.already_active ? 'had' : 'bought'}       ${body.product.name}, until ${body.subscription.current_period_end}`);
