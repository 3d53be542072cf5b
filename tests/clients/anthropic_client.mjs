// The official Anthropic client for JavaScript against the Messages of `callboard serve`.
//
// Usage: node anthropic_client.mjs URL KEY, with CLIENT_MODULES naming a folder that has it. Ends with 0 and a line `ok: …` for each
// promise, or with the failed one.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.CLIENT_MODULES, "index.js"));
const { Anthropic, NotFoundError } = require("@anthropic-ai/sdk");

const [url, key] = process.argv.slice(2);
const client = new Anthropic({ baseURL: `${url}/anthropic`, apiKey: key, maxRetries: 0, timeout: 30_000 });
const question = { role: "user", content: "Do I need an umbrella in Oslo?" };
const tools = [{ name: "weather", input_schema: { type: "object", properties: { city: { type: "string" } } } }];
const base = { model: "default", max_tokens: 200, tools };

const stream = client.messages.stream({ ...base, messages: [question] });
const first = await stream.finalMessage();
const call = first.content.at(-1);
assert.deepEqual([first.stop_reason, call.name, call.input], ["tool_use", "weather", { city: "Oslo" }]);
const result = { type: "tool_result", tool_use_id: call.id, content: `It rains in ${call.input.city}.` };
const said = [question, { role: "assistant", content: first.content }, { role: "user", content: [result] }];
const last = await client.messages.create({ ...base, messages: said });
assert.equal(last.stop_reason, "end_turn");
assert.match(last.content[0].text, /It rains in Oslo\./);
console.log("ok: a tool is called in a stream, and its result is answered");

const counted = await client.messages.countTokens({ model: "default", messages: [question] });
assert.ok(counted.input_tokens > 0 && last.usage.output_tokens > 0);
await assert.rejects(client.messages.create({ ...base, model: "none", messages: [question] }), NotFoundError);
console.log("ok: tokens are counted, and a refusal has its type");
