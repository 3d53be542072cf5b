// The package `callboard-client` against `callboard serve`, over a proxy that cuts connections, and through `kill -9`.
//
// Usage: node typescript_client.mjs SOURCES CALLBOARD CONFIG KEY EDITOR_KEY, with TypeScript in CLIENT_MODULES. It compiles and packs
// SOURCES, and uses what is in the package. CONFIG has a tenant for each key: the model of the first calls the first tool that it is
// offered and streams its answer in pieces, that of the second edits a file after an approval. Ends with 0 and a line `ok: …` for each promise.
import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const [sources, program, config, key, editorKey] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), "callboard-client-"));
const tsc = (...flags) => execFileSync(process.execPath, [join(process.env.CLIENT_MODULES, "typescript/bin/tsc"), ...flags], { stdio: ["ignore", "inherit", "inherit"] });
const PIXEL = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABpfZFQAAAAABJRU5ErkJggg==", "base64");

/** `callboard serve`, which can be killed and started again. */
class Host {
  async start() {
    this.process = spawn(program, ["--config", config, "serve"], { stdio: ["ignore", "pipe", "pipe"] });
    this.address = await new Promise((found, fail) => {
      const look = (text) => {
        const [, host, port] = /http:\/\/([\d.]+):(\d+)/.exec(text) ?? [];
        if (port) found({ host, port: Number(port) });
      };
      this.process.stdout.on("data", look);
      this.process.stderr.on("data", look);
      this.process.on("exit", () => fail(new Error("the host did not start")));
    });
    this.url = `http://${this.address.host}:${this.address.port}`;
  }
  kill() {
    this.process.removeAllListeners("exit");
    this.process.kill("SIGKILL");
  }
}

/** Stands between the client and the host. Each fault is for one request. */
class Proxy {
  faults = []; // A number: cut after so many bytes of the answer. A text: answer this, and do not ask the host.
  requests = [];
  async start(host) {
    const server = createServer((client) => {
      const upstream = connect(host.address);
      let fault;
      const both = () => (client.destroy(), upstream.destroy());
      client.on("data", (data) => {
        const [line] = /^(GET|POST|PUT|DELETE) .*(?=\r\n)/.exec(data.toString("latin1")) ?? [];
        if (line) {
          this.requests.push(line);
          fault = this.faults.shift();
        }
        if (typeof fault === "string") client.end(fault);
        else upstream.write(data);
      });
      upstream.on("data", (data) => {
        if (fault === undefined) return client.write(data);
        if (data.length > fault) client.end(data.subarray(0, fault), both);
        else client.write(data);
        fault = Math.max(0, fault - data.length);
      });
      for (const socket of [client, upstream]) socket.on("close", both).on("error", both);
    });
    await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
    this.url = `http://127.0.0.1:${server.address().port}`;
  }
}

async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

const said = ({ content }) => (typeof content === "string" ? content : content.filter((block) => block.type === "text").map((block) => block.text).join(""));
const place = (event) => event.id.split(".").reduce((sum, part) => sum * 2n ** 40n + BigInt(part), 0n);

function rises(events) {
  for (let at = 1; at < events.length; at += 1) assert(place(events[at - 1]) < place(events[at]), `${events[at - 1].id} ${events[at].id}`);
}

async function throws(kind, code, does) {
  try {
    await does();
  } catch (error) {
    assert(error instanceof kind && (!code || error.code === code), error);
    return error;
  }
  assert.fail(`no ${kind.name}`);
}

function pack() {
  const work = join(folder, "sources");
  cpSync(sources, work, { recursive: true, filter: (name) => !/node_modules|dist$/.test(name) });
  tsc("-p", work);
  execFileSync("npm", ["pack", "--ignore-scripts", "--no-update-notifier", "--loglevel=error", "--pack-destination", folder], { cwd: work, stdio: ["ignore", "ignore", "inherit"] });
  const modules = join(folder, "node_modules/callboard-client");
  mkdirSync(modules, { recursive: true });
  const archive = readdirSync(folder).find((name) => name.endsWith(".tgz"));
  execFileSync("tar", ["xzf", join(folder, archive), "-C", modules, "--strip-components=1"]);
  assert.deepEqual(readdirSync(modules).sort(), ["README.md", "dist", "package.json"]);
  return modules;
}

/** The types of the client against those of the document, compared by the compiler; routes and events by name. */
async function theDocumentHasWhatTheClientUses(modules) {
  const document = await (await fetch(`${host.url}/openapi.json`)).json();
  const { ROUTES } = await import(join(modules, "dist/routes.js"));
  const { EVENT_TYPES } = await import(join(modules, "dist/events.js"));
  const { schemas } = document.components;
  const nameOf = (content) => Object.values(content ?? {})[0]?.schema.$ref?.split("/").at(-1);
  for (const { method, path, query = [], headers = [], body, answer } of Object.values(ROUTES)) {
    const operation = document.paths[path]?.[method.toLowerCase()];
    assert(operation, `${method} ${path} is not in the document`);
    for (const [where, names] of [["query", query], ["header", headers]])
      for (const name of names) assert(operation.parameters.some((one) => one.in === where && one.name === name), `${method} ${path}: ${name}`);
    if (body) assert.equal(nameOf(operation.requestBody.content), body, path);
    if (answer) assert(Object.values(operation.responses).some(({ content }) => nameOf(content) === answer), `${path}: ${answer}`);
  }
  const listed = schemas.Event.properties.type.description.match(/`\w+`/g).map((name) => name.slice(1, -1));
  assert.deepEqual(EVENT_TYPES.toSorted(), listed.toSorted());

  const typeOf = (schema, name) => {
    if (schema.$ref) return schema.$ref.split("/").at(-1);
    if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
    if (schema.allOf) return schema.allOf.map((part) => typeOf(part)).join(" & ");
    const options = (schema.oneOf ?? schema.anyOf)?.filter((one) => one.type !== "null");
    if (options) return options.map((one) => typeOf(one)).join(" | ");
    const types = [schema.type].flat().filter((one) => one !== "null");
    if (types[0] === "array") return `(${typeOf(schema.items)})[]`;
    if (types[0] !== "object") return { string: "string", integer: "number", number: "number", boolean: "boolean" }[types[0]] ?? "any";
    const required = schema.required ?? [];
    if (schema.properties) return `{ ${Object.entries(schema.properties).map(([field, type]) => `${field}${required.includes(field) ? "" : "?"}: ${typeOf(type)}`).join("; ")} }`;
    // A part that has only a description: its fields stand in backticks there, and are of any type.
    const names = name ? [] : (schema.description?.match(/`\w+`/g) ?? []);
    return names.length ? `{ ${names.map((field) => `${field.slice(1, -1)}: any`).join("; ")} }` : "any";
  };
  const reads = ["Accepted", "Answer", "Standing", "Listed", "Placed", "TaskShown", "FanOutShown"];
  const sends = ["Say", "ClientTool", "ToolResult", "FanOutRequest"];
  const lines = [`import type * as client from ${JSON.stringify(join(modules, "dist/index.js"))};`];
  for (const [name, schema] of Object.entries(schemas)) {
    // Objects that the document leaves open, such as `usage`, are of any type.
    const shown = JSON.parse(JSON.stringify(schema), (field, value) => (value?.type && [value.type].flat().includes("object") && !value.properties && !schema.allOf ? {} : value));
    lines.push(`type ${name} = ${typeOf(shown)};`);
  }
  lines.push("type Unknown<Mine, Document> = Exclude<keyof Mine, keyof Document>;", "const none = <T extends never>(_: T[] = []) => {};");
  for (const name of [...reads, ...sends]) lines.push(`none<Unknown<client.${name}, ${name}>>();`);
  // What the host may send is what the client reads; its closed lists of words are the client's own.
  lines.push("type Open<T> = { [Field in keyof T]: NonNullable<T[Field]> extends string ? string : T[Field] };");
  for (const name of reads) lines.push(`export const read${name} = (host: ${name}): Open<client.${name}> => host;`);
  for (const name of sends) lines.push(`export const send${name} = (mine: client.${name}): ${name} => mine;`);
  lines.push(`none<Exclude<"status" | "code" | "detail" | "pointer" | "retry_after_ms", keyof Problem>>();`);
  const file = join(folder, "contract.ts");
  writeFileSync(file, lines.join("\n"));
  tsc("--strict", "--noEmit", "--module", "nodenext", "--target", "es2022", "--lib", "es2022,dom", "--types", "", "--ignoreConfig", file);
  console.log(`ok: the document has the ${Object.keys(ROUTES).length} routes of the client, the types of ${reads.length + sends.length} schemas and its ${EVENT_TYPES.length} events`);
}

async function aPromptIsAnswered() {
  const chat = client.conversation();
  await chat.create({ pinned: ["Answer in one sentence."] });
  const outcome = await (await chat.send([cb.text("What is this?"), cb.image(PIXEL, "image/png")], { max_tokens: 500 })).outcome();
  assert(outcome.status === "completed" && outcome.text && outcome.usage.output > 0, JSON.stringify(outcome));
  const messages = await all(chat.history());
  assert.equal(said(messages.at(-1).message), outcome.text);
  assert(said(messages[0].message).includes("Answer in one sentence."));
  const standing = await chat.state();
  assert(standing.rounds === 1 && standing.round_id === undefined);
  console.log("ok: a prompt with an image is answered, and its history is read");
}

async function aStreamThatIsCutLosesNothing() {
  const chat = client.conversation();
  await chat.create();
  proxy.requests = [];
  let seed = 4711;
  const chance = (max) => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % max;
  const prompts = 3;
  const faults = 12;
  // The state is read; then each connection is cut before the first event, until a whole round is over.
  proxy.faults = [undefined, ...Array(1000).fill(0)];
  const seen = [];
  const listened = (async () => {
    for await (const event of await chat.events({ signal: AbortSignal.timeout(60_000) })) {
      seen.push(event);
      if (seen.filter((one) => one.type === "round_finished").length === prompts) return;
    }
  })();
  while (!proxy.requests.some((line) => line.includes("/events"))) await sleep(5);
  const direct = new cb.Callboard(host.url, key).conversation(chat.id);
  assert.equal((await (await direct.send("Round 0.")).outcome()).status, "completed");
  proxy.faults = Array.from({ length: faults }, () => 300 + chance(5000));
  for (let number = 1; number < prompts; number += 1) {
    // Each round is read a second time, over connections of its own.
    const round = await direct.send(`Round ${number}.`);
    const events = await all(chat.round(round.id).events());
    rises(events);
    assert.equal(events.at(-1).type, "round_finished");
  }
  await listened;
  rises(seen);
  const texts = [];
  let deltas = "";
  for (const event of seen) {
    assert(event.type !== "unknown" && event.type !== "snapshot");
    if (event.type === "text_delta") deltas += event.text;
    if (event.type === "message" && event.message.role === "assistant") {
      assert(said(event.message).endsWith(deltas));
      texts.push(said(event.message));
      deltas = "";
    }
  }
  const stored = (await all(chat.history())).filter(({ message }) => message.role === "assistant").map(({ message }) => said(message));
  assert.deepEqual(texts, stored);
  assert.equal(texts.length, prompts);
  const cuts = faults - proxy.faults.length;
  assert(cuts >= 8, `${cuts} cuts`);
  proxy.faults = [];
  console.log(`ok: ${seen.length} events of ${prompts} rounds in order, none lost, none twice, ${cuts} connections cut`);
}

async function aPromptWhoseAnswerIsLostIsSentOnce() {
  const chat = client.conversation();
  proxy.requests = [];
  proxy.faults = [0, 0, 40];
  const round = await chat.send("Only once.");
  assert.equal(proxy.requests.length, 4);
  assert.equal((await round.outcome()).status, "completed");
  assert.equal((await chat.send("Only once.", { key: round.key })).id, round.id);
  assert.equal((await chat.state()).rounds, 1);
  const error = await throws(cb.Invalid, "idempotency_key_reused", () => chat.send("Another.", { key: round.key }));
  assert(error.status === 422 && error.requestId);
  console.log("ok: a prompt whose answer was lost three times ran once");
}

async function refusalsAreRetriedWhenItHelps() {
  const chat = client.conversation();
  const problem = JSON.stringify({ status: 503, title: "Service Unavailable", code: "draining", detail: "the host is shutting down", retry_after_ms: 700 });
  const refused = `HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: ${problem.length}\r\n\r\n${problem}`;
  const busy = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n";
  proxy.requests = [];
  proxy.faults = [refused, busy];
  const began = Date.now();
  const round = await chat.send("Patience.");
  assert(Date.now() - began >= 1690 && proxy.requests.length === 3, `${Date.now() - began} ms, ${proxy.requests}`);
  assert.equal((await round.outcome()).status, "completed");
  const quick = new cb.Callboard(proxy.url, key, { retryFor: 500 });
  proxy.faults = [busy];
  const error = await throws(cb.Unavailable, "http_429", () => quick.fanOuts());
  assert.equal(error.retryAfterMs, 1000);
  proxy.faults = [0];
  await throws(cb.ConnectionLost, undefined, () => chat.fork());
  const flood = () => new Response(`data: ${"x".repeat(65 << 20)}`, { headers: { "content-type": "text/event-stream" } });
  const flooded = new cb.Callboard(proxy.url, key, { fetch: async () => flood() }).conversation("a");
  await throws(cb.ProtocolError, undefined, async () => all(await flooded.events({ after: "0.0.0" })));
  proxy.faults = [];
  await throws(cb.Unauthorized, "unauthorized", () => new cb.Callboard(proxy.url, "cb_test-key-of-no-one").fanOuts());
  await throws(cb.NotFound, "not_found", () => client.conversation("no-such").state());
  for (const id of ["", ".", ".."]) await throws(TypeError, undefined, () => client.conversation(id).delete());
  await throws(DOMException, undefined, async () => all(await chat.events({ signal: AbortSignal.timeout(50) })));
  console.log("ok: Retry-After is kept to, and refusals and wrong ids are errors");
}

async function toolsOfTheClientAreRun() {
  const chat = client.conversation();
  const asked = [];
  const weather = (input) => (asked.push(input), "Rain in Oslo.");
  proxy.faults = [undefined, 600, 900];
  const round = await chat.send("How is the weather?", { tools: [{ name: "weather", input_schema: { type: "object" }, description: "The weather." }] });
  const outcome = await round.run({ weather });
  proxy.faults = [];
  assert(outcome.status === "completed" && asked.length === 1, JSON.stringify({ outcome, asked }));
  const events = await all(round.events());
  const results = events.filter((event) => event.type === "tool_result");
  assert.deepEqual(results.map(({ name, is_error }) => [name, is_error]), [["weather", false]]);
  const { tool_call_id } = events.find((event) => event.type === "client_tool_call");
  await chat.toolResults([{ tool_call_id, content: "Rain in Oslo." }]);
  await throws(cb.Conflict, "already_answered", () => chat.toolResults([{ tool_call_id, content: "Sun." }]));
  console.log("ok: a tool of the client runs once, over cut connections too");
}

async function approvalsAreAnswered() {
  const chat = new cb.Callboard(proxy.url, editorKey).conversation();
  const round = await chat.send("Write the file.");
  const seen = [];
  for await (const event of round.events()) {
    seen.push(event);
    if (event.type === "approval_required") {
      assert(event.name === "file_edit" && event.input.path === "notes.txt");
      await chat.approve(event.tool_call_id);
    }
  }
  assert(!seen.find((event) => event.type === "tool_result").is_error && seen.at(-1).status === "completed", JSON.stringify(seen));
  console.log("ok: an approval is answered, and the file is written");
}

async function conversationsAreListedForkedInterruptedAndDeleted() {
  const chat = client.conversation(`listed-${Date.now()}`);
  await (await chat.send("First words.")).outcome();
  const copy = await chat.fork();
  const listed = new Map((await all(client.conversations({ titles: true }))).map((one) => [one.conversation_id, one]));
  assert(listed.get(chat.id)?.title && listed.has(copy.id));
  assert.deepEqual(await all(copy.history()), await all(chat.history()));
  const round = await copy.send("Interrupt me.");
  for await (const event of round.events()) {
    if (event.type !== "text_delta") continue;
    await copy.interrupt();
    break;
  }
  assert.equal((await round.outcome()).stop_reason, "interrupted");
  proxy.faults = [0];
  await copy.delete();
  proxy.faults = [];
  await throws(cb.NotFound, "not_found", () => copy.delete());
  const waits = await chat.send("Takes a while.");
  await throws(cb.PromptFailed, "deadline", async () => (await chat.send("Too late.", { wait_ms: 1 })).outcome());
  assert.equal((await waits.outcome()).status, "completed");
  console.log("ok: conversations are listed, forked, interrupted and deleted");
}

async function aFanOutAndAStreamSurviveAKill() {
  const fanOut = await client.fanOut(Array.from({ length: 6 }, (_, number) => `Task ${number}.`), { parallel: 2 });
  const round = await client.conversation().send("A long answer, please.");
  const seen = [];
  let restarted;
  for await (const event of round.events()) {
    seen.push(event);
    if (event.type === "text_delta" && !restarted) {
      host.kill();
      restarted = sleep(500).then(() => host.start());
    }
  }
  await restarted;
  rises(seen);
  assert(seen.some((event) => event.type === "turn_restarted"), seen.map(({ type }) => type).join());
  const { id, type, ...end } = seen.at(-1);
  assert.deepEqual(end, await round.outcome());
  const results = await fanOut.wait();
  assert.deepEqual(results.map(({ index, ok }) => [index, ok]), Array.from({ length: 6 }, (_, number) => [number, true]));
  await fanOut.delete();
  await throws(cb.NotFound, "not_found", () => client.fanOutNamed(fanOut.name).wait());
  console.log(`ok: a stream and a fan-out go on after kill -9: ${seen.length} events in order`);
}

const host = new Host();
const proxy = new Proxy();
let cb, client;
process.on("SIGTERM", () => (host.process && host.kill(), process.exit(1)));
try {
  const modules = pack();
  cb = await import(join(modules, "dist/index.js"));
  await host.start();
  await proxy.start(host);
  client = new cb.Callboard(proxy.url, key);
  await theDocumentHasWhatTheClientUses(modules);
  await aPromptIsAnswered();
  await aStreamThatIsCutLosesNothing();
  await aPromptWhoseAnswerIsLostIsSentOnce();
  await refusalsAreRetriedWhenItHelps();
  await toolsOfTheClientAreRun();
  await approvalsAreAnswered();
  await conversationsAreListedForkedInterruptedAndDeleted();
  await aFanOutAndAStreamSurviveAKill();
} catch (error) {
  console.error(error);
  process.exitCode = 1;
} finally {
  if (host.process) host.kill();
  rmSync(folder, { recursive: true, force: true });
}
process.exit();
