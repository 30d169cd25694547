// The sandbox: calls the API with a short-lived token and streams the answer.
"use strict";

// A block scope: top-level declarations are shared by all scripts of a page.
{
  const box = document.getElementById("sandbox");
  const form = document.getElementById("composer");
  const conversation = document.getElementById("conversation");
  const statusLine = document.getElementById("sandbox-status");
  const field = (id) => document.getElementById(id);
  const [message, model, temperature, maxTokens, cache, stream, send, stop, most] =
    ["message", "model", "temperature", "max_tokens", "cache", "stream", "send", "stop", "most"].map(field);

  let running = null;
  let token = null;

  field("stream-option").hidden = false;

  function element(name, className, text) {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // Text, shape and colour appear together; both tones used here have a ring.
  function pill(tone, word) {
    const draw = (name, attributes) => {
      const made = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
      return made;
    };
    const made = element("span", `pill ${tone}`);
    const shape = draw("svg", { "aria-hidden": "true", viewBox: "0 0 10 10", width: 10, height: 10 });
    shape.append(draw("circle", { class: "ring", cx: 5, cy: 5, r: 3.2 }));
    made.append(shape, word);
    return made;
  }

  // Formats micro-credits as credits, rounded down, never zero for a positive amount.
  function credits(micros) {
    if (micros > 0 && micros < 100) return "< 0.0001";
    return (Math.floor(micros / 100) / 10000).toFixed(4);
  }

  const micros = (amount) => Math.round(Number(amount || 0) * 1e6);

  // The messages of the conversation, read from the page, which stores it.
  function history() {
    return [...conversation.querySelectorAll(".said:not(.failed)")].map((one) => ({
      role: one.dataset.role,
      content: one.querySelector(".said-text").textContent,
    }));
  }

  function request(messages) {
    const body = { model: model.value };
    const temperatureText = temperature.value.trim();
    const tokens = maxTokens.value.trim();
    if (temperatureText !== "" && !Number.isNaN(Number(temperatureText))) body.temperature = Number(temperatureText);
    if (tokens !== "" && Number.isInteger(Number(tokens))) body.max_tokens = Number(tokens);
    if (stream.checked) body.stream = true;
    if (!cache.checked) body.cache = false;
    body.messages = messages;
    return body;
  }

  function update() {
    const chosen = model.selectedOptions[0];
    if (!chosen) return;
    const bytes = new TextEncoder().encode(history().map((one) => one.content).join("") + message.value).length;
    const into = Math.ceil(bytes / 3) + 8 * (history().length + 1) + 64;
    const out = Number(maxTokens.value) > 0 ? Number(maxTokens.value) : Number(chosen.dataset.max);
    const { in: priceIn, out: priceOut, request: each } = chosen.dataset;
    const price = Math.ceil((into * Number(priceIn) + out * Number(priceOut)) / 1e6) + Number(each);
    if (!running) {
      most.replaceChildren("At most ", element("b", "", credits(price)), " credits for this request");
    }
    field("model-price").textContent = chosen.dataset.price;
    const typed = message.value.trim();
    const messages = history();
    if (typed || messages.length === 0) messages.push({ role: "user", content: typed || "Hello" });
    const body = request(messages);
    ["curl", "python", "javascript"].forEach((language, index) => {
      const code = document.querySelector(`#request-${index} code`);
      if (code) code.textContent = samples[language](body);
    });
  }

  const api = box.dataset.base;
  const variable = box.dataset.variable;
  // JSON over several lines, one message per line.
  function lines(body, margin) {
    const { messages, ...plain } = body;
    const members = Object.entries(plain).map(([name, value]) => `"${name}": ${JSON.stringify(value)}`);
    const entries = messages.map((one) => `${margin}    {"role": ${JSON.stringify(one.role)}, "content": ${JSON.stringify(one.content)}}`);
    members.push(`"messages": [\n${entries.join(",\n")}\n${margin}  ]`);
    return `{\n${margin}  ${members.join(`,\n${margin}  `)}\n${margin}}`;
  }

  const samples = {
    curl(body) {
      const text = lines(body, "  ").replaceAll("'", "'\\''");
      return `curl${body.stream ? " -N" : ""} \\\n  ${api}/chat/completions \\\n  -H "Authorization: Bearer $${variable}" \\\n` +
        `  -H "Content-Type: application/json" \\\n  -d '${text}'`;
    },
    python(body) {
      const { cache: cached, messages, stream: streams, ...plain } = body;
      const members = Object.entries(plain).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
      if (streams) members.push("stream=True");
      if (cached === false) members.push('extra_body={"cache": False}');
      const entries = messages.map((one) =>
        `\n        {"role": ${JSON.stringify(one.role)}, "content": ${JSON.stringify(one.content)}},`).join("");
      members.push(`messages=[${entries}\n    ]`);
      const print = streams
        ? "for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].delta.content or \"\", end=\"\")"
        : "print(answer.choices[0].message.content)";
      return `import os\nfrom openai import OpenAI\n\nclient = OpenAI(\n    base_url="${api}",\n    api_key=os.environ["${variable}"],\n)\n` +
        `answer = client.chat.completions.create(\n    ${members.join(",\n    ")},\n)\n${print}`;
    },
    javascript(body) {
      const print = body.stream
        ? "for await (const chunk of answer) {\n  process.stdout.write(chunk.choices[0]?.delta?.content ?? \"\");\n}"
        : "console.log(answer.choices[0].message.content);";
      return `import OpenAI from "openai";\n\nconst client = new OpenAI({\n  baseURL: "${api}",\n  apiKey: process.env.${variable},\n});\n` +
        `const answer = await client.chat.completions.create(${lines(body, "")});\n${print}`;
    },
  };

  // The access token, kept in this page only and renewed before it expires.
  async function bearer(fresh) {
    if (!fresh && token && performance.now() < token.until) return token.text;
    const answer = await fetch("/sandbox/token", {
      method: "POST",
      body: new URLSearchParams({ csrf: form.elements.csrf.value }),
    });
    if (!answer.ok || answer.redirected) throw new ApiError("signed_out", "You are signed out. Sign in again in this browser.");
    const issued = await answer.json();
    token = { text: issued.token, until: performance.now() + (issued.expires_in - 60) * 1000 };
    return token.text;
  }

  class ApiError extends Error {
    constructor(code, text) {
      super(text);
      this.code = code;
    }
  }

  async function call(body, signal, fresh) {
    const answer = await fetch(box.dataset.api, {
      method: "POST",
      signal,
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${await bearer(fresh)}` },
      body: JSON.stringify(body),
    });
    if (answer.status === 401 && !fresh) return call(body, signal, true);
    if (!answer.ok) {
      const { error } = await answer.json().catch(() => ({ error: {} }));
      throw new ApiError(error.code || String(answer.status), error.message || "The response could not be parsed.");
    }
    return answer;
  }

  // Yields the data of each server-sent event.
  async function* events(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const pieces = (rest + value).split("\n\n");
      rest = pieces.pop();
      for (const piece of pieces) {
        for (const line of piece.split("\n")) {
          if (line.startsWith("data:")) yield line.slice(5).trim();
        }
      }
    }
  }

  function block(role, name, text) {
    const made = element("div", role === "user" ? "said you" : "said");
    made.dataset.role = role;
    made.append(element("p", "said-by", name), element("p", "said-text", text));
    field("nothing-said")?.remove();
    conversation.append(made);
    conversation.scrollTop = conversation.scrollHeight;
    return made;
  }

  function fact(list, name, value) {
    const pair = element("div");
    const about = element("dd");
    about.append(...value);
    pair.append(element("dt", "", name), about);
    list.append(pair);
  }

  function facts(into, seen) {
    const list = element("dl", "facts");
    const metadata = seen.metadata || {};
    const cost = micros(metadata.credits_used);
    fact(list, "Cost", [element("b", "", credits(cost)), " credits"]);
    if (seen.usage) fact(list, "Tokens", [`${seen.usage.prompt_tokens} in, ${seen.usage.completion_tokens} out`]);
    fact(list, "Cache", [metadata.cache_hit ? pill("info", "From cache") : pill("off", "Not cached")]);
    if (seen.first !== null) fact(list, stream.checked ? "First token" : "Answer", [`${Math.round(seen.first)} ms`]);
    into.append(list);
    if (typeof metadata.credits_remaining === "number") {
      const left = (Math.floor(metadata.credits_remaining * 100) / 100).toLocaleString("en", { minimumFractionDigits: 2 });
      for (const shown of document.querySelectorAll(".bar-balance b, .foot-balance b")) shown.textContent = left;
    }
    return credits(cost);
  }

  // The request as the API received it.
  function sentRequest(body) {
    const shown = element("details", "sent");
    const code = element("div", "code");
    const text = element("pre");
    text.tabIndex = 0;
    text.setAttribute("role", "region");
    text.setAttribute("aria-label", "Request sent");
    text.append(element("code", "", `POST ${box.dataset.api}\n\n${JSON.stringify(body, null, 2)}`));
    code.append(text);
    shown.append(element("summary", "", "Request sent"), code);
    return shown;
  }

  function failed(into, error) {
    into.classList.add("failed");
    const line = element("p", "said-error");
    const code = error.code || "network";
    line.append(element("b", "", code), ` ${error.message} `);
    const link = element("a", "", code === "insufficient_credits" ? "Add credits" : code === "signed_out" ? "Sign in" : "What it means");
    link.href = code === "insufficient_credits" ? "/credits/add" : code === "signed_out" ? "/sign-in?next=%2Fsandbox" : `/docs/errors#${code}`;
    if (code !== "network") line.append(link);
    into.append(line);
  }

  async function sendMessage(text) {
    const question = block("user", "You", text);
    const asked = request(history());
    const body = asked.stream ? { ...asked, stream_options: { include_usage: true } } : asked;
    const answer = block("assistant", model.value, "");
    const words = answer.querySelector(".said-text");
    const state = pill("info", "Writing");
    answer.querySelector(".said-by").append(" ", state);
    answer.classList.add("writing");
    const began = performance.now();
    const seen = { metadata: null, usage: null, first: null };
    const take = (piece) => {
      if (piece.error) throw new ApiError(piece.error.code, piece.error.message);
      seen.metadata = piece[box.dataset.metadata] || seen.metadata;
      seen.usage = piece.usage || seen.usage;
      const choice = piece.choices?.[0];
      return choice?.delta?.content ?? choice?.message?.content ?? "";
    };
    try {
      const response = await call(body, running.signal, false);
      if (body.stream) {
        for await (const data of events(response)) {
          if (data === "[DONE]") break;
          const more = take(JSON.parse(data));
          if (more && seen.first === null) seen.first = performance.now() - began;
          const isAtEnd = conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 40;
          words.append(more);
          if (isAtEnd) conversation.scrollTop = conversation.scrollHeight;
        }
      } else {
        words.append(take(await response.json()));
        seen.first = performance.now() - began;
      }
      statusLine.textContent = `Answer complete. ${facts(answer, seen)} credits.`;
    } catch (error) {
      if (error.name === "AbortError") {
        const kept = words.textContent !== "";
        if (!kept) answer.classList.add("failed");
        answer.append(element("p", "fine", "Stopped. The output up to this point is charged; Usage shows it shortly."));
        statusLine.textContent = "Stopped.";
      } else {
        if (words.textContent === "") {
          question.classList.add("failed");
          // The message was refused: it is in the field again, unless another one was begun.
          if (message.value === "") message.value = text;
        }
        failed(answer, error);
        statusLine.textContent = `The request failed: ${error.message}`;
      }
    }
    answer.append(sentRequest(body));
    state.remove();
    answer.classList.remove("writing");
    conversation.scrollTop = conversation.scrollHeight;
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = message.value.trim();
    if (running || text === "") return;
    running = new AbortController();
    message.value = "";
    send.hidden = true;
    stop.hidden = false;
    stop.focus();
    most.replaceChildren("Answering. ", ...most.childNodes);
    statusLine.textContent = "";
    await sendMessage(text);
    running = null;
    stop.hidden = true;
    send.hidden = false;
    message.focus();
    update();
  });

  stop.addEventListener("click", () => running?.abort());

  message.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });

  for (const one of [message, model, temperature, maxTokens, cache, stream]) one.addEventListener("input", update);
  update();
}
