"""The official Python client of the Model Context Protocol uses Callboard as a server, with and without sessions of its own.

Usage: mcp_client.py http URL KEY OTHER_KEY FOLDER, or mcp_client.py pipe PROGRAM CONFIG FOLDER. Ends with 0 and a line `ok: …` for each
promise, or with the failed one.
"""

import contextlib
import json
import pathlib
import sys

import anyio
import httpx2
from mcp import Client, MCPError
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp_types import ElicitResult

kind, *args = sys.argv[1:]
folder = pathlib.Path(args[-1])
notes = folder / "notes.txt"
TOOLS = {"send_prompt", "get_round", "cancel_round", "answer_approval", "list_conversations", "read_conversation", "start_fan_out", "get_fan_out",
         "cancel_fan_out"}


def promise(name):
    print(f"ok: {name}", flush=True)


@contextlib.asynccontextmanager
async def connected(mode, answer=None, key=None):
    """A client; `answer` is what its user says to each question, and without it the client cannot ask."""
    asked = []

    async def elicit(_, params):
        asked.append(params)
        action, *decision = answer
        return ElicitResult(action=action, content={"decision": decision[0]} if decision else None)

    options = {"mode": mode, "elicitation_callback": elicit if answer else None, "read_timeout_seconds": 60}
    if kind == "pipe":
        program, config, work = args
        command = StdioServerParameters(command=program, args=["--config", config, "mcp", "serve", "--quiet", "--workspace", work], cwd=work)
        async with Client(command, **options) as client:
            yield client, asked
    else:
        url, own_key, _, _ = args
        headers = {"Authorization": f"Bearer {key or own_key}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http:
            async with Client(streamable_http_client(f"{url}/mcp", http_client=http), **options) as client:
                yield client, asked


def text(result):
    return "\n".join(block.text for block in result.content)


async def use(client, name, arguments=None, **more):
    result = await client.call_tool(name, arguments or {}, **more)
    assert not result.is_error, (name, text(result))
    return result.structured_content


async def until(what):
    for _ in range(200):
        if found := await what():
            return found
        await anyio.sleep(0.05)
    raise AssertionError("it takes too long")


async def answers(mode):
    async with connected(mode) as (client, _):
        listed = await client.list_tools()
        assert {tool.name for tool in listed.tools} == TOOLS, listed
        assert all(tool.annotations for tool in listed.tools)
        assert (client.protocol_version == "2026-07-28") == (mode == "auto"), client.protocol_version
        info = client.server_info
        assert info is None or info.name == "callboard", info
        promise(f"{mode}: the tools are listed")

        progress = []

        async def heard(done, total, message):
            progress.append((done, message))

        first = await client.call_tool("send_prompt", {"prompt": "Say this."}, progress_callback=heard)
        shown = first.structured_content
        assert text(first).startswith("Say this.") and shown["status"] == "completed", first
        assert progress and all(a[0] < b[0] for a, b in zip(progress, progress[1:])), progress
        assert any(message == "started" for _, message in progress), progress
        id = shown["conversation_id"]
        second = await use(client, "send_prompt", {"prompt": "And this.", "conversation_id": id})
        assert (second["conversation_id"], second["text"]) == (id, "And this."), second
        promise(f"{mode}: a conversation is started and continued, with progress")

        read = await use(client, "read_conversation", {"conversation_id": id})
        assert [message["text"] for message in read["messages"]] == ["Say this.", "Say this.", "And this.", "And this."], read
        assert (read["total_messages"], read["state"] in ("idle", "asleep")) == (4, True), read
        page = await use(client, "read_conversation", {"conversation_id": id, "after": 0, "limit": 2})
        assert ([message["index"] for message in page["messages"]], page["next"]) == ([1, 2], 2), page
        rows = (await use(client, "list_conversations", {"limit": 100}))["conversations"]
        assert [row["title"] for row in rows if row["conversation_id"] == id] == ["Say this."], rows
        last = await use(client, "get_round", {"conversation_id": id})
        assert (last["round_id"], last["text"]) == (second["round_id"], "And this."), last
        promise(f"{mode}: conversations are listed and read")

        uri = f"callboard://conversations/{id}"
        assert uri in [str(resource.uri) for resource in (await client.list_resources()).resources]
        templates = (await client.list_resource_templates()).resource_templates
        assert [template.uri_template for template in templates] == ["callboard://conversations/{conversation_id}"], templates
        transcript = (await client.read_resource(uri)).contents[0]
        assert transcript.mime_type == "text/markdown" and "## user\n\nAnd this.\n" in transcript.text, transcript
        promise(f"{mode}: a conversation is a resource")

        started = await use(client, "send_prompt", {"prompt": "Later.", "background": True})
        assert started["status"] == "running" and started["round_id"], started
        ended = await use(client, "get_round", {key: started[key] for key in ("conversation_id", "round_id")})
        assert (ended["status"], ended["text"]) == ("completed", "Later."), ended
        once = {"prompt": "Once.", "conversation_id": id, "idempotency_key": "k1"}
        twice = [await use(client, "send_prompt", once) for _ in range(2)]
        assert twice[0]["round_id"] == twice[1]["round_id"], twice
        promise(f"{mode}: a round in the background is read later, and a prompt is sent once")

        tasks = [f"Task {n}." for n in range(12)]
        name = (await use(client, "start_fan_out", {"tasks": tasks}))["name"]
        over = await use(client, "get_fan_out", {"name": name, "wait_ms": 30000, "limit": 5}, progress_callback=heard)
        assert (over["is_over"], over["done"], over["failed"]) == (True, 12, 0), over
        results = over["results"] + (await use(client, "get_fan_out", {"name": name, "after": over["next"]}))["results"]
        assert [result["text"] for result in results] == tasks, results
        promise(f"{mode}: many tasks run at once")

        lines = []
        for tool, arguments in [
            ("send_prompt", {}),
            ("send_prompt", {"prompt": ""}),
            ("send_prompt", {"prompt": "x", "deadline_ms": 0}),
            ("send_prompt", {"prompt": "x", "conversation_id": "../../admin/tenants"}),
            ("read_conversation", {"conversation_id": "never-was"}),
            ("get_round", {"conversation_id": id, "round_id": "7"}),
            ("cancel_round", {"conversation_id": id}),
            ("get_fan_out", {"name": "never-was"}),
            ("answer_approval", {"conversation_id": id, "tool_call_id": "t", "allow": True}),
        ]:
            refused = await client.call_tool(tool, arguments)
            line = text(refused)
            assert refused.is_error and "\n" not in line and 20 < len(line) < 400, (tool, arguments, line)
            lines.append(line)
        assert lines[0] == "arguments of send_prompt: missing field `prompt`", lines
        assert lines[2] == "deadline_ms: must be 1 to 86400000 (code invalid_field)", lines
        assert lines[4] == "there is no such conversation (code not_found)", lines
        for wrong in [client.call_tool("delete_everything"), client.read_resource("callboard://conversations/never-was"),
                      client.read_resource("file:///etc/passwd")]:
            try:
                await wrong
                raise AssertionError("it should have failed")
            except MCPError as error:
                assert "there is no" in str(error), error
        promise(f"{mode}: each error is one line that says what was wrong")


async def approvals(mode):
    notes.unlink(missing_ok=True)
    can_be_asked = kind == "pipe" or mode != "legacy"
    if can_be_asked:
        async with connected(mode, ("decline",)) as (client, asked):
            refused = await use(client, "send_prompt", {"prompt": "edit"})
            assert refused["text"] == "Done." and not notes.exists(), refused
            assert len(asked) == 1 and "`file_edit`" in asked[0].message and "notes.txt" in asked[0].message, asked
        async with connected(mode, ("cancel",)) as (client, _):
            waits = await use(client, "send_prompt", {"prompt": "edit"})
            assert waits["status"] == "waits_for_approval" and not notes.exists(), waits
            await use(client, "cancel_round", {"conversation_id": waits["conversation_id"]})
        async with connected(mode, ("accept",)) as (client, _):
            await use(client, "send_prompt", {"prompt": "edit"})
            assert not notes.exists(), "a form without a decision allows nothing"
        async with connected(mode, ("accept", "allow")) as (client, asked):
            done = await use(client, "send_prompt", {"prompt": "edit"})
            assert done["text"] == "Done." and notes.read_text() == "hello\n" and len(asked) == 1, (done, asked)
        notes.unlink()
        promise(f"{mode}: the user is asked for an approval, and only a clear yes is one")

        async with connected(mode, ("decline",)) as (client, asked):
            started = await use(client, "send_prompt", {"prompt": "edit", "background": True})
            id = started["conversation_id"]
            waiting = await until(lambda: awaited(client, id))
            await use(client, "answer_approval", {"conversation_id": id, "tool_call_id": waiting[0], "allow": True})
            assert len(asked) == 1 and not notes.exists(), "the model's word is no approval"
        promise(f"{mode}: the client's model cannot approve what its user can be asked")

    async with connected(mode) as (client, _):
        result = await client.call_tool("send_prompt", {"prompt": "edit"})
        waits = result.structured_content
        assert waits["status"] == "waits_for_approval" and "answer_approval" in text(result), result
        [approval] = waits["approvals"]
        assert (approval["tool"], approval["input"]["path"]) == ("file_edit", "notes.txt"), approval
        read = await use(client, "read_conversation", {"conversation_id": waits["conversation_id"]})
        assert read["awaits_approval_of"] == [approval["tool_call_id"]], read
        which = {"conversation_id": waits["conversation_id"], "tool_call_id": approval["tool_call_id"]}
        done = await use(client, "answer_approval", {**which, "allow": True})
        assert done["text"] == "Done." and notes.read_text() == "hello\n", done
        again = await client.call_tool("answer_approval", {**which, "allow": True})
        assert again.is_error, again
        notes.unlink()
        promise(f"{mode}: a client that cannot ask is told what waits, and answers it")


async def awaited(client, id):
    read = await use(client, "read_conversation", {"conversation_id": id})
    return read.get("awaits_approval_of")


async def cancels(mode):
    async with connected(mode) as (client, _):
        id = f"waits-{mode}"

        async def is_running():
            rows = (await use(client, "list_conversations", {"limit": 100}))["conversations"]
            return [row for row in rows if row["conversation_id"] == id and row["open"] == "running"]

        async def is_over():
            return not await is_running()

        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "send_prompt", {"prompt": "wait", "conversation_id": id})
            await until(is_running)
            group.cancel_scope.cancel()
        if kind == "http" and mode == "legacy":
            assert await is_running(), "a stream that closes means nothing before 2026-07-28"
            await use(client, "cancel_round", {"conversation_id": id})
        await until(is_over)
        ended = await use(client, "get_round", {"conversation_id": id})
        assert (ended["stop_reason"], ended["text"]) == ("interrupted", "Working on it"), ended
        promise(f"{mode}: a cancelled call ends its round and keeps the text")


async def strangers():
    async with connected("auto") as (own, _), connected("auto", key=args[2]) as (other, _):
        started = await use(own, "send_prompt", {"prompt": "wait", "conversation_id": "private", "background": True})
        for tool, arguments in [
            ("read_conversation", {"conversation_id": "private"}),
            ("get_round", {"conversation_id": "private", "round_id": started["round_id"]}),
            ("cancel_round", {"conversation_id": "private"}),
            ("answer_approval", {"conversation_id": "private", "tool_call_id": "t", "allow": True}),
        ]:
            refused = await other.call_tool(tool, arguments)
            assert refused.is_error and text(refused) == "there is no such conversation (code not_found)", (tool, text(refused))
        state = json.dumps({"conversation_id": "private", "round_id": started["round_id"]})
        yes = {"t": ElicitResult(action="accept", content={"decision": "allow"})}
        stolen = await other.call_tool("send_prompt", {"prompt": "x"}, input_responses=yes, request_state=state)
        assert stolen.is_error and "there is no such conversation" in text(stolen), stolen
        assert (await use(other, "list_conversations"))["conversations"] == []
        try:
            await other.read_resource("callboard://conversations/private")
            raise AssertionError("another tenant's transcript was read")
        except MCPError:
            pass
        await use(own, "cancel_round", {"conversation_id": "private"})
        promise("another tenant's ids are unknown ids")


async def main():
    for mode in ["legacy", "auto"]:
        await answers(mode)
        await approvals(mode)
        await cancels(mode)
    if kind == "http":
        await strangers()


anyio.run(main)
