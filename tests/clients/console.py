"""The console in a real browser: Chromium, driven over WebDriver's HTTP protocol.

console.py URL KEY ADMIN_KEY: URL serves a tenant whose model first calls a tool that asks for approval and
then streams its answer. Prints `ok: …` for each promise. With --shots FOLDER it also keeps pictures of the pages.
"""

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

# Generous: a busy machine draws a page in seconds, and a wait ends as soon as it may.
PATIENCE = 60
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    def __init__(self, width=1200, height=900):
        self.profile = tempfile.TemporaryDirectory()
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in self.driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                self.base = f"http://127.0.0.1:{found[1]}"
                break
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-proxy-server",
                 f"--user-data-dir={self.profile.name}", f"--window-size={width},{height}"]
        options = {"args": flags}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        # A browser that a busy machine starts too slowly is given up by its driver, and asked for again.
        made = self.until(lambda: self.ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}}), "a browser")
        self.session = f"/session/{made['sessionId']}"

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"content-type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=90) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"].splitlines()[0]) from None

    def do(self, method, path, body=None):
        return self.ask(method, self.session + path, body)

    def go(self, url):
        self.do("POST", "/url", {"url": url})

    def where(self):
        return self.do("GET", "/url")

    def all(self, query):
        found = self.do("POST", "/elements", {"using": "css selector", "value": query})
        return [one[ELEMENT] for one in found]

    def wait(self, query, count=1):
        return self.until(lambda: (lambda found: found if len(found) >= count else None)(self.all(query)), query)

    def until(self, what, name):
        """What `what` finds. A page may be replaced between a look and the next: then WebDriver refuses (a stale element, a
        document that is gone, a click that meets another element), and it is tried again."""
        end = time.monotonic() + PATIENCE
        refused = ""
        while time.monotonic() < end:
            try:
                found = what()
                if found:
                    return found
            except RuntimeError as error:
                refused = f" ({error})"
            time.sleep(0.05)
        seen = self.text("body")[:2000] if hasattr(self, "session") else ""
        raise AssertionError(f"not seen: {name}{refused}\n{seen}")

    def text(self, query):
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", query)

    def shows(self, text, query="main"):
        return self.until(lambda: text in self.text(query), text)

    def type(self, query, text):
        self.act(query, "value", {"text": text})

    def click(self, query):
        self.act(query, "click", {})

    def act(self, query, verb, body):
        def once():
            found = self.all(query)
            if found:
                self.do("POST", f"/element/{found[0]}/{verb}", body)
            return found

        self.until(once, query)

    def press(self, key):
        strokes = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self.do("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": strokes}]})

    def run(self, script, *args):
        return self.do("POST", "/execute/sync", {"script": script, "args": list(args)})

    def log(self):
        return self.do("POST", "/se/log", {"type": "browser"})

    def size(self, width, height):
        self.do("POST", "/window/rect", {"width": width, "height": height})
        # A headless window may not be narrower than 500 points; its page may.
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.cdp("Emulation.setDeviceMetricsOverride", metrics)

    def cdp(self, name, params):
        return self.do("POST", "/goog/cdp/execute", {"cmd": name, "params": params})

    def shot(self, file):
        with open(file, "wb") as out:
            out.write(base64.b64decode(self.do("GET", "/screenshot")))

    def end(self):
        try:
            self.do("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait()
            self.profile.cleanup()


def ok(what):
    print(f"ok: {what}", flush=True)


def send(url, key, conversation, text):
    """Sends a prompt, and does not wait for its answer."""
    request = urllib.request.Request(f"{url}/v1/conversations/{conversation}/messages", json.dumps({"content": text}).encode(),
                                     {"authorization": f"Bearer {key}", "content-type": "application/json", "prefer": "respond-async"})
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30).read()


def log_in(browser, url, key):
    browser.go(f"{url}/")
    browser.type("#key", key)
    browser.click("button.main")


# Rules that tools for accessibility check, as far as a page without them can: names of fields and buttons, one main
# heading, a language, a title, unique ids, contrast of texts.
FAULTS = """
const faults = [];
const name = (e) => e.getAttribute('aria-label') || e.textContent?.trim() || e.labels?.[0]?.textContent?.trim() || e.title || e.alt;
for (const e of document.querySelectorAll('input:not([type=hidden]), select, textarea, button, a[href], img, svg[role=img]'))
  if (!name(e) && !e.closest('[hidden]')) faults.push('no name: ' + e.outerHTML.slice(0, 120));
if (document.querySelectorAll('h1').length !== 1) faults.push('h1: ' + document.querySelectorAll('h1').length);
if (!document.documentElement.lang || !document.title) faults.push('no language or title');
if (document.querySelectorAll('main').length !== 1) faults.push('main');
const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) faults.push('id twice: ' + id);
const rgb = (text) => { const p = text.match(/[\\d.]+/g).map(Number); return p.length === 4 && p[3] === 0 ? null : p.slice(0, 3); };
const light = (c) => { const [r, g, b] = c.map((v) => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b; };
const below = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c) return c; } return [255, 255, 255]; };
for (const e of document.querySelectorAll('main *, header *')) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
  if (!own || !e.getClientRects().length || e.closest('svg, [hidden], .hidden, option')) continue;
  const style = getComputedStyle(e);
  const [a, b] = [light(rgb(style.color)), light(below(e))].sort((x, y) => y - x);
  if ((a + .05) / (b + .05) < 4.5) faults.push(`contrast ${((a + .05) / (b + .05)).toFixed(2)}: ` + e.outerHTML.slice(0, 120));
}
if (document.documentElement.scrollWidth > innerWidth + 1) faults.push(`wider than the window: ${document.documentElement.scrollWidth} > ${innerWidth}`);
return faults;
"""

# What a call on which a person decides could hide: a value beside a long name, the end of a long command.
HIDDEN = """
const form = document.querySelector('form.question');
const made = document.createElement('div');
made.innerHTML = '<dl class="named"><dt></dt><dd>value</dd></dl><pre class="code whole"></pre>';
made.querySelector('dt').textContent = 'name '.repeat(112).trim().replaceAll(' ', '_');
made.querySelector('pre').textContent = 'line\\n'.repeat(80) + 'end';
form.prepend(made);
const [dd, pre] = [made.querySelector('dd').getBoundingClientRect(), made.querySelector('pre')];
const hidden = [];
if (dd.left < 0 || dd.right > innerWidth || dd.width < 100) hidden.push(`a value at ${dd.left} to ${dd.right}`);
if (getComputedStyle(pre).overflowY !== 'visible' || pre.scrollHeight > pre.clientHeight + 1) hidden.push('the end of a command');
made.remove();
return hidden;
"""


def main():
    url, key, admin_key = sys.argv[1:4]
    shots = sys.argv[5] if len(sys.argv) > 5 and sys.argv[4] == "--shots" else None
    browser = Browser()
    faults = []

    def post(conversation, text):
        send(url, key, conversation, text)

    def look(name):
        for scheme in ["light", "dark"]:
            browser.cdp("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            for width in [1200, 400]:
                browser.size(width, 900)
                faults.extend(f"{name} {scheme} {width}: {fault}" for fault in browser.run(FAULTS))
                if shots:
                    height = browser.run("return document.documentElement.scrollHeight")
                    browser.size(width, max(400, min(height, 3000)))
                    browser.shot(os.path.join(shots, f"{name}-{scheme}-{width}.png"))
        browser.size(1200, 900)

    try:
        log_in(browser, url, "cb_wrong_not_a_real_key")
        browser.shows("not known here")
        look("login")
        log_in(browser, url, key)
        browser.shows("New conversation")
        assert "callboard_session" not in browser.run("return document.cookie")
        ok("a person logs in with a key, and no script can read the session")

        browser.type("#id", "first")
        browser.type("#prompt", "Hello **there**")
        browser.click("section.new button.main")
        browser.wait("form.question")
        look("question")
        for width in [1200, 400]:
            browser.size(width, 900)
            hidden = browser.run(HIDDEN)
            assert not hidden, f"at {width}: {hidden}"
        browser.size(1200, 900)
        ok("a question hides no value and no end of a command, however long its names and lines are")
        browser.shows("left")
        before = len(browser.all(".item"))
        browser.run("window.stays = true")
        browser.click("form.question button.main")
        browser.shows("Round ended")
        ok("a prompt is sent and an approval answered in its place")

        browser.run("""
            window.pieces = 0; window.most = '';
            new MutationObserver(() => { pieces++; const t = document.querySelector('.live').textContent; if (t.length > most.length) most = t; })
                .observe(document.querySelector('.live'), { childList: true, characterData: true, subtree: true });
            window.stays = true;
        """)
        # By a second client, while this page is open.
        post("first", "from elsewhere")
        browser.shows("from elsewhere")
        browser.wait("form.question")
        token = browser.run("return document.querySelector('form.question [name=csrf]').value")
        # Answered without leaving the page, as another person would.
        browser.run("""
            const form = document.querySelector('form.question');
            const body = new URLSearchParams(new FormData(form)); body.set('allow', 'once');
            fetch(form.action, { method: 'POST', body, redirect: 'manual' });
        """)
        browser.until(lambda: browser.text("#items").count("Round ended") == 2, "the second round's end")
        assert browser.run("return window.stays === true"), "the page was loaded again"
        assert len(browser.all(".item")) > before
        assert browser.run("return window.pieces") > 3 and browser.run("return window.most.length") > 20, "no stream was seen"
        ok("an open page follows the conversation piece by piece, without being loaded again")

        look("thread")
        for path in ["timeline", "figures", "subagents"]:
            browser.go(f"{url}/console/c/first/{path}")
            browser.wait("nav.tabs")
            look(path)
        browser.go(f"{url}/console/fanouts")
        browser.type("#name", "some")
        browser.type("#tasks", "one\ntwo\nthree")
        browser.click("section.new button.main")
        browser.shows("3 of 3 ended")
        look("fanout")
        browser.click("nav.tabs a[href$='/cost']")
        browser.wait(".flame .bar rect", 3)
        fills = browser.run("return [...document.querySelectorAll('.flame .bar rect, .legend .key')].map((e) => getComputedStyle(e).fill)")
        assert not {"none", "rgb(0, 0, 0)"} & set(fills), f"a bar or a key has no colour: {fills}"
        titles = browser.run("return [...document.querySelectorAll('.flame .bar title')].map((e) => e.textContent)")
        assert all("tokens" in title and "%" in title for title in titles), titles
        browser.run("document.querySelector('.high').focus()")
        assert browser.run("return document.activeElement.getAttribute('role')") == "region", "the bars cannot be reached by keys"
        look("cost")
        browser.click("details.more summary")
        assert len(browser.all("details.more tbody tr")) >= 3
        look("cost-table")
        browser.go(f"{url}/console/fanouts")
        look("fanouts")
        browser.go(f"{url}/console?subagents=1")
        look("list")
        ok("timeline, figures, subagents and fan-outs are shown")

        browser.go(f"{url}/console/c/first/figures")
        browser.click("a[href*='/call/']")
        browser.shows('"content": "Hello **there**"', "pre.whole")
        look("call")
        whole = browser.run("return fetch(document.querySelector('a[download]').href).then((r) => r.json())")
        assert whole["stream"] and whole["messages"][-1]["content"] == "Hello **there**", whole
        ok("the request body of a model call is shown, and saved whole")

        post("second", "Hello **there**")
        browser.go(f"{url}/console/c/second")
        browser.wait("form.question")
        browser.click("form.question button.danger")
        browser.shows("Round ended")
        browser.go(f"{url}/console/c/first/figures")
        browser.type("#b", "second\n")
        browser.wait("section.round")
        assert browser.where().endswith("/console/compare?a=first&b=second"), browser.where()
        look("compare")
        browser.click("form.filters a")
        browser.until(lambda: browser.where().endswith("/console/compare?a=second&b=first"), "the two swapped")
        first = browser.text("section.round")
        assert "same prompt" in first and "file_edit" in first, first
        ok("two conversations are compared, from the figures of one")

        browser.go(f"{url}/console/c/first")
        browser.type("body", "j")
        browser.type("body", "/")
        assert browser.run("return document.activeElement.id") == "prompt", "`/` leads to the box"
        browser.go(f"{url}/console/c/first")
        for _ in browser.all("#items .item"):
            browser.press("j")
            seen = browser.run("const e = document.activeElement, s = getComputedStyle(e); return [e.className, s.outlineStyle, s.outlineWidth]")
            assert "item" in seen[0] and seen[1:] == ["solid", "2px"], f"the focus is not seen: {seen}"
        post("third", "one")
        browser.go(f"{url}/console/c/third")
        browser.wait("form.question")
        browser.run("window.old = document.querySelector('form.question .danger'); old.focus()")
        post("third", "two")
        browser.until(lambda: browser.run("return !old.isConnected"), "the question that was replaced")
        assert browser.run("return document.activeElement.matches('form.question .danger')"), "a refresh takes the focus away"
        ok("the focus is seen on every item, and a refresh leaves it where it is")

        browser.go(f"{url}/console")
        browser.run("document.querySelector('#theme').focus()")
        browser.run("document.activeElement.click()")
        chosen = browser.run("return document.documentElement.dataset.theme")
        browser.go(f"{url}/console")
        assert chosen and browser.run("return document.documentElement.dataset.theme") == chosen
        browser.run("document.querySelector('#theme').click(); document.cookie = 'callboard_theme=; Path=/console; Max-Age=0'")
        ok("keys lead to the box, and chosen colours stay")

        browser.click("form[action='/console/logout'] button")
        browser.wait("#key")
        browser.go(f"{url}/console/c/first")
        assert "/console/login" in browser.where()
        browser.type("#key", key)
        browser.click("button.main")
        browser.until(lambda: browser.where().endswith("/console/c/first"), "the page that was asked for")
        # The session ends elsewhere while this page follows the conversation.
        browser.run("""
            const form = document.querySelector("form[action='/console/logout']");
            fetch(form.action, { method: 'POST', body: new URLSearchParams(new FormData(form)), redirect: 'manual' });
        """)
        post("first", "after the logout")
        browser.wait("#key")
        assert "/console/login" in browser.where()
        ok("who logs out sees nothing, and a login leads back")

        log_in(browser, url, admin_key)
        browser.shows("Durations since the start")
        browser.until(lambda: browser.text("[data-value=queue]") not in ("", "–"), "a plotted figure")
        look("host")
        browser.go(f"{url}/console/host/tenants")
        look("tenants")
        browser.click("#t-acme form[action$='/key'] button")
        browser.wait("#key")
        look("key")
        covered = browser.run("const [a, b] = ['#key', '.copy button'].map((q) => document.querySelector(q).getBoundingClientRect()); return b.top < a.bottom")
        assert not covered, "the button lies over the key"
        ok("the operator sees plots that move, and tenants")

        assert not faults, "\n".join(faults)
        ok("no page has an unnamed field, a text of low contrast or is wider than a narrow window")
        noise = [line for line in browser.log() if line["level"] in ("SEVERE", "WARNING") and "401" not in line["message"]]
        assert not noise, json.dumps(noise, indent=1)
        ok("the browser reports no violation of the policy and no error of a script")
    finally:
        browser.end()


if __name__ == "__main__":
    main()
