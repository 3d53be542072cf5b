"""The package `callboard_client` against `callboard serve`, over a proxy that cuts connections, and through `kill -9`.

Usage: python_client.py SOURCES CALLBOARD CONFIG KEY EDITOR_KEY, with flit_core and mypy in PYTHONPATH. It builds a wheel of SOURCES, and
uses what is in it. CONFIG has a tenant for each key: the model of the first calls the first tool that it is offered and streams its
answer in pieces, that of the second edits a file after an approval. Ends with 0 and a line `ok: …` for each promise.
"""

import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import typing
import urllib.request
import zipfile
from dataclasses import MISSING, fields

sources, program, config, key, editor_key = sys.argv[1:6]
folder = tempfile.TemporaryDirectory()
modules = pathlib.Path(folder.name, "modules")
build = ["wheel", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder.name, sources]
subprocess.run([sys.executable, "-m", "pip", *build], check=True)
zipfile.ZipFile(next(pathlib.Path(folder.name).glob("*.whl"))).extractall(modules)
sys.path.insert(0, str(modules))

import callboard_client as cb  # noqa: E402
from callboard_client import _events, _routes, _types  # noqa: E402

PATIENCE = 60
USE = """
import callboard_client as cb
host = cb.Callboard("http://127.0.0.1:8787", "key")
for event in host.conversation("a").send([cb.text("Hello"), cb.image(b"", "image/png")]).events():
    if isinstance(event, cb.TextDelta):
        length: int = len(event.text)
    if isinstance(event, cb.RoundFinished) and event.error is not None:
        code: str = event.error.code
output: int = host.conversation().send("Hello").outcome().usage.output
print(event.text)  # Not every event has a text.
"""
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


class Host:
    """`callboard serve`, which can be killed and started again."""

    def start(self):
        self.process = subprocess.Popen([program, "--config", config, "serve"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for line in self.process.stdout:
            found = re.search(r"http://([\d.]+):(\d+)", line)
            if found:
                self.address = found[1], int(found[2])
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise AssertionError("the host did not start")

    def kill(self):
        self.process.kill()
        self.process.wait()


class Proxy:
    """Stands between the client and the host. Each fault is for one connection."""

    def __init__(self, host):
        self.host = host
        self.faults = []  # A number: cut after so many bytes of the answer. Bytes: answer this, and do not ask the host.
        self.requests = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            threading.Thread(target=self.carry, args=(self.listener.accept()[0],), daemon=True).start()

    def carry(self, client):
        with client:
            try:
                head = client.recv(65536)
                if not head:
                    return
                self.requests.append(head.split(b"\r\n", 1)[0].decode())
                fault = self.faults.pop(0) if self.faults else None
                if isinstance(fault, bytes):
                    while len(head.partition(b"\r\n\r\n")[2]) < int((re.search(rb"(?i)content-length: (\d+)", head) or [0, 0])[1]):
                        head += client.recv(65536)
                    client.sendall(fault)
                    return
                with socket.create_connection(self.host.address) as upstream:
                    upstream.sendall(head)
                    threading.Thread(target=self.pump, args=(client, upstream), daemon=True).start()
                    self.pump(upstream, client, fault)
            except OSError:
                pass

    def pump(self, source, target, left=None):
        try:
            while data := source.recv(65536):
                if left is not None and len(data) > left:
                    target.sendall(data[:left])
                    break
                left = None if left is None else left - len(data)
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


def said(message):
    content = message["content"]
    return content if isinstance(content, str) else "".join(block["text"] for block in content if block["type"] == "text")


def rises(events):
    places = [tuple(map(int, event.id.split("."))) for event in events]
    assert all(before < after for before, after in zip(places, places[1:])), places


def raises(kind, code, do):
    try:
        do()
    except kind as error:
        assert code is None or error.code == code, error
        return error
    raise AssertionError(f"no {kind.__name__}")


def the_types_are_checked():
    file = pathlib.Path(folder.name, "use.py")
    file.write_text(USE)
    check = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", folder.name, str(modules / "callboard_client"), str(file)]
    checked = subprocess.run(check, capture_output=True, text=True, env={**os.environ, "MYPYPATH": str(modules)})
    wrong = checked.stdout.splitlines()
    assert wrong and all("use.py:10:" in line for line in wrong), (checked.stdout, checked.stderr)
    print("ok: the package and a program that uses it are typed, by mypy --strict")


def the_document_has_what_the_client_uses():
    with urllib.request.urlopen("http://{}:{}/openapi.json".format(*host.address)) as answer:
        document = json.load(answer)
    schemas = document["components"]["schemas"]

    def schema_of(content):
        return schemas[next(iter(content.values()))["schema"]["$ref"].rsplit("/", 1)[1]]

    def names(schema):
        """Fields of a schema. Of a part that has only a description, what stands in backticks there."""
        if "allOf" in schema:
            return {name: field for part in schema["allOf"] for name, field in names(part).items()}
        return schema.get("properties") or dict.fromkeys(re.findall(r"`(\w+)`", schema.get("description", "")), {})

    kinds = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array"}

    def has(answer, schema, where):
        known, required = names(schema), schema.get("required")
        for field in fields(answer):
            assert field.name in known, f"{where}: the document has no {field.name}"
            hint = typing.get_type_hints(answer)[field.name]
            options = [option for option in typing.get_args(hint) if typing.get_origin(hint) is typing.Union] or [hint]
            types = [kinds.get(typing.get_origin(option) or option, "object") for option in options if option is not type(None)]
            listed = known[field.name].get("type", types)
            listed = listed if isinstance(listed, list) else [listed]
            assert set(types) <= set(listed), f"{where}/{field.name}: {types} is {listed} in the document"
            optional = field.default is not MISSING
            assert required is None or optional or field.name in required, f"{where}/{field.name} may be absent"

    for route in _routes.ROUTES:
        where = f"{route.method} {route.path}"
        operation = document["paths"].get(route.path, {}).get(route.method.lower())
        assert operation, f"{where} is not in the document"
        for place, used in (("query", route.query), ("header", route.headers)):
            there = {parameter["name"] for parameter in operation.get("parameters", []) if parameter["in"] == place}
            assert set(used) <= there, f"{where}: {place} {set(used) - there}"
        body = names(schema_of(operation["requestBody"]["content"])) if "requestBody" in operation else {}
        assert set(route.body) <= set(body), f"{where}: body {set(route.body) - set(body)}"
        if route.answer:
            status = "202" if route.answer is _types.Accepted else "200"
            schema = schema_of({"": operation["responses"][status]["content"]["application/json"]})
            if route.items:
                schema = schemas[schema["properties"][route.items]["items"]["$ref"].rsplit("/", 1)[1]]
            has(route.answer, schema, where)
    for part, schema in ((_types.ClientTool, "ClientTool"), (_types.ToolResult, "ToolResult"), (_types.TaskShown, "TaskShown")):
        assert {field.name for field in fields(part)} <= set(names(schemas[schema])), schema
    problem = {"code", "detail", "pointer", "retry_after_ms"}
    assert problem <= set(names(schemas["Problem"])), "Problem"
    listed = set(re.findall(r"`(\w+)`", schemas["Event"]["properties"]["type"]["description"]))
    assert listed == set(_events.EVENT_TYPES), listed ^ set(_events.EVENT_TYPES)
    print(f"ok: the document has the {len(_routes.ROUTES)} routes of the client, their parameters and fields, and its {len(listed)} events")


def a_prompt_is_answered():
    chat = client.conversation()
    chat.create(pinned=["Answer in one sentence."])
    outcome = chat.send([cb.text("What is this?"), cb.image(PIXEL, "image/png")], max_tokens=500).outcome()
    assert outcome.ok and outcome.text and outcome.usage.output > 0, outcome
    messages = list(chat.history())
    assert [placed.index for placed in messages] == list(range(len(messages))), messages
    assert "Answer in one sentence." in said(messages[0].message) and said(messages[-1].message) == outcome.text, messages
    standing = chat.state()
    assert standing.rounds == 1 and standing.round_id is None, standing
    print("ok: a prompt with an image is answered, and its history is read")


def a_stream_that_is_cut_loses_nothing():
    chance = random.Random(4711)
    chat = client.conversation()
    chat.create()
    proxy.requests.clear()
    stream = chat.events()
    seen = []
    prompts = 3
    faults = [300 + chance.randrange(5000) for _ in range(12)]

    def listen():
        for event in stream:
            seen.append(event)
            if sum(isinstance(one, cb.RoundFinished) for one in seen) == prompts:
                return

    # The state is read; then each connection is cut before the first event, until a whole round is over.
    proxy.faults = [None] + [0] * 1000
    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    direct = cb.Callboard("http://{}:{}".format(*host.address), key).conversation(chat.id)
    until(lambda: any("/events" in request for request in proxy.requests), "the state was read")
    assert direct.send("Round 0.").outcome().ok
    proxy.faults = list(faults)
    for number in range(1, prompts):
        # Each round is read a second time, over connections of its own.
        round = direct.send(f"Round {number}.")
        events = list(client.conversation(chat.id).round(round.id).events())
        rises(events)
        assert isinstance(events[-1], cb.RoundFinished), events[-1]
    listener.join(PATIENCE)
    assert not listener.is_alive(), f"{len(seen)} events"
    rises(seen)
    texts, deltas = [], ""
    for event in seen:
        assert not isinstance(event, (cb.Unknown, cb.Snapshot)), event
        if isinstance(event, cb.TextDelta):
            deltas += event.text
        if isinstance(event, cb.Message) and event.message["role"] == "assistant":
            assert said(event.message).endswith(deltas)
            texts.append(said(event.message))
            deltas = ""
    stored = [said(placed.message) for placed in chat.history() if placed.message["role"] == "assistant"]
    assert texts == stored and len(texts) == prompts, (len(texts), len(stored))
    cuts = len(faults) - len(proxy.faults)
    assert cuts >= 8, cuts
    proxy.faults = []
    print(f"ok: {len(seen)} events of {prompts} rounds in order, none lost, none twice, {cuts} connections cut")


def a_prompt_whose_answer_is_lost_is_sent_once():
    chat = client.conversation()
    proxy.requests.clear()
    proxy.faults = [0, 0, 40]
    round = chat.send("Only once.")
    assert len(proxy.requests) == 4, proxy.requests
    assert round.outcome().ok
    again = chat.send("Only once.", key=round.key)
    assert again.id == round.id
    assert chat.state().rounds == 1
    error = raises(cb.Invalid, "idempotency_key_reused", lambda: chat.send("Another.", key=round.key))
    assert error.status == 422 and error.request_id, error
    print("ok: a prompt whose answer was lost three times ran once")


def refusals_are_retried_when_it_helps():
    chat = client.conversation()
    problem = json.dumps({"status": 503, "title": "Service Unavailable", "code": "draining", "detail": "the host is shutting down", "retry_after_ms": 700})
    refused = f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {len(problem)}\r\n\r\n{problem}"
    busy = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
    proxy.requests.clear()
    proxy.faults = [refused.encode(), busy]
    began = time.monotonic()
    assert chat.send("Patience.").outcome().ok
    assert time.monotonic() - began >= 1.7 and len([one for one in proxy.requests if one.startswith("POST")]) == 3, proxy.requests
    quick = cb.Callboard(proxy.url, key, retry_for=0.5)
    proxy.faults = [busy] * 3
    error = raises(cb.Unavailable, "http_429", lambda: list(quick.conversations()))
    assert error.retry_after_ms == 1000
    proxy.faults = [0]
    raises(cb.ConnectionLost, None, lambda: chat.fork())
    proxy.faults = []
    raises(cb.Unauthorized, "unauthorized", lambda: list(cb.Callboard(proxy.url, "cb_test-key-of-no-one").conversations()))
    raises(cb.NotFound, "not_found", lambda: client.conversation("no-such").state())
    for name in ["", ".", ".."]:
        raises(ValueError, None, lambda: client.conversation(name).delete())
    proxy.faults = [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 100000000\r\n\r\ndata: " + b"x" * (65 << 20)]
    raises(cb.ProtocolError, None, lambda: list(chat.events(after="0.0.0")))
    print("ok: Retry-After is kept to, and refusals and wrong ids are errors")


def tools_of_the_client_are_run():
    chat = client.conversation()
    asked = []

    def weather(given):
        asked.append(given)
        return "Rain in Oslo."

    tool = cb.ClientTool("weather", {"type": "object"}, "The weather.")
    proxy.faults = [None, 600, 900]
    round = chat.send("How is the weather?", tools=[tool])
    outcome = round.run({"weather": weather})
    assert outcome.ok and len(asked) == 1, (outcome, asked)
    results = [event for event in round.events() if isinstance(event, cb.ToolResulted)]
    assert [(result.name, result.is_error) for result in results] == [("weather", False)], results
    call = next(event for event in round.events() if isinstance(event, cb.ClientToolCall))
    chat.tool_results([cb.ToolResult(call.tool_call_id, "Rain in Oslo.")])
    raises(cb.Conflict, "already_answered", lambda: chat.tool_results([cb.ToolResult(call.tool_call_id, "Sun.")]))
    proxy.faults = []
    print("ok: a tool of the client runs once, over cut connections too")


def approvals_are_answered():
    chat = cb.Callboard(proxy.url, editor_key).conversation()
    round = chat.send("Write the file.")
    seen = []
    for event in round.events():
        seen.append(event)
        if isinstance(event, cb.ApprovalRequired):
            assert event.name == "file_edit" and event.input["path"] == "notes.txt", event
            chat.approve(event.tool_call_id)
    result = next(event for event in seen if isinstance(event, cb.ToolResulted))
    assert not result.is_error and seen[-1].answer.ok, seen
    print("ok: an approval is answered, and the file is written")


def conversations_are_listed_forked_interrupted_and_deleted():
    chat = client.conversation(f"listed-{time.time_ns()}")
    chat.send("First words.").outcome()
    copy = chat.fork()
    listed = {one.conversation_id: one for one in client.conversations(titles=True)}
    assert chat.id in listed and copy.id in listed and listed[chat.id].title, listed
    assert [placed.message for placed in copy.history()] == [placed.message for placed in chat.history()]
    round = copy.send("Interrupt me.")
    for event in round.events():
        if isinstance(event, cb.TextDelta):
            copy.interrupt()
            break
    assert round.outcome().stop_reason == "interrupted"
    proxy.faults = [0]
    copy.delete()
    raises(cb.NotFound, "not_found", copy.delete)
    assert copy.id not in {one.conversation_id for one in client.conversations()}
    waits = chat.send("Takes a while.")
    late = raises(cb.PromptFailed, "deadline", lambda: chat.send("Too late.", wait_ms=1).outcome())
    assert late.message and waits.outcome().ok
    print("ok: conversations are listed, forked, interrupted and deleted")


def a_fan_out_and_a_stream_survive_a_kill():
    fan_out = client.fan_out([f"Task {number}." for number in range(6)], parallel=2)
    chat = client.conversation()
    round = chat.send("A long answer, please.")
    stream = round.events()
    seen = [next(stream)]
    while not isinstance(seen[-1], cb.TextDelta):
        seen.append(next(stream))
    host.kill()
    threading.Timer(0.5, host.start).start()
    seen += stream
    rises(seen)
    assert any(isinstance(event, cb.TurnRestarted) for event in seen), [type(event).__name__ for event in seen]
    assert isinstance(seen[-1], cb.RoundFinished) and seen[-1].answer == round.outcome(), seen[-1]
    results = fan_out.wait()
    assert [result.index for result in results] == list(range(6)) and all(result.ok for result in results), results
    assert [one.name for one in client.fan_outs()] == [fan_out.name]
    fan_out.delete()
    raises(cb.NotFound, "not_found", lambda: client.fan_out_named(fan_out.name).wait())
    print(f"ok: a stream and a fan-out go on after kill -9: {len(seen)} events in order")


def until(what, name):
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, f"not seen: {name}"
        time.sleep(0.01)


signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
host = Host()
host.start()
try:
    proxy = Proxy(host)
    client = cb.Callboard(proxy.url, key)
    the_types_are_checked()
    the_document_has_what_the_client_uses()
    a_prompt_is_answered()
    a_stream_that_is_cut_loses_nothing()
    a_prompt_whose_answer_is_lost_is_sent_once()
    refusals_are_retried_when_it_helps()
    tools_of_the_client_are_run()
    approvals_are_answered()
    conversations_are_listed_forked_interrupted_and_deleted()
    a_fan_out_and_a_stream_survive_a_kill()
finally:
    host.kill()
