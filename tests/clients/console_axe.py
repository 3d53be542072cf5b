"""The console's pages under axe-core, which checks rules of accessibility.

console_axe.py URL KEY ADMIN_KEY AXE: URL serves a tenant whose model first calls a tool that asks for approval; AXE is the
file axe.min.js. Fails on findings that axe calls serious or critical. Prints `ok: …` for each promise.
"""

import json
import sys

from console import Browser, log_in, ok, send

RUN = """axe.run(document, {resultTypes: ['violations']}).then((found) => JSON.stringify(found.violations.map((rule) =>
    [rule.impact, rule.id, rule.nodes.map((node) => node.html.slice(0, 160))])))"""


def main():
    url, key, admin_key, axe = sys.argv[1:5]
    with open(axe, encoding="utf-8") as file:
        library = file.read()
    browser = Browser()
    faults = []

    def post(conversation, text):
        send(url, key, conversation, text)

    def check(path, ready):
        browser.go(url + path)
        browser.wait(ready)
        browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        for scheme in ["light", "dark"]:
            browser.cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            for width in [1200, 400]:
                browser.size(width, 900)
                browser.cdp("Runtime.evaluate", {"expression": library + ";1"})
                found = browser.cdp("Runtime.evaluate", {"expression": RUN, "awaitPromise": True, "returnByValue": True})
                for impact, rule, nodes in json.loads(found["result"]["value"]):
                    if impact in ("serious", "critical"):
                        faults.append(f"{path} {scheme} {width}: {rule}: {nodes}")
        browser.size(1200, 900)

    try:
        log_in(browser, url, key)
        browser.shows("New conversation")
        post("first", "# Hello\n\n| a | b |\n|---|---|\n| 1 | 2 |")
        check("/console/c/first", "form.question")
        check("/console?subagents=1", "#list .badge")
        browser.go(f"{url}/console/c/first")
        browser.wait("form.question")
        browser.click("form.question .main")
        browser.shows("Round ended")
        browser.go(f"{url}/console/c/first")
        browser.click("form[action$='/rewind'] button")
        browser.do("POST", "/alert/accept", {})
        browser.shows("Taken back")
        check("/console/c/first", ".item.gone")
        post("second", "Hello")
        check("/console/compare?a=first&b=second", "table.three")
        for path in ["/timeline", "/figures", "/subagents"]:
            check(f"/console/c/first{path}", "nav.tabs")
        check("/console/fanouts", "#tasks")
        log_out = "form[action='/console/logout'] button"
        browser.click(log_out)
        log_in(browser, url, admin_key)
        browser.shows("Durations since the start")
        for path in ["/console/host", "/console/host/tenants", "/console/host/evals"]:
            check(path, "h1")
        browser.click(log_out)
        check("/console/login", "#key")
        assert not faults, "\n".join(faults)
        ok("axe finds nothing serious on the pages, in light and dark, wide and narrow")
    finally:
        browser.end()


if __name__ == "__main__":
    main()
