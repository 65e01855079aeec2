// Anthropic's JavaScript client, OpenAI's by the Responses API, and Vercel's AI SDK against a running server;
// test_javascript.py runs it.
//
// usage: node frameworks.mjs NODE_MODULES URL NAME

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import process from "node:process";

const [, , modules, url, name] = process.argv;
const load = createRequire(path.join(modules, "here.js"));

const question = "What is the weather in Paris?";
const weather = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] }, unit: { enum: ["celsius", "fahrenheit"] } },
  required: ["city", "unit"],
  additionalProperties: false,
};
const person = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
};
const describe = "Ann is 31 years old. Describe her as JSON.";

function checkPerson(value) {
  assert.deepEqual(Object.keys(value).sort(), ["age", "name"]);
  assert.ok(Number.isInteger(value.age));
}

function claude() {
  const { default: Anthropic } = load("@anthropic-ai/sdk");
  return { Anthropic, client: new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 }) };
}

function gpt() {
  const { default: OpenAI } = load("openai");
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
}

function vercel() {
  const { createOpenAICompatible } = load("@ai-sdk/openai-compatible");
  const provider = createOpenAICompatible({
    name: "forerun",
    baseURL: `${url}/v1`,
    apiKey: "none",
    includeUsage: true,
    supportsStructuredOutputs: true,
  });
  return { ...load("ai"), model: provider("some-model") };
}

const tests = {
  async messages() {
    const { client } = claude();
    const fields = { model: "claude-x", max_tokens: 16, messages: [{ role: "user", content: question }] };
    const message = await client.messages.create({ ...fields, system: "Be brief." });
    assert.equal(message.content[0].type, "text");
    assert.equal(message.stop_reason, "max_tokens");
    const stream = client.messages.stream({ ...fields, system: "Be brief." });
    let text = "";
    stream.on("text", (more) => (text += more));
    const final = await stream.finalMessage();
    assert.equal(final.content[0].text, text);
    assert.equal(final.usage.output_tokens, 16);
    const counted = await client.messages.countTokens({ model: "claude-x", messages: fields.messages });
    assert.ok(counted.input_tokens > 5);
    const models = await client.models.list();
    assert.equal(models.data.length, 1);
  },

  async messagesTools() {
    const { client } = claude();
    const tools = [{ name: "get_weather", description: "The weather.", input_schema: weather }];
    const messages = [{ role: "user", content: question }];
    const fields = { model: "claude-x", max_tokens: 120, tools };
    for (let turn = 0; turn < 2; turn += 1) {
      const stream = client.messages.stream({ ...fields, messages, tool_choice: { type: "any", disable_parallel_tool_use: true } });
      const message = await stream.finalMessage();
      assert.equal(message.stop_reason, "tool_use");
      const calls = message.content.filter((block) => block.type === "tool_use");
      assert.ok(["Paris", "Rome"].includes(calls[0].input.city));
      const results = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: "12 degrees" }));
      messages.push({ role: "assistant", content: message.content }, { role: "user", content: results });
    }
    const last = await client.messages.create({ ...fields, messages, tool_choice: { type: "none" }, max_tokens: 8 });
    assert.equal(last.content[0].type, "text");
  },

  async messagesFormat() {
    const { Anthropic, client } = claude();
    const message = await client.messages.create({
      model: "claude-x",
      max_tokens: 80,
      messages: [{ role: "user", content: describe }],
      output_config: { format: { type: "json_schema", schema: person } },
    });
    checkPerson(JSON.parse(message.content[0].text));
    const wrong = { model: "claude-x", max_tokens: 8, messages: [{ role: "user", content: [{ type: "image" }] }] };
    await assert.rejects(client.messages.create(wrong), Anthropic.BadRequestError);
  },

  async messagesThoughts() {
    const { client } = claude();
    const fields = { model: "claude-x", max_tokens: 16, thinking: { type: "enabled", budget_tokens: 1024 } };
    const messages = [{ role: "user", content: question }];
    const message = await client.messages.stream({ ...fields, messages }).finalMessage();
    assert.equal(message.content[0].type, "thinking");
    const more = [...messages, { role: "assistant", content: message.content }, { role: "user", content: "Go on." }];
    const again = await client.messages.create({ ...fields, messages: more });
    const read = (usage) => usage.input_tokens + usage.cache_read_input_tokens;
    assert.ok(read(again.usage) > read(message.usage) + 16);
  },

  async responses() {
    const client = gpt();
    const fields = { model: "gpt-x", input: question, max_output_tokens: 16, store: false };
    const whole = await client.responses.create(fields);
    assert.equal(whole.status, "incomplete");
    assert.ok(whole.output_text);
    const stream = client.responses.stream(fields);
    let text = "";
    for await (const event of stream) if (event.type === "response.output_text.delta") text += event.delta;
    assert.equal((await stream.finalResponse()).output_text, text);
    const tools = [{ type: "function", name: "get_weather", parameters: weather, strict: true }];
    const called = await client.responses.create({
      ...fields,
      max_output_tokens: 120,
      tools,
      tool_choice: "required",
      parallel_tool_calls: false,
    });
    const call = called.output.find((item) => item.type === "function_call");
    assert.ok(["Paris", "Rome"].includes(JSON.parse(call.arguments).city));
    const result = { type: "function_call_output", call_id: call.call_id, output: "12 degrees" };
    const input = [{ role: "user", content: question }, ...called.output, result];
    const later = await client.responses.create({ ...fields, input, tools });
    assert.ok(later.usage.input_tokens > called.usage.input_tokens);
    const parsed = await client.responses.parse({
      ...fields,
      input: describe,
      max_output_tokens: 80,
      text: { format: { type: "json_schema", name: "person", schema: person, strict: true } },
    });
    checkPerson(JSON.parse(parsed.output_text));
  },

  async vercel() {
    const { generateText, streamText, model } = vercel();
    const fields = { model, prompt: question, maxOutputTokens: 16, temperature: 0, maxRetries: 0 };
    const whole = await generateText(fields);
    assert.equal(whole.finishReason, "length");
    assert.equal(whole.usage.outputTokens, 16);
    const streamed = streamText(fields);
    let text = "";
    for await (const more of streamed.textStream) text += more;
    assert.equal(text, whole.text);
    assert.equal((await streamed.usage).outputTokens, 16);
  },

  async vercelTools() {
    const { generateText, streamText, jsonSchema, stepCountIs, tool, model } = vercel();
    const asked = [];
    const tools = {
      get_weather: tool({
        description: "The weather.",
        inputSchema: jsonSchema(weather),
        async execute({ city }) {
          asked.push(city);
          return { degrees: 12 };
        },
      }),
    };
    const fields = {
      model,
      tools,
      prompt: question,
      maxOutputTokens: 120,
      temperature: 0,
      maxRetries: 0,
      stopWhen: stepCountIs(2),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    };
    const whole = await generateText(fields);
    assert.equal(whole.steps.length, 2);
    assert.ok(["Paris", "Rome"].includes(asked[0]));
    assert.equal(whole.steps[0].finishReason, "tool-calls");
    const streamed = streamText(fields);
    await streamed.consumeStream();
    assert.equal((await streamed.steps).length, 2);
    assert.ok(asked.length >= 2);
  },

  async vercelObject() {
    const { generateText, jsonSchema, Output, model } = vercel();
    const output = Output.object({ schema: jsonSchema(person) });
    const { output: value } = await generateText({ model, output, prompt: describe, maxOutputTokens: 80, maxRetries: 0 });
    checkPerson(value);
  },

  async vercelThoughts() {
    const { generateText, streamText, model } = vercel();
    const grammar = 'start: "<think>\\nThe sky is clear.\\n</think>\\n\\nIt is blue."';
    const providerOptions = { forerun: { grammar, reasoningEffort: "low" } };
    const messages = [{ role: "user", content: question }];
    const fields = { model, maxOutputTokens: 60, maxRetries: 0 };
    const whole = await generateText({ ...fields, messages, providerOptions });
    assert.equal(whole.reasoningText, "The sky is clear.");
    assert.equal(whole.text, "It is blue.");
    const streamed = streamText({ ...fields, messages, providerOptions });
    assert.equal(await streamed.reasoningText, "The sky is clear.");
    const history = [...messages, ...whole.response.messages, { role: "user", content: "Go on." }];
    const later = await generateText({ ...fields, messages: history, maxOutputTokens: 4 });
    const bare = history.map((it) => (it.role === "assistant" ? { role: it.role, content: "It is blue." } : it));
    const without = await generateText({ ...fields, messages: bare, maxOutputTokens: 4 });
    assert.ok(later.usage.inputTokens > without.usage.inputTokens, "the thoughts were sent back");
  },
};

await tests[name]();
