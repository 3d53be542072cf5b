"""Runs a command in a new terminal and types into it. Arguments: STEPS COMMAND [ARGUMENT]… STEPS is a JSON list of
[EXPECT, PAUSE_MS, TYPE]: once EXPECT is seen behind what the step before saw, TYPE is typed after a pause. Writes all that the command
wrote, byte for byte, and exits as it did."""

import json
import os
import pty
import select
import signal
import sys
import time

steps = [(expect.encode(), pause / 1000, text.encode()) for expect, pause, text in json.loads(sys.argv[1])]
pid, terminal = pty.fork()
if pid == 0:
    # The tests may run in the background of a shell that ignores signals; what a terminal starts does not.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.execvp(sys.argv[2], sys.argv[2:])

seen, at, until, due = b"", 0, time.monotonic() + 50, None
while time.monotonic() < until:
    if steps and due is None:
        found = seen.find(steps[0][0], at)
        if found >= 0:
            at, due = found + len(steps[0][0]), time.monotonic() + steps[0][1]
    wait = max(0, due - time.monotonic()) if due else 0.5
    ready, _, _ = select.select([terminal], [], [], wait)
    if due and time.monotonic() >= due:
        os.write(terminal, steps.pop(0)[2])
        due = None
    if ready:
        try:
            read = os.read(terminal, 65536)
        except OSError:
            break
        if not read:
            break
        seen += read

sys.stdout.buffer.write(seen)
sys.stdout.buffer.flush()
if time.monotonic() >= until:
    os.kill(pid, 9)
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
