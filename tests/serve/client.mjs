// OpenAI's JavaScript client against a running server; test_clients.py runs it.
//
// usage: node client.mjs NODE_MODULES BASE_URL MODEL NAME

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import process from "node:process";

const [, , modules, baseURL, model, name] = process.argv;
const { default: OpenAI } = createRequire(path.join(modules, "here.js"))("openai");

const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Tell me about the sea." }];
const common = { model, messages, max_tokens: 16, temperature: 0, speculative: { enabled: true, length: 3 } };

const tests = {
  async chat() {
    const answer = await client.chat.completions.create(common);
    const [choice] = answer.choices;
    assert.match(choice.message.content, /sea/i);
    assert.equal(choice.finish_reason, "length");
    assert.equal(answer.usage.completion_tokens, 16);
    assert.equal(answer.speculative.lossless, true);
  },

  async stream() {
    const whole = await client.chat.completions.create(common);
    const stream = await client.chat.completions.create({
      ...common,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let last;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta?.content ?? "";
      last = chunk;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(last.usage.completion_tokens, 16);

    const runner = client.chat.completions.stream(common);
    assert.equal(await runner.finalContent(), text);
  },

  async schema() {
    const schema = {
      type: "object",
      properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", minimum: 0, maximum: 150 } },
      required: ["name", "age"],
      additionalProperties: false,
    };
    const answer = await client.chat.completions.parse({
      ...common,
      messages: [{ role: "user", content: "Ann is 31 years old. Describe her as JSON." }],
      max_tokens: 80,
      temperature: 1,
      response_format: { type: "json_schema", json_schema: { name: "person", schema, strict: true } },
    });
    const person = JSON.parse(answer.choices[0].message.content);
    assert.deepEqual(Object.keys(person).sort(), ["age", "name"]);
    assert.ok(Number.isInteger(person.age) && person.age >= 0 && person.age <= 150);
  },

  async tools() {
    const parameters = {
      type: "object",
      properties: { city: { type: "string", maxLength: 20 } },
      required: ["city"],
      additionalProperties: false,
    };
    const runner = client.chat.completions.stream({
      ...common,
      messages: [{ role: "user", content: "What is the weather in Paris?" }],
      max_tokens: 80,
      tools: [{ type: "function", function: { name: "get_weather", parameters } }],
      tool_choice: "required",
    });
    const answer = await runner.finalChatCompletion();
    const [call] = answer.choices[0].message.tool_calls;
    assert.equal(answer.choices[0].finish_reason, "tool_calls");
    assert.equal(call.function.name, "get_weather");
    assert.equal(JSON.parse(call.function.arguments).city, "Paris");
  },

  async errors() {
    await assert.rejects(client.chat.completions.create({ ...common, n: 17 }), OpenAI.BadRequestError);
    // The model answers to any name, and says its own.
    const other = await client.chat.completions.create({ ...common, model: "gpt-4o" });
    assert.notEqual(other.model, "gpt-4o");
    const long = [{ role: "user", content: "sea ".repeat(2000) }];
    await assert.rejects(client.chat.completions.create({ ...common, messages: long }), {
      code: "context_length_exceeded",
    });
  },
};

await tests[name]();
