// The stock `@x402/fetch` paying the gateway: before the demo's own facilitator, and before the published facilitator classes on an EVM
// chain (anvil) whose token is compiled here.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import { setTimeout } from 'node:timers/promises';
import { promisify } from 'node:util';

import { x402Facilitator } from '@x402/core/facilitator';
import { ExactEvmScheme, toFacilitatorEvmSigner } from '@x402/evm';
import { registerExactEvmScheme } from '@x402/evm/exact/facilitator';
import { decodePaymentResponseHeader, wrapFetchWithPaymentFromConfig } from '@x402/fetch';
import { createWalletClient, http, publicActions } from 'viem';
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts';
import { foundry } from 'viem/chains';

const MERCHANT = '0x90F79bf6EB2c4f870365E785982E1f101E93b906';
const PRICE = 199_000_000n;
const BUY = '/commerce/subscriptions/svc-pro/x402';
const here = import.meta.dirname;

let number = 0;
const command = async (demo, ...words) => {
  const { stdout } = await promisify(execFile)(process.env.TOLLGATE_BIN, [...words, '--config', demo.config_file, '--json']);
  return JSON.parse(stdout);
};

// The key of a new account of a demo.
const newKey = async (demo) => {
  const { id } = await command(demo, 'account', 'create', '--email', `x402-${process.pid}-${++number}@example.com`);
  const { secret } = await command(demo, 'key', 'create', '--account', id, '--name', 'stock client');
  const noted = process.env.TOLLGATE_TEST_SECRETS;
  if (noted) appendFileSync(noted, `${secret}\n`);
  return secret;
};

const payer = (account, spendControls) =>
  wrapFetchWithPaymentFromConfig(fetch, {
    schemes: [{ network: 'eip155:*', client: new ExactEvmScheme(account) }],
    spendControls,
  });

const buy = (demo, key, pay) =>
  pay(demo.base_url + BUY, { method: 'POST', headers: { Authorization: `Bearer ${key}`, 'Content-Type': 'application/json' }, body: '{}' });

// The facilitator is asked in the background: until it has answered, nothing is offered.
const opens = async (demo, key) => {
  while ((await buy(demo, key, fetch)).status === 503) await setTimeout(250);
};

describe('before the facilitator of the demo', () => {
  const demo = JSON.parse(process.env.TOLLGATE_DEMO);
  const stock = () => privateKeyToAccount(generatePrivateKey());

  test('a stock client refuses until its cap is raised, and buys then', async () => {
    const key = await newKey(demo);
    await opens(demo, key);
    await assert.rejects(buy(demo, key, payer(stock(), undefined)));
    const account = stock();
    const paid = await buy(demo, key, payer(account, { maxAmountPerPayment: '$199' }));
    assert.equal(paid.status, 200);
    const body = await paid.json();
    assert.equal(body.already_active, false);
    assert.equal(body.subscription.route, 'x402');
    const receipt = decodePaymentResponseHeader(paid.headers.get('PAYMENT-RESPONSE'));
    assert.equal(receipt.success, true);
    assert.equal(receipt.payer, account.address);
    assert.equal(receipt.transaction, body.subscription.provider_reference);
    const again = await buy(demo, key, payer(account, { maxAmountPerPayment: '$199' }));
    assert.equal((await again.json()).already_active, true);
    assert.equal(again.headers.get('PAYMENT-RESPONSE'), null);
  });

  test('the script for newcomers buys and says so', async () => {
    const key = await newKey(demo);
    const run = promisify(execFile);
    const { stdout } = await run(process.execPath, [join(here, 'pay-x402.mjs'), demo.base_url, key]);
    assert.match(stdout, /bought/);
    const { stdout: again } = await run(process.execPath, [join(here, 'pay-x402.mjs'), demo.base_url, key]);
    assert.match(again, /had/);
  });
});

// A chain on this machine.
const chainHere = async () => {
  const child = spawn(join(here, 'node_modules/@foundry-rs/anvil-linux-amd64/bin/anvil'), ['--port', '0', '--chain-id', '31337'], { stdio: ['ignore', 'pipe', 'inherit'] });
  for await (const line of createInterface({ input: child.stdout })) {
    const url = line.match(/Listening on (\S+)/);
    if (url) return { child, url: `http://${url[1]}` };
  }
  throw new Error('anvil has ended');
};

const compiled = () => {
  const solc = createRequire(import.meta.url)('solc');
  const input = {
    language: 'Solidity',
    sources: { 'token.sol': { content: readFileSync(join(here, 'token.sol'), 'utf8') } },
    settings: { optimizer: { enabled: true }, viaIR: true, outputSelection: { '*': { '*': ['abi', 'evm.bytecode.object'] } } },
  };
  const output = JSON.parse(solc.compile(JSON.stringify(input)));
  const errors = (output.errors ?? []).filter((error) => error.severity === 'error');
  assert.deepEqual(errors, []);
  const { abi, evm } = output.contracts['token.sol'].Token;
  return { abi, bytecode: `0x${evm.bytecode.object}` };
};

// The published facilitator as a service; `lose` cuts the connection of the next settlement once it is carried out.
const facilitatorOn = async (wallet) => {
  const signer = toFacilitatorEvmSigner({
    address: wallet.account.address,
    readContract: (args) => wallet.readContract({ ...args, args: args.args ?? [] }),
    verifyTypedData: (args) => wallet.verifyTypedData(args),
    writeContract: (args) => wallet.writeContract({ ...args, args: args.args ?? [] }),
    sendTransaction: (args) => wallet.sendTransaction(args),
    waitForTransactionReceipt: (args) => wallet.waitForTransactionReceipt(args),
    getCode: (args) => wallet.getCode(args),
  });
  const facilitator = registerExactEvmScheme(new x402Facilitator(), { signer, networks: 'eip155:31337' });
  const seen = { settled: 0, lose: false };
  const server = createServer(async (request, response) => {
    const answer = (value) => response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(value));
    if (request.url === '/supported') return answer(facilitator.getSupported());
    let text = '';
    for await (const piece of request) text += piece;
    const { paymentPayload, paymentRequirements } = JSON.parse(text);
    if (request.url === '/verify') return answer(await facilitator.verify(paymentPayload, paymentRequirements));
    seen.settled += 1;
    const result = await facilitator.settle(paymentPayload, paymentRequirements);
    if (!seen.lose) return answer(result);
    seen.lose = false;
    request.socket.destroy();
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { server, seen, url: `http://127.0.0.1:${server.address().port}` };
};

describe('before the published facilitator on a chain', () => {
  let chain, facilitator, child, demo, folder, wallet, token;
  const balance = (address) => wallet.readContract({ address: token.address, abi: token.abi, functionName: 'balanceOf', args: [address] });

  before(async () => {
    chain = await chainHere();
    // The first account of every chain of this kind; it pays for gas.
    const account = privateKeyToAccount('0xac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80');
    wallet = createWalletClient({ account, chain: foundry, transport: http(chain.url) }).extend(publicActions);
    token = compiled();
    const receipt = await wallet.waitForTransactionReceipt({ hash: await wallet.deployContract(token) });
    token.address = receipt.contractAddress;
    facilitator = await facilitatorOn(wallet);
    folder = mkdtempSync(join(tmpdir(), 'tollgate-x402-'));
    const file = join(folder, 'over.toml');
    writeFileSync(
      file,
      `[payments.x402]
facilitator_url = "${facilitator.url}"
rpc_url = "${chain.url}"
network = "eip155:31337"
asset = "${token.address}"
asset_name = "USD Coin"
asset_version = "2"
pay_to = "${MERCHANT}"
`,
    );
    const words = ['demo', '--json', '--port', '0', '--config', file];
    child = spawn(process.env.TOLLGATE_BIN, words, { stdio: ['ignore', 'pipe', 'inherit'] });
    for await (const line of createInterface({ input: child.stdout })) {
      if (line.startsWith('{')) {
        demo = JSON.parse(line);
        break;
      }
    }
  });

  after(async () => {
    const ended = child && once(child, 'exit');
    child?.kill('SIGINT');
    await ended;
    facilitator?.server.close();
    facilitator?.server.closeAllConnections();
    chain?.child.kill();
    if (folder) rmSync(folder, { recursive: true });
  });

  const buyer = async (amount) => {
    const account = privateKeyToAccount(generatePrivateKey());
    const mint = { address: token.address, abi: token.abi, functionName: 'mint', args: [account.address, amount] };
    await wallet.waitForTransactionReceipt({ hash: await wallet.writeContract(mint) });
    return account;
  };
  const any = { maxAmountPerPayment: false, allowedAssets: true };

  test('a stock client pays, and the money is on the chain', async () => {
    const key = await newKey(demo);
    await opens(demo, key);
    const account = await buyer(PRICE);
    const before = await balance(MERCHANT);
    const paid = await buy(demo, key, payer(account, any));
    assert.equal(paid.status, 200, await paid.clone().text());
    assert.equal((await balance(MERCHANT)) - before, PRICE);
    assert.equal(await balance(account.address), 0n);
  });

  test('an answer that was lost is found on the chain: one transfer, one plan', async () => {
    const key = await newKey(demo);
    await opens(demo, key);
    const account = await buyer(PRICE * 3n);
    const before = await balance(MERCHANT);
    facilitator.seen.lose = true;
    const paid = await buy(demo, key, payer(account, any));
    assert.equal(facilitator.seen.lose, false, 'it was lost');
    assert.equal(paid.status, 200, await paid.clone().text());
    assert.equal((await paid.json()).already_active, false);
    assert.equal((await balance(MERCHANT)) - before, PRICE, 'once');
  });

  test('a wallet without the money is refused, and nothing moves', async () => {
    const key = await newKey(demo);
    await opens(demo, key);
    const account = await buyer(PRICE - 1n);
    const { settled } = facilitator.seen;
    const refused = await buy(demo, key, payer(account, any));
    assert.equal(refused.status, 402);
    const body = await refused.json();
    assert.equal(body.payment_state, 'refused');
    assert.equal(body.retry_action, 'pay_again');
    assert.equal(facilitator.seen.settled, settled);
    assert.equal(await balance(account.address), PRICE - 1n);
  });
});
