// The official TypeScript client of the Model Context Protocol uses a host of Callboard, and the program over pipes.
//
// Usage: mcp_client.mjs URL KEY FOLDER PROGRAM CONFIG FOLDER, with CLIENT_MODULES naming the folder of its packages. Ends with 0 and a line
// `ok: …` for each promise, or with the failed one.

import assert from "node:assert/strict";
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const sdk = path.join(process.env.CLIENT_MODULES, "@modelcontextprotocol/sdk/dist/esm");
const load = (file) => import(pathToFileURL(path.join(sdk, file)));
const { Client } = await load("client/index.js");
const { StdioClientTransport } = await load("client/stdio.js");
const { StreamableHTTPClientTransport } = await load("client/streamableHttp.js");
const { ElicitRequestSchema } = await load("types.js");

const [url, key, hostFolder, program, config, programFolder] = process.argv.slice(2);
const promise = (name) => console.log(`ok: ${name}`);

const doors = {
  host: () => new StreamableHTTPClientTransport(new URL(`${url}/mcp`), { requestInit: { headers: { Authorization: `Bearer ${key}` } } }),
  pipes: () =>
    new StdioClientTransport({
      command: program,
      args: ["--config", config, "mcp", "serve", "--quiet", "--workspace", programFolder],
      cwd: programFolder,
    }),
};

async function connected(door, answer) {
  const capabilities = answer ? { elicitation: {} } : {};
  const client = new Client({ name: "test", version: "1" }, { capabilities });
  const asked = [];
  if (answer) {
    client.setRequestHandler(ElicitRequestSchema, async ({ params }) => {
      asked.push(params.message);
      return answer;
    });
  }
  await client.connect(doors[door]());
  return { client, asked, use: async (name, args, options) => (await client.callTool({ name, arguments: args }, undefined, options)) };
}

async function until(what) {
  for (let tries = 0; tries < 400; tries += 1) {
    const found = await what();
    if (found) return found;
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
  assert.fail("it takes too long");
}

for (const door of ["host", "pipes"]) {
  const { client, use } = await connected(door);
  const { tools } = await client.listTools();
  assert.equal(tools.length, 9);
  assert.ok(tools.every((tool) => tool.inputSchema.type === "object" && tool.annotations));
  promise(`${door}: the tools are listed`);

  const progress = [];
  const said = await use("send_prompt", { prompt: "Say this." }, { onprogress: (note) => progress.push(note), resetTimeoutOnProgress: true });
  const { conversation_id: id, status, text } = said.structuredContent;
  assert.deepEqual([status, text, said.isError], ["completed", "Say this.", false]);
  assert.ok(progress.some((note) => note.message === "started"), JSON.stringify(progress));
  const read = await use("read_conversation", { conversation_id: id });
  assert.deepEqual(read.structuredContent.messages.map((message) => message.role), ["user", "assistant"]);
  const { contents } = await client.readResource({ uri: `callboard://conversations/${id}` });
  assert.ok(contents[0].text.includes("## assistant\n\nSay this.\n"), contents[0].text);
  promise(`${door}: a prompt is answered, with progress, and its conversation is read`);

  const waits = `waits-${door}`;
  const isRunning = async () => {
    const rows = (await use("list_conversations", { limit: 100 })).structuredContent.conversations;
    return rows.some((row) => row.conversation_id === waits && row.open === "running");
  };
  const stop = new AbortController();
  const call = use("send_prompt", { prompt: "wait", conversation_id: waits }, { signal: stop.signal });
  await until(isRunning);
  stop.abort();
  await assert.rejects(call);
  if (door === "host") await use("cancel_round", { conversation_id: waits });
  await until(async () => !(await isRunning()));
  const ended = await use("get_round", { conversation_id: waits });
  assert.equal(ended.structuredContent.stop_reason, "interrupted");
  promise(`${door}: a call is cancelled`);

  const folder = door === "host" ? hostFolder : programFolder;
  const notes = path.join(folder, "notes.txt");
  const parked = (await use("send_prompt", { prompt: "edit" })).structuredContent;
  assert.equal(parked.status, "waits_for_approval");
  const [{ tool_call_id }] = parked.approvals;
  const done = await use("answer_approval", { conversation_id: parked.conversation_id, tool_call_id, allow: true });
  assert.deepEqual([done.structuredContent.text, fs.readFileSync(notes, "utf8")], ["Done.", "hello\n"]);
  fs.unlinkSync(notes);
  promise(`${door}: an approval is answered with a tool`);
  await client.close();
}

const { client, asked, use } = await connected("pipes", { action: "accept", content: { decision: "allow" } });
const done = await use("send_prompt", { prompt: "edit" });
assert.equal(done.structuredContent.text, "Done.");
assert.ok(asked.length === 1 && asked[0].includes("notes.txt"), asked.join());
promise("pipes: the user is asked for an approval");
await client.close();
