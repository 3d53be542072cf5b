"""What a person expects of an agent at a terminal, in order: drives `callboard chat` in tmux with a scripted model, checks each
expectation, and prints docs/chat-transcript.md with the screen after each step. Arguments: PROGRAM. Everything waits for text, with a
deadline; times, folders and dates are replaced, so that two runs print the same."""

import base64
import http.server
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

program = os.path.abspath(sys.argv[1])
until = time.monotonic() + 150
root = tempfile.TemporaryDirectory(prefix="expectations.")
home = pathlib.Path(root.name).resolve()
work = home / "work"
(work / "src").mkdir(parents=True)
(work / "src/retry.rs").write_text("/// Longest delay.\npub const CAP_MS: u64 = 10_000;\n")
pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
(work / "dot.png").write_bytes(base64.b64decode(pixel))
(work / ".git").mkdir()
(work / ".git/HEAD").write_text("ref: refs/heads/raise-the-cap\n")


def script(name, text):
    """A program of the person."""
    file = home / "bin" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("#!/bin/sh\n" + text)
    file.chmod(0o700)
    return file


editor = script("editor", """case "$1" in
*.json) sed -i 's/ls -R/ls/' "$1" ;;
*) echo 'Words from the editor.' >> "$1" ;;
esac
""")
script("wl-paste", f"exec cat '{work}/dot.png'\n")


def check(holds, what):
    """Ends the run unless an expectation holds."""
    if not holds:
        sys.exit(f"{what}\n--- the screen:\n{screen()}")


# The model: each call takes the next reply, a list of texts, of tool calls, and of gates that wait for the test.
replies, calls, histories = [], [], []


class Gate:
    """Holds a reply until it is opened, or for `most` seconds."""

    def __init__(self, most=60):
        self.event, self.most = threading.Event(), most

    def open(self):
        self.event.set()


class Model(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("/messages"):
            self.send_error(404)
            return
        calls.append(json.dumps(body["messages"][-1]))
        histories.append(json.dumps(body["messages"]))
        parts = replies.pop(0) if replies else ["There is no such reply."]
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.reply(parts)
        except OSError:
            pass  # The round was interrupted.

    def reply(self, parts):
        self.event({"type": "message_start", "message": {"content": [], "usage": {"input_tokens": 2100, "output_tokens": 1}}})
        index, open_text, stop = 0, False, "end_turn"
        for part in parts:
            if isinstance(part, Gate):
                part.event.wait(part.most)
                continue
            if isinstance(part, str):
                if not open_text:
                    self.event({"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}})
                    open_text = True
                delta = {"type": "text_delta", "text": part}
                self.event({"type": "content_block_delta", "index": index, "delta": delta})
                continue
            if open_text:
                self.event({"type": "content_block_stop", "index": index})
                index, open_text = index + 1, False
            name, arguments = part
            block = {"type": "tool_use", "id": f"t{len(calls)}", "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
            self.event({"type": "content_block_start", "index": index, "content_block": block})
            self.event({"type": "content_block_delta", "index": index, "delta": delta})
            self.event({"type": "content_block_stop", "index": index})
            index, stop = index + 1, "tool_use"
        if open_text:
            self.event({"type": "content_block_stop", "index": index})
        self.event({"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 40}})
        self.event({"type": "message_stop"})

    def do_GET(self):
        self.send_error(404)

    def event(self, event):
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
(home / "prices.toml").write_text('[prices]\n"claude-sonnet-4-5" = { input = 3.0, output = 15.0 }\n')

environment = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("CALLBOARD_", "ANTHROPIC_", "OPENAI_", "XDG_", "TMUX"))},
    "HOME": str(home),
    "CALLBOARD_CONFIG": str(home / "prices.toml"),
    "ANTHROPIC_API_KEY": "not-a-real-key",
    "VISUAL": str(editor),
    "PATH": f"{home}/bin:{os.environ['PATH']}",
    "WAYLAND_DISPLAY": "wayland-0",
    "LC_ALL": "C.UTF-8",
}
environment.pop("NO_COLOR", None)
flags = ["--provider", "anthropic", "--base-url", url, "--model", "claude-sonnet-4-5", "--sandbox", "local"]


# The terminal: each window has a server of its own, so that none is met while it ends.
windows = []


def tmux(*arguments, **more):
    command = ["tmux", "-u", "-f", "/dev/null", "-S", str(home / f"tmux-{len(windows)}"), *arguments]
    return subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, **more).stdout


def screen():
    """All rows that were printed, and those that change."""
    rows = tmux("capture-pane", "-p", "-J", "-S", "-").split("\n")
    return "\n".join(row.rstrip() for row in rows).rstrip() + "\n"


def begin(*arguments, more=""):
    """Starts the program in a new window of 80 columns. What it writes is kept byte by byte."""
    tmux("kill-server")
    windows.append(arguments)
    raw = home / "raw"
    raw.write_bytes(b"")
    command = " ".join(f"'{part}'" for part in (program, *arguments))
    # The program begins once its bytes are kept.
    tmux("new-session", "-d", "-x", "80", "-y", "40", f"read go; clear; {more} {command}; echo 'left with' $?; read end")
    tmux("pipe-pane", "-o", f"cat > '{raw}'")
    tmux("send-keys", "Enter")


def written():
    return (home / "raw").read_bytes()


def wait_for(what, holds=None):
    holds = holds or (lambda shown: what in shown)
    most = min(until, time.monotonic() + 30)
    while not holds(screen()):
        check(time.monotonic() < most, f"{what!r} did not come")
        time.sleep(0.02)
    return screen()


def keys(*names):
    tmux("send-keys", *names)


def type_text(text):
    tmux("send-keys", "-l", text)


def prompt(text, *script):
    """Sends a prompt that the model answers by these replies."""
    replies[:] = list(script)
    type_text(text)
    wait_for(f"> {text}")
    keys("Enter")


def last(text):
    """The rows from the last one with `text` on."""
    shown = screen()
    at = shown.rfind(text)
    return shown[shown.rfind("\n", 0, at) + 1 :] if at >= 0 else ""


def ended(text):
    """Waits until the round of a prompt has ended and the next line can be typed."""
    wait_for(f"the end of {text!r}", lambda _: re.search(r"\n> *\n$", last(f"> {text}")))
    return last(f"> {text}")


def prompt_comes():
    return wait_for("a prompt", lambda text: re.search(r"\n> *\n$", text))


def answer(key, question):
    """Answers a question. A key that has no meaning is said to have none once keys count, so nothing has to be timed."""
    asked = lambda shown: shown[max(shown.rfind("\n? "), shown.rfind("\n> ")) :]
    wait_for(question, lambda shown: question in asked(shown))
    pressed = 0
    while "by itself" not in asked(screen()):
        check(time.monotonic() < until, f"{question!r} takes no key")
        if time.monotonic() - pressed > 2:
            keys("q")
            pressed = time.monotonic()
        time.sleep(0.02)
    keys(key)


# The page.
page = []
INTRO = """# A chat, step by step

What a person expects of an agent at a terminal, in fifteen steps, and what `callboard chat` shows. `tests/integration/support/expectations.py`
drives the chat in tmux with a scripted model, checks every step, and prints this page; a test compares the two. Times, folders and dates are
replaced. The commands run with `--sandbox local`, so that the page is the same on every machine. [A chat](chat.md) describes all of it.
"""


def normal(text):
    text = text.replace(str(work), "/home/me/project").replace(url, "http://127.0.0.1:8080")
    text = re.sub(r"\b\d+(\.\d)? (ms|s)\b", "0.1 s", text)
    text = re.sub(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] \d+s", "⠋ 0s", text)
    text = text.replace(" ·\n", " · ")  # Where a footer is wrapped depends on the time in it.
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "2026-01-01 12:00", text)
    # A stray key can be named twice on a slow machine.
    text = re.sub(r"(\n  Press one key by itself: [^\n]*)(?:\n  Press one key by itself: [^\n]*)+(?=\n)", r"\1", text)
    return text.strip("\n")


def step(title, words, *screens):
    number = sum(part.startswith("## ") for part in page) + 1
    page.append(f"## {number}. {title}\n\n{words}\n")
    for shown in screens:
        page.append(f"```text\n{normal(shown)}\n```\n")


def main():
    begin("chat", *flags, "--session", "demo")
    wait_for("/help lists")

    # 1
    gate = Gate()
    prompt("What is the plan?", ["# Plan\n\nRaise the **cap** of `retry.rs` first.\n\n", gate, "1. read\n2. change\n\n```rust\nfn main() {}\n```\n"])
    early = wait_for("Raise the cap of retry.rs first.")
    check("end_turn" not in early and "change" not in early, "the first paragraph did not come by itself")
    shown_early = last("> What is")
    gate.open()
    shown = ended("What is the plan?")
    check("Plan" in shown and "**" not in shown and "```" not in shown and "fn main() {}" in shown, "the Markdown is not formatted")
    step("Markdown while it comes", "The first paragraph is shown while the model still writes; then the whole answer.", shown_early, shown)

    # 2
    prompt("Run the tests.", [("bash", {"command": "until [ -e go ]; do sleep 0.1; done; seq 5; exit 3"})], ["Three failed."])
    answer("y", "Allow bash?")
    wait_for("a spinner", lambda text: re.search(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] \d+s bash until", text))
    running = last("> Run the")
    (work / "go").touch()
    shown = ended("Run the tests.")
    check(re.search(r"✗ bash until.* \(\S+ m?s\) exit 3\n    1\n    2\n    3 …\n", shown), "the line of the tool lacks time, exit or output")
    keys("C-o")
    wait_for("    4\n    5\n")
    prompt_comes()
    step("A tool call is one line", "A spinner with the time while it runs; then the time, the exit code and the first lines of its output. "
         "`Ctrl-O` prints all of it.", running, last("> Run the"))

    # 3
    edit = lambda old, new: ("file_edit", {"path": "src/retry.rs", "old_text": old, "new_text": new})
    prompt("Raise the cap.", [edit("10_000", "20_000")], ["Raised."])
    shown = wait_for("Allow file_edit of src/retry.rs?")
    question = last("> Raise")
    check("  - 10_000\n  + 20_000\n" in question, "the question shows no diff")
    check("10_000" in (work / "src/retry.rs").read_text(), "the file changed before the answer")
    answer("y", "Allow file_edit")
    shown = ended("Raise the cap.")
    check("20_000" in (work / "src/retry.rs").read_text(), "the allowed change was not made")
    step("The diff comes before the question", "The file is unchanged until the answer.", question)

    # 4
    prompt("Twice more, then clean up.", [edit("20_000", "30_000")], [edit("30_000", "40_000")], [("bash", {"command": "rm -r src"})],
           [("bash", {"command": "ls -R src"})], ["I left it."])
    answer("a", "Allow file_edit")
    answer("d", "Allow bash?")
    wait_for("Why not?")
    type_text("Keep src, only list it.")
    keys("Enter")
    wait_for("? bash\n  $ ls -R src\n")
    check("Keep src, only list it." in calls[-1] and "is_error" in calls[-1], "the model does not read why the call was refused")
    answer("e", "Allow bash?")
    wait_for("? bash\n  $ ls src\n")
    answer("y", "Allow bash?")
    shown = ended("Twice more, then clean up.")
    check(shown.count("Allow file_edit") == 1, "always was asked again")
    check("40_000" in (work / "src/retry.rs").read_text(), "the change that is always allowed was not made, or src was removed")
    check("retry.rs" in calls[-1] and "src:" not in calls[-1], "the call ran with other arguments than those that were allowed")
    check('{\\\\\"command\\\\\":\\\\\"ls src\\\\\"}' in calls[-1] or "changed the arguments" in calls[-1], "the model does not read the arguments")
    step("Once, always, with other arguments, or no", "A key without a meaning is none. `a` allows the same call from now on; `d` refuses with words, which the "
         "model reads; `e` opens the arguments in the editor, and what is allowed then is what runs.", shown)

    # 5
    gate = Gate()
    prompt("A long question.", [gate, "The first answer."], ["The second answer."])
    wait_for("thinking")
    type_text("And then?")
    keys("Enter")
    wait_for("queued: And then?")
    waiting = last("> A long")
    gate.open()
    shown = ended("And then?")
    check("The second answer." in shown and "And then?" in calls[-1] and "And then?" not in calls[-2], "the line that waited was not sent after the round")
    step("What is typed while it works is seen and sent", "The line waits below the answer and is sent after the round.", waiting, last("> A long"))

    # 6
    gate = Gate()
    prompt("Count to a million.", ["One, two,\n\n", gate], ["One, two, three."])
    wait_for("One, two,")
    type_text("Stop at three.")
    keys("Enter")
    wait_for("queued: Stop at three.")
    keys("Escape")
    ended("Stop at three.")
    gate.open()
    shown = last("> Count")
    check("interrupted" in shown and "One, two, three." in shown, "the round was not interrupted, or the line that waited was lost")
    keys("Escape")
    wait_for("once more to take the last prompt back")
    keys("Escape")
    answer("y", 'go back to before "Stop at three."?')
    wait_for("the text of the prompt", lambda text: text.endswith("\n> Stop at three.\n"))
    shown = last("> Count")
    keys("C-u")
    step("A round can be interrupted and undone", "Esc ends the round, and what waited is sent. Esc twice at an empty line takes the last prompt back: the conversation is "
         "as before it, and its text is in the line again. Ctrl-C interrupts too, and empties the queue.", shown)

    # 7
    prompt("How full is it?", ["Not very."])
    shown = ended("How full is it?")
    figures = r"end_turn · [\d,]+ tokens in, [\d,]+ out · \d+ % of 200k · \$\S+ ·\s[^·]+ ·\sclaude-sonnet-4-5 · raise-the-cap\n"
    check(re.search(figures, shown), "the footer lacks tokens, window, cost, model or branch")
    check("Stop at three" not in histories[-1] and "Count to a million" in histories[-1], "the prompt was not taken back")
    type_text("/model")
    keys("Enter")
    wait_for("* anthropic  claude-sonnet-4-5")
    step("Tokens, window, cost, model and branch below every answer", "`/model` lists the models.", last("> How full"))

    # 8
    prompt_comes()
    type_text("/s")
    keys("Tab")
    wait_for("/skills")
    shown = last("| /s")
    check("/sessions" in shown and "/skills" in shown, "the commands are not suggested")
    keys("C-c")
    wait_for("once more to leave")
    type_text("Read @src/re")
    keys("Tab")
    wait_for("\n@src/retry.rs")
    keys("Enter")
    wait_for("> Read @src/retry.rs")
    path = last("Read @src/retry.rs")
    keys("C-u")
    keys("Up")
    wait_for("> /model", lambda text: re.search(r"> /model\n$", text))
    step("Commands, files and earlier lines", "Tab completes commands and `@file`; the arrow keys bring back the lines of chats about this folder.",
         shown, path, last("> /model"))
    keys("C-u")

    # 9
    type_text("/quit")
    keys("Enter")
    wait_for("left with 0")
    replies[:] = [["A different answer."]]
    other = subprocess.run([program, "run", *flags, "--session", "other", "A different matter."], env=environment, cwd=work, stdin=subprocess.DEVNULL,
                           capture_output=True, text=True, timeout=60)
    check(other.returncode == 0, other.stderr)
    begin("chat", *flags, "--continue")
    wait_for("/help lists")
    check("you: A different matter." in screen() and "A different answer." in screen(), "the last exchange is not shown")
    type_text("/sessions")
    keys("Enter")
    wait_for("1 of 2:")
    check(re.search(r" 2  \S+ \S+  demo +What is the plan\?", screen()), "the sessions have no titles")
    keys("Down")
    wait_for("2 of 2:")
    listed = screen()
    keys("Enter")
    wait_for("you: How full is it?")
    prompt_comes()
    type_text("/quit")
    keys("Enter")
    wait_for("left with 0")
    begin("chat", *flags, "--resume")
    wait_for("1 of 2:")
    type_text("matter")
    wait_for("1 of 1:")
    resumed = screen()
    keys("Enter")
    wait_for("you: A different matter.")
    prompt_comes()
    step("Going on with a session", "`--continue` opens the last one and shows how it ended. `/sessions` and `--resume` list them by their first words; the arrow keys, "
         "a number or words choose one. Here `/sessions` with the second one chosen, and `--resume` with a word that one of them has.", listed, resumed)

    # 10
    type_text("!echo by-hand-$((40 + 2)); exit 3")
    keys("Enter")
    wait_for("the model reads it with the next prompt")
    type_text("!!echo for-me-$((1 + 1))")
    keys("Enter")
    wait_for("the model does not see this")
    prompt("What was that?", ["It failed."])
    shown = ended("What was that?")
    check("by-hand-42" in calls[-1] and "ran this command by hand" in calls[-1], "the model does not read the command")
    check("for-me-2" not in calls[-1], "the model reads what was kept from it")
    shown = last("> !echo by-hand")
    check("by-hand-42" in shown and "for-me-2" in shown and "✗" in shown, "the commands did not run")
    step("A command by hand", "`!` runs a command under the sandbox mode of the chat, here none; the model reads it and its output with the next prompt. "
         "`!!` keeps it from the model.", shown)

    # 11
    replies[:] = [["Three lines."]]
    tmux("set-buffer", "first line\nsecond line\nthird line")
    tmux("paste-buffer", "-p")
    wait_for("third line")
    check(len([call for call in calls if "first line" in call]) == 0, "a pasted line was sent by itself")
    keys("Enter")
    wait_for("Three lines.")
    check("first line\\nsecond line\\nthird line" in calls[-1], "the paste was not sent as one prompt")
    shown = prompt_comes()
    pasted = last("> first line")
    type_text("/attach dot.png")
    keys("Enter")
    wait_for("attached to the next prompt")
    prompt("What is it?", ["One dot."])
    shown = ended("What is it?")
    check('"image"' in calls[-1], "the image was not sent")
    sent = last("> /attach")
    tmux("set-buffer", str(work / "dot.png"))
    tmux("paste-buffer", "-p")
    wait_for(f"attached to the next prompt: {work}/dot.png")
    keys("C-v")
    wait_for("attached to the next prompt: the image of the clipboard")
    prompt("And these?", ["Two dots."])
    ended("And these?")
    check(calls[-1].count('"image"') == 2, "the pasted image or that of the clipboard was not sent")
    at = sent.count("\n")
    more = "\n".join(last("> /attach").split("\n")[at - 1 :])
    step("A paste of many lines is one prompt", "Nothing is sent before Enter. An image goes along with `/attach`, by pasting its path, as terminals do when a file is dropped on "
         "them, or with `Ctrl-V` from the clipboard.", pasted, sent, more)

    # 12
    replies[:] = [["I read them."]]
    type_text("/edit")
    keys("Enter")
    wait_for("I read them.")
    prompt_comes()
    check("Words from the editor." in calls[-1], "the text of the editor was not sent")
    type_text("Draft:")
    wait_for("> Draft:")
    keys("C-g")
    wait_for("the text of the editor", lambda text: text.endswith("\n> Draft:Words from the editor.\n"))
    shown = last("> /edit")
    keys("C-u")
    step("An editor of one's own", "`/edit` opens `$VISUAL` or `$EDITOR` and sends what was saved; `Ctrl-G` opens it with what is typed, and puts what was saved in the line.", shown)

    # 13
    check(b"\x07" not in written(), "the bell rang for nothing")
    prompt("Take your time.", [Gate(10.5), ("bash", {"command": "true"})], ["Ready."])
    wait_for("Allow bash?")
    check(b"\x1b]9;callboard: a question waits for you\x07\x07" in written(), "neither bell nor notification at a question")
    answer("y", "Allow bash?")
    shown = ended("Take your time.")
    check(b"\x1b]9;callboard: the answer is ready\x07\x07" in written(), "neither bell nor notification at the end")
    step("The bell after a long round, and where it asks", "Once a round has taken ten seconds, its questions and its end send OSC 9 and the bell, which leave nothing on the screen.",
         shown)

    # 14
    prompt("Where is that said?", ["At [https://example.com/docs](https://example.com/docs) and [https://example.com](https://liar.invalid/), in `src/retry.rs:2`, not in `src/none.rs:3` or `../bin/editor:1`.\n"])
    shown = ended("Where is that said?")
    check(b"\x1b]8;;https://example.com/docs\x1b\\" in written(), "the address is no hyperlink")
    links = re.findall(rb"\x1b\]8;;([^\x1b]+)\x1b\\(.*?)\x1b\]8;;\x1b", written())
    plain = {re.sub(rb"\x1b\[[0-9;]*m", b"", text): to for to, text in links}
    host = pathlib.Path("/proc/sys/kernel/hostname").read_text().strip()
    place = plain.pop(b"src/retry.rs:2", b"").decode()
    check(place == f"file://{host}{work}/src/retry.rs", f"the place in a file leads to {place!r}")
    check(plain and all(text == to for text, to in plain.items()), f"a hyperlink shows another address: {links}")
    check("https://example.com (https://liar.invalid/)" in shown, "a link hides where it leads")
    step("Links that cannot lie", "An address is a hyperlink (OSC 8) only where the text is the address; other text is followed by where it leads. `path:line` is one where "
         "the path is a file of the workspace, here the first of three.", shown)
    type_text("/quit")
    keys("Enter")
    wait_for("left with 0")

    # 15
    moved = written()
    evil = "All \x1b]0;renamed\x07good\x1b[2J.\n"
    replies[:] = [[evil]]
    begin("chat", *flags, "--session", "plain", more="NO_COLOR=1")
    wait_for("/help lists")
    prompt("Is all good?", [evil])
    colorless = ended("Is all good?")
    check("\\u{1b}]0;renamed" in colorless, "the sequence of the model is not shown")
    check(b"\x1b]0;" not in written() and b"\x07" not in written(), "the terminal obeyed the model")
    check(not re.search(rb"\x1b\[[0-9;]*[1-9][0-9;]*m", written()), "there are colors")
    type_text("/quit")
    keys("Enter")
    wait_for("left with 0")
    check(b"\x1b[?7l" in moved, "nothing has moved in the other chats")
    begin("chat", *flags, "--session", "still", "--plain")
    wait_for("/help lists")
    prompt("Is all good?", [("bash", {"command": "seq 9"})], ["All", " good.\n"])
    answer("y", "Allow bash?")
    still = ended("Is all good?")
    check(b"\x1b[?7l" not in written() and not re.search(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏]", written().decode(errors="replace")), "rows change with --plain")
    type_text("/quit")
    keys("Enter")
    wait_for("left with 0")
    replies[:] = [[evil]]
    begin("run", *flags, "--session", "dumb", "Is all good?", more="TERM=dumb")
    wait_for("left with 0")
    dumb = screen()
    after = written().split(b"callboard provider", 1)[-1]
    check(b"\x1b" not in after, "a dumb terminal got a sequence")
    replies[:] = [["All good.\n"]]
    piped = subprocess.run([program, "chat", *flags, "--session", "piped"], env=environment, cwd=work, input="Is all good?\n", capture_output=True,
                           text=True, timeout=60)
    check((piped.returncode, piped.stdout) == (0, "All good.\n"), f"the pipe got {piped.stdout!r}")
    step("Plain where it has to be", "With `NO_COLOR`; with `--plain`, for screen readers, and `TERM=dumb`, where no row changes once it is printed; and in a pipe, which gets the answer "
         "and nothing else. A control sequence of the model is shown, not obeyed.", colorless, still, dumb, piped.stdout)


if __name__ == "__main__":
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    try:
        main()
    finally:
        tmux("kill-server")
        server.shutdown()
    sys.stdout.write("\n".join([INTRO, *page]))
