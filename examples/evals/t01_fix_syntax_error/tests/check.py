import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import call, finish, text

finish({
    "add works": call("calc", "add(2, 3)") == 5,
    "mean works": call("calc", "mean([2, 4, 9])") == 5.0,
    "nothing else changed": text("calc.py").replace(" ", "").startswith("defadd(a,b):\n"),
})
