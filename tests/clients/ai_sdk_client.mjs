// The AI SDK with its provider for Open Responses against `callboard serve`.
//
// Usage: node ai_sdk_client.mjs URL KEY, with CLIENT_MODULES naming a folder that has both packages. Ends with 0 and a line `ok: …` for
// each promise, or with the failed one.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.CLIENT_MODULES, "index.js"));
const { generateText, isStepCount, jsonSchema, Output, streamText, tool } = require("ai");
const { createOpenResponses } = require("@ai-sdk/open-responses");

const [url, key] = process.argv.slice(2);
const responses = createOpenResponses({ name: "callboard", url: `${url}/openai/v1/responses`, apiKey: key });
const city = jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] });
const asked = [];
const weather = tool({
  description: "The weather of a city.",
  inputSchema: city,
  execute: async ({ city }) => {
    asked.push(city);
    return `It rains in ${city}.`;
  },
});
const question = "Do I need an umbrella in Oslo?";
const task = { model: responses("default"), prompt: question, tools: { weather }, stopWhen: isStepCount(3), maxRetries: 0 };

const whole = await generateText(task);
assert.match(whole.text, /The tool says: .*It rains in Oslo\./);
assert.deepEqual([asked, whole.steps.length, whole.finishReason], [["Oslo"], 2, "stop"]);
assert.ok(whole.totalUsage.outputTokens > 0);
console.log("ok: a task with a tool is done in two steps");

const streamed = streamText(task);
let text = "";
for await (const piece of streamed.textStream) text += piece;
assert.match(text, /The tool says: .*It rains in Oslo\./);
assert.deepEqual([asked, (await streamed.steps).length], [["Oslo", "Oslo"], 2]);
console.log("ok: the same streams");

const plain = await generateText({ ...task, tools: undefined, system: "Be brief." });
assert.equal(plain.text, "I cannot know.");
const refused = generateText({ ...task, model: responses("none") });
await assert.rejects(refused, (error) => error.statusCode === 404);
console.log("ok: instructions are taken, and a refusal has its status");
