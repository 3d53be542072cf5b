// A standard EventSource that is cut off again and again, and still hears everything once and in order.
//
// Usage: node event_source.mjs URL KEY ROUNDS CUTS, with the package `eventsource` in NODE_PATH's place (see CALLBOARD_CLIENTS).
// Between client and host stands a proxy that cuts connections after a random number of bytes. Ends with 0 and `ok: …`.
import { createRequire } from "node:module";
import { createServer, connect } from "node:net";

const [url, key, rounds, cuts] = process.argv.slice(2);
const { EventSource } = createRequire(process.env.CLIENT_MODULES + "/")("eventsource");
const host = new URL(url);
const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
const conversation = `event-source-${process.pid}`;

// Fixed chance, so that a failure can be seen again.
let seed = 4711;
const chance = (max) => {
  seed = (seed * 1103515245 + 12345) & 0x7fffffff;
  return seed % max;
};

let cut = 0;
const proxy = createServer((client) => {
  const upstream = connect(Number(host.port), host.hostname);
  let left = cut < Number(cuts) ? 300 + chance(4000) : Infinity;
  const both = () => (client.destroy(), upstream.destroy());
  client.on("data", (data) => upstream.write(data));
  upstream.on("data", (data) => {
    if (left !== Infinity && (left -= data.length) < 0) {
      cut += 1;
      client.write(data.subarray(0, Math.max(0, data.length + left)), both);
      return;
    }
    client.write(data);
  });
  for (const socket of [client, upstream]) socket.on("close", both).on("error", both);
});
await new Promise((ready) => proxy.listen(0, "127.0.0.1", ready));

const put = await fetch(`${url}/v1/conversations/${conversation}`, { method: "PUT", headers, body: "{}" });
if (!put.ok) throw new Error(`PUT: ${put.status} ${await put.text()}`);

const source = new EventSource(`http://127.0.0.1:${proxy.address().port}/v1/conversations/${conversation}/events`, {
  fetch: (input, init) => fetch(input, { ...init, headers: { ...init.headers, authorization: headers.authorization } }),
});
const seen = [];
let finished = 0;
const number = (id) => id.split(".").map(Number);
const before = (a, b) => {
  const [x, y] = [number(a), number(b)];
  for (let at = 0; at < 3; at += 1) if (x[at] !== y[at]) return x[at] < y[at];
  return false;
};
const types = ["round_started", "text_delta", "thinking_delta", "tool_call", "tool_progress", "tool_result", "approval_required", "client_tool_call", "retry",
  "usage", "context", "compaction", "skill_activated", "subagent", "queued", "message", "turn_restarted", "snapshot", "round_finished", "error"];
let wake = () => {};
const take = (event) => {
  if (event.data === undefined) return; // A lost connection, not an event of the host.
  const data = JSON.parse(event.data);
  const last = seen.at(-1);
  if (event.lastEventId !== data.id) throw new Error(`id ${event.lastEventId} and ${data.id}`);
  if (last && !before(last.id, data.id)) throw new Error(`${data.id} after ${last.id}`);
  seen.push(data);
  if (data.type === "round_finished") finished += 1;
  wake();
};
for (const type of types) source.addEventListener(type, take);
await new Promise((open, fail) => {
  source.onopen = open;
  setTimeout(() => fail(new Error("the events did not begin")), 20000).unref();
});

for (let round = 1; round <= Number(rounds); round += 1) {
  const body = JSON.stringify({ content: `Round ${round}.` });
  const asked = await fetch(`${url}/v1/conversations/${conversation}/messages`, { method: "POST", headers: { ...headers, prefer: "respond-async" }, body });
  if (asked.status !== 202) throw new Error(`POST: ${asked.status} ${await asked.text()}`);
  const deadline = Date.now() + 30000;
  while (finished < round) {
    if (Date.now() > deadline) throw new Error(`round ${round} was not heard to its end; ${seen.length} events`);
    await Promise.race([new Promise((heard) => (wake = heard)), new Promise((later) => setTimeout(later, 1000).unref())]);
  }
}
source.close();
proxy.close();

// The replace rule: a message takes the place of the deltas since the last durable event.
const texts = [];
let deltas = "";
for (const event of seen) {
  if (event.type === "text_delta") deltas += event.text;
  if (event.type === "message" && event.message.role === "assistant") {
    const content = event.message.content;
    const text = typeof content === "string" ? content : content.filter((block) => block.type === "text").map((block) => block.text).join("");
    if (!text.endsWith(deltas)) throw new Error(`deltas are no part of the message: ${deltas.length} of ${text.length} characters`);
    texts.push(text);
    deltas = "";
  }
}
const history = await (await fetch(`${url}/v1/conversations/${conversation}/messages`, { headers })).json();
const stored = history.messages.filter((placed) => placed.message.role === "assistant").length;
if (texts.length !== stored || stored < Number(rounds)) throw new Error(`${texts.length} messages were received, ${stored} are stored`);
console.log(`ok: ${seen.length} events of ${rounds} rounds in order, none twice, ${cut} connections cut`);
process.exit(0);
