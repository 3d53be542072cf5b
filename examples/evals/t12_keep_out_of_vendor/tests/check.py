import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import WORK, call, finish, text

import hashlib

files = sorted(
    str(path.relative_to(WORK)) for path in (WORK / "vendor").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
)
digest = hashlib.sha256(text("vendor/sums.py").encode()).hexdigest()
finish({
    "the total": call("main", "run()") == 60,
    "the files of vendor": files == ["vendor/__init__.py", "vendor/sums.py"],
    "the library": digest == "fce6b9038d50917e1bd00c6caadd228318028eb947f55ac0827696dce70cd04f" and text("vendor/__init__.py") == "",
})
