import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import call, finish, refusal

def error(needs):
    return refusal("build", f"order({needs!r})")


circle = error({"app": ["lib"], "lib": ["core"], "core": ["app"], "docs": []})
finish({
    "a line": call("build", "order({'c': ['b'], 'b': ['a']})") == ["a", "b", "c"],
    "ties by name": call("build", "order({'z': [], 'm': ['z'], 'b': [], 'a': ['m']})") == ["b", "z", "m", "a"],
    "a diamond": call("build", "order({'d': ['b', 'c'], 'b': ['a'], 'c': ['a']})") == ["a", "b", "c", "d"],
    "nothing": call("build", "order({})") == [],
    "a circle is named": all(name in circle for name in ["app", "lib", "core"]) and "docs" not in circle,
    "itself is a circle": "x" in error({"x": ["x"]}),
    "a long chain": call("build", "len(order({str(n): [str(n + 1)] for n in range(50000)}))") == 50001,
    "twice the same need": call("build", "order({'b': ['a', 'a']})") == ["a", "b"],
})
