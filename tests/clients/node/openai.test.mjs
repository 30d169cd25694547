// The stock `openai` package for Node against `tollgate demo`: base URL and key changed, nothing else.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import { describe, test } from 'node:test';

import OpenAI from 'openai';

const demo = JSON.parse(process.env.TOLLGATE_DEMO);
const { model } = demo;

// One fixed sentence, and one token a word: what the stand-in provider says and how it counts.
const answer = 'The toll is paid and the gate stands open, so drive on while the light lasts.';
const answerTokens = 16;
const messages = [{ role: 'user', content: 'May I pass?' }];
const askTokens = 3;
const tool = {
  type: 'function',
  function: {
    name: 'find_road',
    description: 'Finds the way to a place.',
    parameters: { type: 'object', properties: { place: { type: 'string' }, lanes: { type: 'integer' } } },
  },
};
const calledWith = { place: 'the north gate', lanes: 2 };

// Retries would hide the error that a test looks at; the tests of retries ask for them.
const client = (apiKey = demo.api_key, options = {}) =>
  new OpenAI({ baseURL: `${demo.base_url}/v1`, apiKey, maxRetries: 0, ...options });

let number = 0;
// A name that no other test has.
const name = () => `node-${process.pid}-${++number}`;

// What a `tollgate` command with `--json` prints.
const tollgate = (...args) =>
  JSON.parse(execFileSync(process.env.TOLLGATE_BIN, [...args, '--config', demo.config_file, '--json'], { timeout: 60_000 }));

// The secret of a key of a new account, which has `credits` (none at all without) and the limits of `rateClass`.
function newKey({ credits, rateClass = 'pro' } = {}) {
  const id = name();
  const account = tollgate('account', 'create', '--email', `${id}@example.com`, '--class', rateClass).id;
  if (credits) tollgate('credits', 'grant', '--account', account, '--amount', credits, '--reference', id);
  const { secret } = tollgate('key', 'create', '--account', account, '--name', 'stock client');
  if (process.env.TOLLGATE_TEST_SECRETS) appendFileSync(process.env.TOLLGATE_TEST_SECRETS, `${secret}\n`);
  return secret;
}

// Works a handle of the stand-in provider.
async function provider(action, body) {
  const request = body ? { method: 'POST', body: JSON.stringify(body) } : {};
  const reply = await fetch(`${demo.provider_url}/_control/${action}`, request);
  assert.equal(reply.status, 200, await reply.clone().text());
  return reply.json();
}

const calls = async (marker) => (await provider('calls')).calls.filter((call) => call.body.includes(marker));

// What the provider shall do otherwise, carried through the gateway as a member that it does not know.
const standIn = (script) => ({ stand_in: script });

const chat = (request = {}, options = {}, from = client()) =>
  from.chat.completions.create({ model, messages, ...request }, options);

async function all(stream) {
  const items = [];
  for await (const item of await stream) items.push(item);
  return items;
}

const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? '').join('');

function assertMetadata(metadata) {
  assert.equal(metadata.cache_hit, false);
  assert.equal(typeof metadata.owner, 'string');
  assert.equal(typeof metadata.credits_remaining, 'number');
  assert.ok(metadata.credits_used > 0, `credits_used is ${metadata.credits_used}`);
}

function assertUsage(usage, choices = 1) {
  assert.deepEqual(
    [usage.prompt_tokens, usage.completion_tokens, usage.total_tokens],
    [askTokens, answerTokens * choices, askTokens + answerTokens * choices],
  );
}

// Waits for the refusal, checks the class and the members of its error, and gives the error back.
async function refused(call, kind, status, type, code) {
  const error = await call.then(
    () => assert.fail('was answered'),
    (error) => error,
  );
  assert.ok(error instanceof kind, `is a ${error.constructor.name}: ${error.message}`);
  assert.deepEqual([error.status, error.type, error.code], [status, type, code]);
  assert.ok(error.requestID, 'every error has a request id');
  assert.ok(error.error.message);
  return error;
}

describe('models', () => {
  test('the list has the models with their prices', async () => {
    const page = await client().models.list();
    const listed = page.data.find(({ id }) => id === model);
    assert.equal(listed.object, 'model');
    assert.ok(listed.owned_by);
    assert.ok('input' in listed.cost);
    assert.ok('prompt' in listed.pricing);
  });

  test('one model is that of the list', async () => {
    const page = await client().models.list();
    const listed = page.data.find(({ id }) => id === model);
    assert.deepEqual(await client().models.retrieve(model), listed);
    assert.ok(Number.isInteger(listed.created));
    await refused(client().models.retrieve('a/b'), OpenAI.NotFoundError, 404, 'invalid_request_error', 'not_found');
  });

  test('what is no operation is not found', async () => {
    await refused(client().files.list(), OpenAI.NotFoundError, 404, 'invalid_request_error', 'not_found');
  });
});

describe('chat', () => {
  test("a plain answer is the provider's, with usage and metadata", async () => {
    const { data, response } = await chat({ cache: false }).withResponse();
    assert.equal(data.object, 'chat.completion');
    assert.equal(data.model, model);
    assert.equal(data.choices[0].message.content, answer);
    assert.equal(data.choices[0].finish_reason, 'stop');
    assertUsage(data.usage);
    assertMetadata(data.x_svc);
    assert.equal(data._request_id, response.headers.get('x-request-id'));
    assert.ok(data._request_id);
    for (const header of ['ratelimit', 'ratelimit-policy', 'ratelimit-limit', 'ratelimit-remaining', 'ratelimit-reset']) {
      assert.ok(response.headers.has(header), header);
    }
  });

  test('unknown members reach the provider and the key does not', async () => {
    const marker = name();
    await chat({ seed: 7, vendor: { order: ['b', 'a'], marker } });
    const [call, ...more] = await calls(marker);
    assert.equal(more.length, 0);
    assert.deepEqual(JSON.parse(call.body).vendor, { order: ['b', 'a'], marker });
    assert.ok(!call.headers.some(([, value]) => value.includes(demo.api_key)), "the provider saw the client's key");
  });

  test('several choices come whole and are all counted', async () => {
    const got = await chat({ n: 2 });
    assert.deepEqual(got.choices.map(({ message }) => message.content), [answer, answer]);
    assertUsage(got.usage, 2);
  });

  test('a tool is called and its result is taken', async () => {
    const first = await chat({ tools: [tool], tool_choice: { type: 'function', function: { name: 'find_road' } } });
    const [{ message, finish_reason }] = first.choices;
    assert.equal(finish_reason, 'tool_calls');
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), calledWith);
    const result = { role: 'tool', tool_call_id: message.tool_calls[0].id, content: 'Straight on.' };
    const second = await chat({ messages: [...messages, message, result], tools: [tool] });
    assert.equal(second.choices[0].message.content, answer);
  });

  test('the tool runner calls the function and asks again', async () => {
    const asked = [];
    const function_ = (args) => {
      asked.push(args);
      return 'Straight on.';
    };
    const runner = client().chat.completions.runTools({
      model,
      messages,
      tools: [{ ...tool, function: { ...tool.function, parse: JSON.parse, function: function_ } }],
      tool_choice: { type: 'function', function: { name: 'find_road' } },
    });
    await runner.done();
    assert.deepEqual(asked, [calledWith]);
  });

  test('without the cache every request is answered anew', async () => {
    const marker = name();
    for (let round = 0; round < 2; round++) assertMetadata((await chat({ cache: false, marker })).x_svc);
    assert.equal((await calls(marker)).length, 2);
  });

  test('the same over TLS', async () => {
    // The certificate's authority comes with NODE_EXTRA_CA_CERTS.
    const overTls = client(demo.api_key, { baseURL: `${demo.tls_url}/v1` });
    assert.equal((await chat({}, {}, overTls)).choices[0].message.content, answer);
    assert.equal(textOf(await all(chat({ stream: true }, {}, overTls))), answer);
  });
});

describe('chat streams', () => {
  test('the pieces make the answer and the last one has the metadata', async () => {
    const chunks = await all(chat({ stream: true, cache: false }));
    assert.equal(textOf(chunks), answer);
    assert.equal(chunks.at(-1).choices[0].finish_reason, 'stop');
    assertMetadata(chunks.at(-1).x_svc);
    assert.ok(chunks.slice(0, -1).every((chunk) => !('x_svc' in chunk)));
    assert.ok(chunks.every((chunk) => !chunk.usage), 'the usage was not requested');
  });

  test('the usage comes last when asked for', async () => {
    const chunks = await all(chat({ stream: true, stream_options: { include_usage: true }, cache: false }));
    assert.deepEqual(chunks.at(-1).choices, []);
    assertUsage(chunks.at(-1).usage);
    assertMetadata(chunks.at(-1).x_svc);
  });

  test('several choices come side by side', async () => {
    const texts = ['', ''];
    for (const { choices } of await all(chat({ stream: true, n: 2 }))) {
      for (const { index, delta } of choices) texts[index] += delta.content ?? '';
    }
    assert.deepEqual(texts, [answer, answer]);
  });

  test('the streaming helper puts the answer together', async () => {
    const stream = client().chat.completions.stream({ model, messages, stream_options: { include_usage: true } });
    let received = '';
    stream.on('content', (delta) => (received += delta));
    const final = await stream.finalChatCompletion();
    assert.equal(received, answer);
    assert.equal(final.choices[0].message.content, answer);
    assertUsage(await stream.totalUsage());
  });

  test('the streaming helper puts a tool call together', async () => {
    const stream = client().chat.completions.stream({ model, messages, tools: [tool], tool_choice: 'required' });
    const message = await stream.finalMessage();
    assert.deepEqual(JSON.parse(message.tool_calls[0].function.arguments), calledWith);
  });

  test('a piece is passed on before the next one exists', async () => {
    const middle = name();
    const stream = await chat({ stream: true, ...standIn({ holds: [{ before: 3, gate: middle }] }) });
    const pieces = stream[Symbol.asyncIterator]();
    // The role, and two words; the provider sends no more before the gate is opened.
    const chunks = [];
    while (chunks.length < 3) chunks.push((await pieces.next()).value);
    assert.deepEqual(textOf(chunks).split(' ').filter(Boolean), ['The', 'toll']);
    await provider('open', { gate: middle });
    for (let piece = await pieces.next(); !piece.done; piece = await pieces.next()) chunks.push(piece.value);
    assert.equal(textOf(chunks), answer);
  });

  test('a client that aborts a stream can send again', async () => {
    const middle = name();
    const stream = await chat({ stream: true, ...standIn({ holds: [{ before: 5, gate: middle }] }) });
    for await (const chunk of stream) {
      assert.ok(chunk);
      break;
    }
    await provider('reached', { gate: middle });
    assert.ok(stream.controller.signal.aborted);
    await provider('open', { gate: middle });
    assert.equal((await chat()).choices[0].message.content, answer);
  });

  test('an error in the middle is an error and not a short answer', async () => {
    const scripts = [{ error_event_at: 4 }, { cut: { after_events: 4 } }, { cut: { after_events: 4, by: 'reset' } }];
    for (const script of scripts) {
      await assert.rejects(all(chat({ stream: true, ...standIn(script) })), (error) => {
        assert.ok(error instanceof OpenAI.APIError, `${error}`);
        assert.equal(error.type, 'upstream_error');
        return true;
      });
    }
  });
});

describe('cached', () => {
  test('an equal question has an equal answer for nothing, whole and streamed', async () => {
    const question = { messages: [{ role: 'user', content: `cached ${name()}` }] };
    const first = await chat(question);
    assert.deepEqual([first.x_svc.cache_hit, first.x_svc.cache_store_status], [false, 'stored']);
    const whole = await chat(question);
    const chunks = await all(chat({ ...question, stream: true }));
    assert.deepEqual(whole.choices, first.choices);
    assert.equal(textOf(chunks), first.choices[0].message.content);
    for (const metadata of [whole.x_svc, chunks.at(-1).x_svc]) {
      assert.deepEqual([metadata.cache_hit, metadata.cache_store_status, metadata.credits_used], [true, 'hit', 0]);
      assert.equal(metadata.cache_entry_id, first.x_svc.cache_entry_id);
    }
  });
});

describe('joined', () => {
  // Deltas of the forms that providers send and this library joins.
  const call = (index, more) => ({ tool_calls: [{ index, ...more }] });
  const streams = {
    refusal: [{ role: 'assistant' }, { refusal: 'I would ' }, { refusal: 'rather not.' }],
    'a name in each delta': [
      { role: 'assistant', content: null },
      call(0, { id: 'c1', type: 'function', function: { name: 'find_road', arguments: '' } }),
      call(0, { id: 'c1', type: 'function', function: { name: 'find_road', arguments: '{"place":' } }),
      call(0, { id: 'c1', type: 'function', function: { name: 'find_road', arguments: '"north"}' } }),
    ],
    'annotations that grow': [
      { role: 'assistant', content: 'It is ' },
      { content: '4.', annotations: [{ a: 1 }] },
      { annotations: [{ a: 1 }, { a: 2 }] },
    ],
  };
  for (const [what, deltas] of Object.entries(streams)) {
    test(`${what}: a stored stream is one answer live, replayed and whole`, async () => {
      const choices = deltas.map((delta) => ({ index: 0, delta, finish_reason: null }));
      choices.push({ index: 0, delta: {}, finish_reason: 'stop' });
      const head = { id: 'chatcmpl-1', object: 'chat.completion.chunk', created: 1, model: 'm' };
      const events = choices.map((choice) => `data: ${JSON.stringify({ ...head, choices: [choice] })}\n\n`);
      const script = { headers: [['content-type', 'text/event-stream']], failure: { text: `${events.join('')}data: [DONE]\n\n` } };
      const question = { model, messages: [{ role: 'user', content: `joined: ${what}` }], ...standIn(script) };
      const said = (message) => JSON.parse(JSON.stringify(message, (key, value) => (value === null || key === 'parsed' || key === 'index' ? undefined : value)));
      const found = [];
      for (let round = 0; round < 2; round++) found.push(said(await client().chat.completions.stream(question).finalMessage()));
      const whole = await client().chat.completions.create(question);
      assert.equal(whole.x_svc.cache_hit, true);
      for (const message of found) assert.deepEqual(message, said(whole.choices[0].message));
    });
  }
});

describe('text completions', () => {
  test('plain and streamed', async () => {
    const whole = await client().completions.create({ model, prompt: 'May I pass?', cache: false });
    assert.equal(whole.object, 'text_completion');
    assert.equal(whole.choices[0].text.trim(), answer);
    assertUsage(whole.usage);
    assertMetadata(whole.x_svc);
    const chunks = await all(client().completions.create({ model, prompt: 'May I pass?', stream: true, cache: false }));
    assert.equal(chunks.map(({ choices }) => choices[0]?.text ?? '').join('').trim(), answer);
    assertMetadata(chunks.at(-1).x_svc);
  });
});

describe('refusals', () => {
  test('401 for a key that is none', async () => {
    const call = chat({}, {}, client('sk-svc-not-a-key'));
    await refused(call, OpenAI.AuthenticationError, 401, 'authentication_error', 'invalid_credential');
  });

  test('400 for a model that is not sold, and for a member that is wrong', async () => {
    const cases = [
      [{ model: 'gone' }, 'model_not_supported', 'model'],
      [{ temperature: -1 }, 'out_of_range', 'temperature'],
      [{ max_completion_tokens: 0 }, 'out_of_range', 'max_completion_tokens'],
      [{ stream: 'yes' }, 'invalid_type', 'stream'],
    ];
    for (const [request, code, param] of cases) {
      const error = await refused(chat(request), OpenAI.BadRequestError, 400, 'invalid_request_error', code);
      assert.equal(error.param, param);
    }
  });

  test('402 without credits, plain and streamed', async () => {
    const poor = client(newKey());
    for (const stream of [false, true]) {
      const call = chat({ stream }, {}, poor);
      const error = await refused(call, OpenAI.APIError, 402, 'insufficient_credits_error', 'insufficient_credits');
      assert.ok(error.error.available === 0 && !('required' in error.error));
    }
  });

  test('429 says when, and the client comes back then', async () => {
    const key = newKey({ credits: '1000', rateClass: 'free' });
    const hasty = client(key);
    const untilRefused = async () => {
      // Far more than the class may ask in a window.
      for (let round = 0; round < 1000; round++) await hasty.models.list();
    };
    const error = await refused(untilRefused(), OpenAI.RateLimitError, 429, 'rate_limit_error', 'rate_limit_exceeded');
    assert.ok(Number(error.headers.get('retry-after')) >= 1);
    assert.equal(error.headers.get('ratelimit-remaining'), '0');
    // The client waits for Retry-After, and its retry is admitted.
    const page = await client(key, { maxRetries: 2 }).models.list();
    assert.ok(page.data.some(({ id }) => id === model));
  });

  test('502 when the provider fails', async () => {
    const call = chat(standIn({ status: 500 }));
    await refused(call, OpenAI.InternalServerError, 502, 'upstream_error', 'upstream_error');
  });

  test('a client that gives up waiting can ask again', async () => {
    const held = name();
    const call = chat(standIn({ hold_head: held }), { timeout: 500 });
    await assert.rejects(call, (error) => error instanceof OpenAI.APIConnectionTimeoutError);
    const abort = new AbortController();
    const left = chat(standIn({ hold_head: held }), { signal: abort.signal });
    await Promise.all([
      assert.rejects(left, (error) => error instanceof OpenAI.APIUserAbortError),
      provider('reached', { gate: held, count: 2 }).then(() => abort.abort()),
    ]);
    await provider('open', { gate: held });
    assert.equal((await chat()).choices[0].message.content, answer);
  });
});
