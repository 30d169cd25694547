// The stock packages `oauth4webapi` and `@modelcontextprotocol/sdk` against `tollgate demo`: register, sign in, allow, exchange, call, revoke.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { test } from 'node:test';

import { auth } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import * as oauth from 'oauth4webapi';

import { Person, secret } from './person.mjs';

const demo = JSON.parse(process.env.TOLLGATE_DEMO);
// The demo speaks plain HTTP on this computer.
const plain = { [oauth.allowInsecureRequests]: true };

const tollgate = (...args) =>
  JSON.parse(execFileSync(process.env.TOLLGATE_BIN, [...args, '--config', demo.config_file, '--json'], { timeout: 60_000 }));

// An account with credits.
function person(name) {
  const address = `${name}-${process.pid}@example.com`;
  const account = tollgate('account', 'create', '--email', address, '--class', 'pro').id;
  tollgate('credits', 'grant', '--account', account, '--amount', '5', '--reference', name);
  return new Person(demo, address);
}

// What oauth4webapi checks of every answer on the way to a token.
async function register(redirectUri) {
  const resource = new URL(`${demo.base_url}/v1`);
  const described = await oauth.resourceDiscoveryRequest(resource, plain);
  const about = await oauth.processResourceDiscoveryResponse(resource, described);
  assert.deepEqual(about.authorization_servers, [demo.base_url]);
  const issuer = new URL(about.authorization_servers[0]);
  const found = await oauth.discoveryRequest(issuer, { algorithm: 'oauth2', ...plain });
  const server = await oauth.processDiscoveryResponse(new URL(demo.base_url), found);
  const metadata = { client_name: 'Stock client', redirect_uris: [redirectUri], token_endpoint_auth_method: 'none' };
  const registered = await oauth.dynamicClientRegistrationRequest(server, metadata, plain);
  const client = await oauth.processDynamicClientRegistrationResponse(registered);
  return { server, client, resource: resource.href };
}

async function ask({ server, client, resource }, redirectUri, scope) {
  const verifier = oauth.generateRandomCodeVerifier();
  const state = oauth.generateRandomState();
  const url = new URL(server.authorization_endpoint);
  url.search = new URLSearchParams({
    client_id: client.client_id,
    redirect_uri: redirectUri,
    response_type: 'code',
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    scope,
    resource,
    state,
  });
  return { url, verifier, state };
}

test('oauth4webapi goes the whole way and gives its token back', async () => {
  const redirectUri = 'http://127.0.0.1:47211/cb';
  const own = await register(redirectUri);
  const { server, client, resource } = own;
  const { url, verifier, state } = await ask(own, 'http://127.0.0.1:50999/cb', 'api:models api:chat');
  const back = await person('oauth4webapi').decide(url);
  assert.equal(back.origin, 'http://127.0.0.1:50999');
  // Checks `state`, and `iss` since the metadata promises it.
  const answer = oauth.validateAuthResponse(server, client, back, state);
  secret(answer.get('code'));
  const exchange = () =>
    oauth.authorizationCodeGrantRequest(server, client, oauth.None(), answer, 'http://127.0.0.1:50999/cb', verifier, {
      additionalParameters: { resource },
      ...plain,
    });
  const tokens = await oauth.processAuthorizationCodeResponse(server, client, await exchange());
  secret(tokens.access_token);
  assert.equal(tokens.scope, 'api:models api:chat');
  const call = () =>
    oauth.protectedResourceRequest(tokens.access_token, 'GET', new URL(`${demo.base_url}/v1/models`), undefined, undefined, plain);
  assert.equal((await call()).status, 200);
  const revoked = await oauth.revocationRequest(server, client, oauth.None(), tokens.access_token, plain);
  await oauth.processRevocationResponse(revoked);
  await assert.rejects(call, oauth.WWWAuthenticateChallengeError);
  // The code was used.
  const again = await exchange();
  await assert.rejects(oauth.processAuthorizationCodeResponse(server, client, again), { error: 'invalid_grant' });
});

test('oauth4webapi reports a refusal', async () => {
  const redirectUri = 'https://app.example/cb';
  const own = await register(redirectUri);
  const { url, state } = await ask(own, redirectUri, 'api:chat');
  const back = await person('refusing').decide(url, 'cancel');
  assert.throws(() => oauth.validateAuthResponse(own.server, own.client, back, state), { error: 'access_denied' });
});

// What an MCP client keeps between its steps.
class Provider {
  redirectUrl = 'http://localhost:33418/callback';
  clientMetadata = { client_name: 'MCP client', redirect_uris: [this.redirectUrl], grant_types: ['authorization_code', 'refresh_token'] };
  #client;
  #tokens;
  #verifier;
  clientInformation = () => this.#client;
  saveClientInformation = (client) => { this.#client = client; };
  tokens = () => this.#tokens;
  saveTokens = (tokens) => { this.#tokens = tokens; secret(tokens.access_token); secret(tokens.refresh_token); };
  redirectToAuthorization = (url) => { this.sentTo = url; };
  saveCodeVerifier = (verifier) => { this.#verifier = verifier; };
  codeVerifier = () => this.#verifier;
  invalidateCredentials = () => { this.#tokens = undefined; };
}

test('the MCP SDK finds its way from the address of the server to its tools, until the app is removed', async () => {
  const serverUrl = `${demo.base_url}/mcp`;
  const provider = new Provider();
  assert.equal(await auth(provider, { serverUrl }), 'REDIRECT');
  assert.equal(provider.sentTo.searchParams.get('resource'), serverUrl);
  const owner = person('mcp');
  const back = await owner.decide(provider.sentTo);
  assert.equal(back.searchParams.get('iss'), demo.base_url);
  const authorizationCode = secret(back.searchParams.get('code'));
  assert.equal(await auth(provider, { serverUrl, authorizationCode }), 'AUTHORIZED');
  assert.equal(provider.tokens().scope, 'mcp:chat mcp:projects mcp:devices');
  // Again without a person, by the refresh token.
  const first = provider.tokens();
  assert.equal(await auth(provider, { serverUrl }), 'AUTHORIZED');
  assert.notEqual(provider.tokens().access_token, first.access_token);
  assert.notEqual(provider.tokens().refresh_token, first.refresh_token);

  const client = new Client({ name: 'stock', version: '1.0.0' });
  await client.connect(new StreamableHTTPClientTransport(new URL(serverUrl), { authProvider: provider }));
  assert.ok((await client.listTools()).tools.length > 0);
  await client.close();

  // The token works nowhere else.
  const bearer = () => ({ headers: { authorization: `Bearer ${provider.tokens().access_token}` } });
  assert.equal((await fetch(`${demo.base_url}/v1/models`, bearer())).status, 401);
  assert.equal((await fetch(`${demo.base_url}/mcp/android`, { method: 'POST', ...bearer() })).status, 401);
  await owner.removeFirstApp();
  assert.equal((await fetch(serverUrl, { method: 'POST', ...bearer() })).status, 401);
});
