import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import WORK, finish

import shutil
import subprocess
import tempfile

with tempfile.TemporaryDirectory() as folder:
    try:
        shutil.copy(WORK / "todo.py", folder)
    except OSError:
        pass

    def run(*args):
        try:
            return subprocess.run([sys.executable, "-B", "todo.py", *args], cwd=folder, capture_output=True, text=True, timeout=20)
        except (subprocess.TimeoutExpired, OSError):
            return subprocess.CompletedProcess(args, 99, "", "")

    for word in ["one", "two", "three"]:
        run("add", word)
    done, unknown, zero = run("done", "2"), run("done", "7"), run("done", "0")
    listed, open_ones, wrong = run("list"), run("list", "--open"), run("dance")

finish({
    "done works": done.returncode == 0 and listed.stdout == "1 [ ] one\n2 [x] two\n3 [ ] three\n",
    "open tasks keep their numbers": open_ones.stdout == "1 [ ] one\n3 [ ] three\n",
    "an unknown task": unknown.returncode == 1 and "there is no task 7" in unknown.stderr,
    "no task zero": zero.returncode == 1 and "there is no task 0" in zero.stderr,
    "usage is still shown": wrong.returncode == 2 and "usage" in wrong.stderr,
})
