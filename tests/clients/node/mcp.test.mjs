// The stock `@modelcontextprotocol/sdk` on both sides of the gateway: its client finds the way in by itself, a person approves it, and it
// talks to a server of the same package.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { appendFileSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';

import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { LoggingMessageNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import { z } from 'zod';

const text = (text) => ({ content: [{ type: 'text', text }] });

// A server of the package. Its tools show what a gateway could spoil: fields, streams, what is said unasked.
const tools = () => {
  const server = new McpServer({ name: 'real', version: '1.0.0' }, { capabilities: { logging: {} } });
  server.registerTool('add', { inputSchema: { a: z.number(), b: z.number() } }, async ({ a, b }) => text(String(a + b)));
  server.registerTool('fields', { inputSchema: {} }, async (_, extra) => text(JSON.stringify(extra.requestInfo.headers)));
  server.registerTool('count', { inputSchema: { to: z.number() } }, async ({ to }, extra) => {
    for (let progress = 1; progress <= to; progress++) {
      const params = { progressToken: extra._meta?.progressToken ?? 0, progress, total: to };
      await extra.sendNotification({ method: 'notifications/progress', params });
    }
    return text('counted');
  });
  server.registerTool('call-back', { inputSchema: {} }, async () => {
    await server.server.sendLoggingMessage({ level: 'info', data: 'unasked' });
    return text('called');
  });
  return server;
};

const serve = async () => {
  const sessions = new Map();
  const server = createServer(async (request, response) => {
    const id = request.headers['mcp-session-id'];
    let transport = sessions.get(id);
    if (!transport) {
      if (id) return response.writeHead(404).end();
      transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID,
        onsessioninitialized: (id) => sessions.set(id, transport),
        onsessionclosed: (id) => sessions.delete(id),
      });
      await tools().connect(transport);
    }
    await transport.handleRequest(request, response);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return { server, sessions };
};

// A demo whose MCP resource leads to that server.
const demoBefore = async (port) => {
  const folder = mkdtempSync(join(tmpdir(), 'tollgate-mcp-'));
  const file = join(folder, 'over.toml');
  writeFileSync(file, `[mcp.general]\nupstream = "http://127.0.0.1:${port}/mcp"\n`);
  const words = ['demo', '--json', '--port', '0', '--config', file];
  const child = spawn(process.env.TOLLGATE_BIN, words, { stdio: ['ignore', 'pipe', 'inherit'] });
  for await (const line of createInterface({ input: child.stdout })) {
    if (line.startsWith('{')) return { demo: JSON.parse(line), child, folder };
  }
  throw new Error('the demo has ended');
};

// A browser without JavaScript: follows redirects, and keeps one cookie.
class Person {
  constructor(demo) {
    this.demo = demo;
    this.cookie = '';
  }

  async open(address, form) {
    const url = new URL(address, this.demo.base_url);
    const options = { redirect: 'manual', headers: { cookie: this.cookie } };
    const answer = await fetch(url, form ? { ...options, method: 'POST', body: new URLSearchParams(form) } : options);
    const given = answer.headers.get('set-cookie');
    if (given) this.cookie = given.split(';')[0];
    const location = answer.headers.get('location');
    if (!location) return { page: await answer.text(), status: answer.status };
    const next = new URL(location, url);
    return next.origin === new URL(this.demo.base_url).origin ? this.open(next) : { left: next };
  }

  // Fills in the form that leads to `action`, with what the page has put into it.
  submit(page, action, fields) {
    const form = page.split('<form').find((form) => form.includes(`action="${action}`));
    assert.ok(form, `no form for ${action} in ${page}`);
    const hidden = [...form.matchAll(/type="hidden" name="([^"]+)" value="([^"]*)"/g)];
    const target = form.match(/action="([^"]+)"/)[1];
    return this.open(target, { ...Object.fromEntries(hidden.map(([, name, value]) => [name, value])), ...fields });
  }

  async code() {
    const messages = `${this.demo.mailbox_url}/_control/messages?to=${encodeURIComponent(this.demo.sign_in_as)}`;
    for (;;) {
      const last = (await (await fetch(messages)).json()).at(-1);
      const code = last?.text.match(/^\d{6,8}$/m) ?? last?.text.match(/\b\d{6,8}\b/);
      if (code) return code[0];
    }
  }

  // Opens the address that a client asked to open, signs in, and allows what is asked.
  async approve(address) {
    let { page } = await this.open(address);
    if (page.includes('action="/sign-in"')) {
      ({ page } = await this.submit(page, '/sign-in', { address: this.demo.sign_in_as }));
      ({ page } = await this.submit(page, '/sign-in/code', { code: await this.code() }));
    }
    const { left } = await this.submit(page, '/consent/', { decision: 'allow' });
    return left;
  }
}

// What an application keeps for the client of the package.
class Application {
  redirectUrl = 'http://127.0.0.1:9/callback';
  clientMetadata = {
    client_name: 'Stock client',
    redirect_uris: [this.redirectUrl],
    grant_types: ['authorization_code'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  };
  state = () => (this.sent = randomUUID());
  clientInformation = () => this.client;
  saveClientInformation = (client) => void (this.client = client);
  tokens = () => this.kept;
  saveTokens = (tokens) => void (this.kept = tokens);
  saveCodeVerifier = (verifier) => void (this.verifier = verifier);
  codeVerifier = () => this.verifier;
  redirectToAuthorization = (address) => void (this.address = address);
}

let house, started, person;

before(async () => {
  house = await serve();
  started = await demoBefore(house.server.address().port);
  person = new Person(started.demo);
});

after(async () => {
  started?.child.kill('SIGINT');
  if (started) await once(started.child, 'exit');
  house?.server.closeAllConnections();
  house?.server.close();
  if (started) rmSync(started.folder, { recursive: true });
});

// A client that went through all of it: refused, sent to the person, approved, connected.
const connected = async (address = started.demo.mcp_url) => {
  const application = new Application();
  const url = new URL(address);
  const first = new StreamableHTTPClientTransport(url, { authProvider: application });
  await assert.rejects(new Client({ name: 'stock', version: '1' }).connect(first), UnauthorizedError);
  const left = await person.approve(application.address);
  assert.equal(left.searchParams.get('state'), application.sent);
  assert.equal(left.searchParams.get('iss'), started.demo.base_url);
  await first.finishAuth(left.searchParams.get('code'));
  if (process.env.TOLLGATE_TEST_SECRETS) {
    appendFileSync(process.env.TOLLGATE_TEST_SECRETS, `${application.kept.access_token}\n`);
  }
  const transport = new StreamableHTTPClientTransport(url, {
    authProvider: application,
    requestInit: { headers: { 'X-Svc-Owner': 'acct_forged', X_Svc_Owner: 'acct_forged' } },
  });
  const client = new Client({ name: 'stock', version: '1' });
  const said = [];
  client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => void said.push(params.data));
  await client.connect(transport);
  return { application, client, transport, said };
};

const call = async (client, name, args = {}, options) =>
  (await client.callTool({ name, arguments: args }, undefined, options)).content[0].text;

describe('an MCP client finds its way in and is served', () => {
  test('it asks for every scope of the resource, and calls tools as the person who approved it', async () => {
    const { application, client, transport, said } = await connected();
    assert.equal(application.kept.scope, 'mcp:chat mcp:projects mcp:devices');
    const { tools } = await client.listTools();
    assert.deepEqual(tools.map((tool) => tool.name), ['add', 'fields', 'count', 'call-back']);
    assert.equal(await call(client, 'add', { a: 2, b: 3 }), '5');

    const fields = JSON.parse(await call(client, 'fields'));
    assert.equal(fields['x-svc-owner'], started.demo.account);
    assert.equal(fields['x-svc-scopes'], 'mcp:chat mcp:projects mcp:devices');
    assert.match(fields['x-request-id'], /^req_[0-9a-f]{32}$/);
    assert.equal(fields.x_svc_owner, undefined);
    assert.equal(fields.authorization, undefined);

    const seen = [];
    const onprogress = ({ progress }) => seen.push(progress);
    assert.equal(await call(client, 'count', { to: 5 }, { onprogress }), 'counted');
    assert.deepEqual(seen, [1, 2, 3, 4, 5]);

    // What a server says unasked comes on a stream that the client holds open.
    assert.equal(await call(client, 'call-back'), 'called');
    while (said.length === 0) await client.ping();
    assert.deepEqual(said, ['unasked']);

    assert.equal(house.sessions.size, 1);
    await transport.terminateSession();
    assert.equal(house.sessions.size, 0);
    await client.close();
  });

  test('an address that ends in a slash is as good', async () => {
    const { application, client, transport } = await connected(`${started.demo.mcp_url}/`);
    assert.equal(application.kept.scope, 'mcp:chat mcp:projects mcp:devices');
    assert.equal(await call(client, 'add', { a: 2, b: 3 }), '5');
    await transport.terminateSession();
    await client.close();
  });

  test('its token opens nothing else, and nothing at all once it is given back', async () => {
    const { application, client } = await connected();
    const token = application.kept.access_token;
    const ask = (path) =>
      fetch(new URL(path, started.demo.base_url), { headers: { authorization: `Bearer ${token}`, accept: 'text/event-stream' } });
    for (const path of ['/v1/models', '/mcp/android']) {
      const answer = await ask(path);
      assert.equal(answer.status, 401, path);
      assert.match(answer.headers.get('www-authenticate'), /^Bearer error="invalid_token"/);
    }
    const body = new URLSearchParams({ token, token_type_hint: 'access_token' });
    const revoked = await fetch(new URL('/oauth/revoke', started.demo.base_url), { method: 'POST', body });
    assert.equal(revoked.status, 200);
    await assert.rejects(call(client, 'add', { a: 1, b: 1 }), UnauthorizedError);
    await client.close();
  });
});
