"""How long a terminal waits for the first token: a model server notes when it has written it, and a new terminal when its bytes have
come. Arguments: TIMES chat|run COMMAND [ARGUMENT]… Each round's model call sends its head and the opening events, pauses, and sends one
token that no other round has; then it waits until that token was seen. `chat` is one command with a prompt for each round, `run` is the
command once for each. Writes the milliseconds of the rounds as a JSON list."""

import http.server
import json
import os
import pty
import select
import signal
import sys
import threading
import time

times, kind, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
written, seen_at = {}, {}
seen = threading.Condition()
until = time.monotonic() + 100


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    number = 0

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        Model.number += 1
        token = f"token{Model.number:04}"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        delta = {"type": "text_delta", "text": token}
        self.event({"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 5, "output_tokens": 1}}})
        self.event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
        # Long enough for the spinner to be at work, and not in step with what draws it.
        time.sleep(0.2 + 0.0137 * (Model.number % 20))
        written[token] = time.monotonic()
        self.event({"type": "content_block_delta", "index": 0, "delta": delta})
        with seen:
            seen.wait_for(lambda: token in seen_at, timeout=5)
        self.event({"type": "content_block_stop", "index": 0})
        self.event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}})
        self.event({"type": "message_stop"})
        self.close_connection = True

    def do_GET(self):
        self.send_error(404)

    def event(self, event):
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()
command = [part.replace("{url}", f"http://127.0.0.1:{server.server_port}") for part in command]


class Terminal:
    def __init__(self):
        self.text, self.passed = b"", 0
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)

    def read(self):
        """Reads what there is; false at the end of the command."""
        if not select.select([self.file], [], [], 0.5)[0]:
            return True
        try:
            read = os.read(self.file, 65536)
        except OSError:
            return False
        now = time.monotonic()
        self.text += read
        # Line editors ask where the cursor is and wait for the answer.
        for _ in range(read.count(b"\x1b[6n")):
            os.write(self.file, b"\x1b[1;1R")
        with seen:
            number = len(seen_at) + 1
            token = f"token{number:04}"
            if token.encode() in self.text[self.passed :]:
                seen_at[token] = now
                seen.notify_all()
        return bool(read)

    def wait_for(self, what):
        while what not in self.text[self.passed :]:
            if time.monotonic() > until or not self.read():
                sys.exit(f"{what!r} is not in {self.text!r}")
        self.passed += self.text[self.passed :].index(what) + len(what)


if kind == "chat":
    terminal = Terminal()
    terminal.wait_for(b"/help lists")
    for number in range(1, times + 1):
        time.sleep(0.2)
        os.write(terminal.file, f"Prompt {number}.\r".encode())
        terminal.wait_for(b"end_turn")
    os.kill(terminal.pid, signal.SIGKILL)
    os.waitpid(terminal.pid, 0)
else:
    for number in range(times):
        terminal = Terminal()
        terminal.wait_for(b"end_turn")
        while terminal.read():
            pass
        os.waitpid(terminal.pid, 0)

print(json.dumps([round((seen_at[token] - at) * 1000, 2) for token, at in sorted(written.items())]))
