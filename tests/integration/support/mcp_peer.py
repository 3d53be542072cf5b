"""An MCP server that does what it is told to, well or badly. Arguments: MODE [FOLDER]. In FOLDER it writes every frame that it gets
(`frames`), its number of starts (`starts`), and reads the description of its tool `echo` (`description`)."""

import json
import os
import sys
import time

mode = sys.argv[1] if len(sys.argv) > 1 else "plain"
folder = sys.argv[2] if len(sys.argv) > 2 else None
out = sys.stdout.buffer


def note(name, text):
    if folder:
        with open(os.path.join(folder, name), "a") as file:
            file.write(text + "\n")


def send(message):
    out.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    out.flush()


def result(id, value):
    send({"id": id, "result": value})


def text(id, value, **more):
    result(id, {"content": [{"type": "text", "text": value}], **more})


def description():
    try:
        return open(os.path.join(folder, "description")).read()
    except (OSError, TypeError):
        return "Says it again."


def tools():
    object = {"type": "object"}
    names = "slow progress crash fail refuse flood endless huge junk deep many wrong typed hidden asks picture environment noise change deaf".split()
    list = [{"name": name, "description": name, "inputSchema": object} for name in names]
    list.append({"name": "echo", "description": description(), "inputSchema": {**object, "properties": {"text": {"type": "string"}}},
                 "annotations": {"readOnlyHint": True}})
    list.append({"name": "e.c/h o", "description": "odd name", "inputSchema": object, "annotations": {"idempotentHint": True}})
    if mode == "loop":
        list.append({"name": "loop", "inputSchema": {**object, "properties": {"x": {"$ref": "#/properties/x"}}}})
    if mode == "thousands":
        list.extend({"name": f"tool_{n}", "description": "One of many.", "inputSchema": object} for n in range(10_000))
    if mode == "large":
        list.extend({"name": f"tool_{n}", "description": "x" * 10_000, "inputSchema": object} for n in range(100))
    if mode == "clash":
        list.append({"name": "e_c_h_o", "description": "clash", "inputSchema": object})
    return list


def call(id, params):
    name, arguments = params["name"], params.get("arguments") or {}
    if name in ("echo", "e.c/h o"):
        text(id, arguments.get("text", name))
    elif name == "slow":
        pass
    elif name == "progress":
        token = params["_meta"]["progressToken"]
        for n in range(3):
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": n, "total": 3, "message": f"step {n}\u200b"}})
            time.sleep(0.15)
        for n in range(5000):
            send({"method": "notifications/progress", "params": {"progressToken": token, "progress": n}})
        send({"method": "notifications/progress", "params": {"progressToken": 999999, "progress": 1, "message": "of another call"}})
        text(id, "done")
    elif name == "crash":
        os._exit(3)
    elif name == "fail":
        text(id, "it did not work: api_key=not-a-real-key-0123456789", isError=True)
    elif name == "refuse":
        send({"id": id, "error": {"code": -32602, "message": "give `text`\u202e"}})
    elif name == "flood":
        line = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 100}}).encode() + b"\n"
        out.write(line * 6000)
        text(id, "after the flood")
    elif name == "endless":
        while True:
            out.write(b"x" * 65536)
    elif name == "huge":
        out.write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % id)
        for _ in range(100):
            out.write(b"y" * 1048576)
        out.write(b'"}]}}\n')
        out.flush()
    elif name == "junk":
        out.write(b"this is no message\n{\n" * 100)
        text(id, "after the junk")
    elif name == "deep":
        out.write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":' % id + b"[" * 100000 + b"]" * 100000 + b"}}\n")
        out.flush()
    elif name == "many":
        out.write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[],"structuredContent":[' % id + b"[]," * 1000000 + b"0]}}\n")
        out.flush()
    elif name == "wrong":
        for wrong in [id + 1000, -1, "x", 2**62]:
            text(wrong, "not yours")
        send({"result": {}})
        send({"id": None, "result": {}})
        text(id, "yours")
    elif name == "typed":
        text(str(id), "not yours")
    elif name == "hidden":
        hidden = "\u202elive\u202c \u200b\U000e0041\u009b2J\x1b]0;x\x07"
        text(id, hidden + " 👩\u200d💻 مرحبا") if arguments.get("as") == "text" else result(id, {"content": [], "structuredContent": {hidden: hidden}})
    elif name == "asks":
        send({"id": "q1", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
        send({"id": "q2", "method": "roots/list"})
        for n in range(3):
            send({"id": 5000 + n, "method": "ping"})
        answers = sorted(str(json.loads(sys.stdin.readline()).get("error", {}).get("code", "ok")) for _ in range(5))
        text(id, " ".join(answers))
    elif name == "picture":
        result(id, {"content": [{"type": "text", "text": "look:"}, {"type": "image", "mimeType": "image/png", "data": "aGVsbG8="}]})
    elif name == "environment":
        names = sorted(os.listdir("/proc/self/fd"))
        text(id, json.dumps({"environment": dict(os.environ), "descriptors": len(names)}))
    elif name == "noise":
        sys.stderr.write("n" * 5_000_000 + "\nthe end: password=not-real-0123456789\n")
        sys.stderr.flush()
        text(id, "after the noise")
    elif name == "change":
        open(os.path.join(folder, "description"), "w").write(arguments["to"])
        send({"method": "notifications/tools/list_changed"})
        text(id, "changed")
    elif name == "deaf":
        time.sleep(3600)


note("starts", str(os.getpid()))
if mode == "dies":
    sys.stderr.write("no config: token=not-a-real-token-0123\n")
    sys.exit(4)

for line in sys.stdin:
    note("frames", line.rstrip("\n"))
    message = json.loads(line)
    id, method = message.get("id"), message.get("method")
    if mode == "mute" or id is None or method is None:
        continue
    if mode == "late" and method in ("server/discover", "initialize"):
        # Of the newer protocol, and slow to say so.
        if method == "initialize":
            send({"id": id, "error": {"code": -32022, "message": "not of this protocol", "data": {"supported": ["2026-07-28"]}}})
        else:
            time.sleep(0.6)
            result(id, {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, "ttlMs": 0, "cacheScope": "private"})
    elif method == "server/discover":
        if mode != "silent":
            send({"id": id, "error": {"code": -32601, "message": "Method not found"}})
    elif method == "initialize":
        result(id, {"protocolVersion": "1999-01-01" if mode == "ancient" else "2025-11-25", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "peer", "version": "1"}})
    elif method == "tools/list":
        if mode == "pages":
            result(id, {"tools": [], "nextCursor": "again"})
        elif mode == "nolist":
            result(id, {"tools": 3})
        else:
            result(id, {"tools": tools()})
    elif method == "tools/call":
        call(id, message["params"])
    else:
        send({"id": id, "error": {"code": -32601, "message": "Method not found"}})
