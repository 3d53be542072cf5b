"""The pictures of `.ci/pictures`.

pictures.py console URL KEY ADMIN_KEY FOLDER: pages of the console of a running host, by Chromium.
pictures.py terminal NAME: runs commands at a terminal of 96 columns and writes NAME.cast (asciicast v2) and NAME.svg.
"""

import html
import json
import os
import pty
import re
import sys
import time

COLUMNS = 96
# What is typed: the first question, the stored session, and the same question for every line of a file.
SESSION = [
    'callboard run --provider offline --session first "Where is RETRY_CAP_MS?"',
    "callboard sessions list",
    "printf 'RETRY_CAP_MS\\nretry\\n' > names.txt",
    'callboard fanout --provider offline "Where is {}?" --over names.txt --name places',
]


def console(url, key, admin_key, folder):
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "clients"))
    from console import Browser, log_in, send

    def post(conversation, text):
        send(url, key, conversation, text)

    browser = Browser()

    def shot(name, scheme="light", width=1100, height=None):
        browser.cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
        browser.size(width, 700)
        full = browser.run("return document.documentElement.scrollHeight")
        browser.size(width, min(full, height or 1000))
        browser.shot(os.path.join(folder, f"{name}.png"))

    try:
        log_in(browser, url, key)
        browser.shows("New conversation")
        for conversation, text in [("shop-4711", "The shop asks about order 4711. Put a call on today's list."),
                                   ("bakery-12", "Remind me of the bakery.")]:
            post(conversation, text)
            browser.go(f"{url}/console/c/{conversation}")
            browser.wait("form.question")
        browser.go(f"{url}/console")
        browser.shows("shop-4711")
        shot("console-list-narrow", width=420, height=900)
        browser.go(f"{url}/console/c/shop-4711")
        browser.wait("form.question")
        shot("console-approval")
        shot("console-approval-dark", scheme="dark")
        browser.click("form.question button.main")
        browser.shows("Round ended")
        browser.go(f"{url}/console/c/shop-4711/timeline")
        browser.wait("nav.tabs")
        shot("console-timeline")
        browser.go(f"{url}/console/c/shop-4711/figures")
        browser.wait("nav.tabs")
        shot("console-figures", scheme="dark")
    finally:
        browser.end()


def typed(command, out):
    """What a command prints at a terminal, piece by piece with the time."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="dumb", COLUMNS=str(COLUMNS), LINES="40", NO_COLOR="1")
        os.execvp("bash", ["bash", "-c", f"stty cols {COLUMNS} rows 40; {command}"])
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        out(data.decode(errors="replace"))
    os.waitpid(child, 0)


def terminal(name):
    events, began, screen = [], time.monotonic(), []

    def out(text):
        text = text.replace(os.getcwd(), "/home/you/shop")
        events.append([round(time.monotonic() - began, 3), "o", text])
        screen.append(text)

    for command in SESSION:
        out("$ ")
        for letter in command:
            out(letter)
            time.sleep(0.02)
        out("\r\n")
        typed(command, out)
    head = {"version": 2, "width": COLUMNS, "height": 40, "title": "Callboard: a question, a session, a fan-out"}
    with open(f"{name}.cast", "w") as cast:
        cast.write("\n".join(json.dumps(line) for line in [head, *events]) + "\n")
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", "".join(screen)).replace("\r", "").splitlines()
    with open(f"{name}.svg", "w") as svg:
        svg.write(drawn(lines))


def drawn(lines):
    rows = [line[at:at + COLUMNS] for line in lines for at in range(0, max(len(line), 1), COLUMNS)]
    width, height = COLUMNS * 8 + 32, len(rows) * 18 + 36
    texts = "\n".join(
        f'<text x="16" y="{30 + 18 * n}" fill="{"#7fd1b9" if row.startswith("$ ") else "#d8dee9"}">{html.escape(row)}</text>'
        for n, row in enumerate(rows)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">\n'
        f'<title>A session at a terminal</title>\n<rect width="{width}" height="{height}" rx="8" fill="#20242c"/>\n'
        f'<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" font-size="13" xml:space="preserve">\n{texts}\n</g>\n</svg>\n'
    )


if __name__ == "__main__":
    {"console": console, "terminal": terminal}[sys.argv[1]](*sys.argv[2:])
