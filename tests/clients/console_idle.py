"""Pages of the console that are open in real browsers, and in sight, while nothing runs.

console_idle.py URL KEY ADMIN_KEY PID SECONDS: opens 50 pages (lists, the conversation `open`, plots of the host) in windows of
ten browsers, waits until they are drawn, and prints the processor time that process PID takes, in hundredths of a percent of a core.
"""

import os
import sys
import time

from console import Browser, log_in

BROWSERS = 10
# A browser opens at most six connections to a host over HTTP/1.1, and each page of events holds one.
WINDOWS = 5
PAGES = [("/console", "main table"), ("/console/c/open", "form.prompt, textarea"), ("/console/host", "svg")]


def processor_time(pid):
    """Of a process so far, in seconds."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    url, key, admin_key, pid, seconds = sys.argv[1:]
    browsers = [Browser() for _ in range(BROWSERS)]
    try:
        opened = in_sight = 0
        for number, browser in enumerate(browsers):
            # A login of the browser is of one kind: plots belong to the operator.
            is_operator = number % 3 == 2
            log_in(browser, url, admin_key if is_operator else key)
            browser.wait("form[action='/console/logout']")
            for window in range(WINDOWS):
                if window > 0:
                    made = browser.do("POST", "/window/new", {"type": "window"})
                    browser.do("POST", "/window", {"handle": made["handle"]})
                path, drawn = PAGES[2] if is_operator else PAGES[(number + window) % 2]
                browser.go(url + path)
                browser.wait(drawn)
                opened += 1
                in_sight += browser.run("return document.visibilityState") == "visible"
        assert opened == BROWSERS * WINDOWS and in_sight == opened, f"{in_sight} of {opened} pages are in sight"
        time.sleep(5)
        before, began = processor_time(pid), time.monotonic()
        time.sleep(float(seconds))
        share = (processor_time(pid) - before) / (time.monotonic() - began)
        for browser in browsers:
            reports = [entry["message"] for entry in browser.log() if entry["level"] == "SEVERE"]
            assert not reports, reports
        print(round(share * 100 * 100))
    finally:
        for browser in browsers:
            browser.end()


if __name__ == "__main__":
    main()
