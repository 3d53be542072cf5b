"""The official Python client of the Agent Client Protocol works with `callboard acp`.

Usage: acp_client.py PROGRAM CONFIG FOLDER. Ends with 0 and a line `ok: …` for each promise, or with the failed one.
"""

import asyncio
import pathlib
import sys

import acp
from acp.schema import AllowedOutcome, ClientCapabilities, DeniedOutcome, RequestPermissionResponse

program, config, folder = sys.argv[1:4]
folder = pathlib.Path(folder)


def promise(name):
    print(f"ok: {name}", flush=True)


class Editor(acp.Client):
    def __init__(self):
        self.updates = []
        self.questions = []
        self.answer = "allow_once"
        self.streams = asyncio.Event()

    async def session_update(self, session_id, update, **_):
        self.updates.append(update)
        if update.session_update == "agent_message_chunk":
            self.streams.set()

    async def request_permission(self, session_id, tool_call, options, **_):
        self.questions.append(tool_call)
        chosen = [option.option_id for option in options if option.kind == self.answer]
        if not chosen:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen[0]))

    def take(self):
        updates, self.updates = self.updates, []
        return updates

    def on_connect(self, conn):
        pass


def text_of(updates, kind="agent_message_chunk"):
    return "".join(update.content.text for update in updates if update.session_update == kind)


def kinds(updates):
    """The kinds in their order, neighbours of one kind once, without figures."""
    found = [update.session_update for update in updates if update.session_update != "usage_update"]
    return [kind for at, kind in enumerate(found) if at == 0 or found[at - 1] != kind]


async def main():
    editor = Editor()
    spawned = acp.spawn_agent_process(editor, program, "--config", config, "acp", cwd=folder)
    async with spawned as (agent, process):
        hello = await agent.initialize(protocol_version=1, client_capabilities=ClientCapabilities())
        assert hello.protocol_version == 1 and hello.agent_capabilities.load_session, hello
        assert not hello.auth_methods and hello.agent_info.name == "callboard", hello
        session = await agent.new_session(cwd=str(folder), mcp_servers=[])
        assert session.modes.current_mode_id == "ask", session
        promise("an editor opens a session without authentication")

        answer = await agent.prompt(
            session_id=session.session_id,
            prompt=[
                acp.text_block("Hello, look at"),
                acp.resource_link_block("a.rs", (folder / "a.rs").as_uri()),
                acp.resource_block(acp.embedded_text_resource("file:///unsaved.rs", "fn unsaved() {}")),
            ],
        )
        said = text_of(editor.take())
        assert answer.stop_reason == "end_turn", answer
        assert "[@a.rs](file://" in said and "fn unsaved() {}" in said, said
        promise("a prompt with a link and an unsaved file reaches the model, and its answer streams")

        answer = await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("edit")])
        updates = editor.take()
        (question,) = editor.questions
        start = next(update for update in updates if update.session_update == "tool_call")
        last = [update for update in updates if update.session_update == "tool_call_update"][-1]
        assert (start.kind, start.title) == ("edit", "Create notes.txt"), start
        assert start.locations[0].path == str(folder / "notes.txt"), start
        assert question.tool_call_id == start.tool_call_id and question.content[0].new_text == "hello\n", question
        assert (last.status, last.content[0].type) == ("completed", "diff"), last
        assert (folder / "notes.txt").read_text() == "hello\n" and answer.stop_reason == "end_turn"
        promise("an edit is asked for with its diff, allowed once, and done")

        editor.answer = "reject_once"
        (folder / "notes.txt").unlink()
        await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("edit")])
        last = [update for update in editor.take() if update.session_update == "tool_call_update"][-1]
        assert last.status == "failed" and not (folder / "notes.txt").exists(), last
        promise("a rejected edit changes nothing")

        await agent.set_session_mode(session_id=session.session_id, mode_id="auto")
        asked = len(editor.questions)
        await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("edit")])
        assert len(editor.questions) == asked and (folder / "notes.txt").exists()
        promise("the mode that asks nothing asks nothing")

        editor.take()
        editor.streams.clear()
        waiting = asyncio.create_task(
            agent.prompt(session_id=session.session_id, prompt=[acp.text_block("wait")])
        )
        await editor.streams.wait()
        await agent.cancel(session_id=session.session_id)
        answer = await waiting
        assert answer.stop_reason == "cancelled", answer
        promise("a cancelled turn ends as cancelled")

        listed = await agent.list_sessions(cwd=str(folder))
        assert [row.session_id for row in listed.sessions] == [session.session_id], listed
        process.stdin.close()
        await process.wait()
        assert process.returncode == 0, process.returncode
        promise("an editor that goes away ends the program")

    again = Editor()
    async with acp.spawn_agent_process(again, program, "--config", config, "acp", cwd=folder) as (agent, _):
        await agent.initialize(protocol_version=1, client_capabilities=ClientCapabilities())
        await agent.load_session(cwd=str(folder), session_id=session.session_id, mcp_servers=[])
        updates = again.take()
        assert kinds(updates)[:5] == [
            "user_message_chunk",
            "agent_message_chunk",
            "user_message_chunk",
            "tool_call",
            "tool_call_update",
        ], kinds(updates)
        assert "fn unsaved() {}" in text_of(updates, "user_message_chunk")
        answer = await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("Hello again")])
        assert answer.stop_reason == "end_turn" and "Hello again" in text_of(again.take())
        promise("a stored session is loaded with its history and goes on")


asyncio.run(asyncio.wait_for(main(), 90))
