"""Helpers of the check. Code of the workspace runs in a process of its own, so that it can neither end nor change the check."""

import json
import pathlib
import secrets
import subprocess
import sys

WORK, LOGS = (pathlib.Path(path) for path in sys.argv[1:3])

RUN = """
import json, sys
mark, module, code = sys.argv[1:4]
sys.path.insert(0, ".")
names = {}
exec("from " + module + " import *", names)
exec(code, names)
print("\\n" + mark + json.dumps(names["value"]))
"""


def run(module, code):
    """What `value` is after some code over a module of the workspace; None if the code fails."""
    mark = secrets.token_hex(8)
    command = [sys.executable, "-B", "-c", RUN, mark, module, code]
    try:
        ended = subprocess.run(command, cwd=WORK, capture_output=True, text=True, timeout=20)
    except (subprocess.TimeoutExpired, OSError):
        return None
    lines = [line for line in ended.stdout.splitlines() if line.startswith(mark)]
    return json.loads(lines[-1][len(mark):]) if ended.returncode == 0 and lines else None


def call(module, expression):
    """The value of an expression over a module of the workspace; None if it fails."""
    return run(module, "value = " + expression)


def refusal(module, expression):
    """The text of the ValueError that an expression raises; empty if it raises none."""
    code = "try:\n    " + expression + "\n    value = ''\nexcept ValueError as error:\n    value = str(error) or 'refused'"
    return run(module, code) or ""


def text(path):
    """The text of a file of the workspace; empty if it cannot be read."""
    try:
        return (WORK / path).read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def finish(checks):
    """Writes the reward: the share of the checks that hold. The exit code is 0 only if all do."""
    for name, holds in checks.items():
        print(("ok    " if holds else "FAILS ") + name)
    LOGS.mkdir(parents=True, exist_ok=True)
    held = sum(1 for holds in checks.values() if holds)
    (LOGS / "reward.txt").write_text(f"{held / len(checks)}\n")
    sys.exit(0 if held == len(checks) else 1)
