import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import call, finish

finish({
    "the example": call("words", "slugify('Hello,  World!')") == "hello-world",
    "digits stay": call("words", "slugify('Top 10 of 2026')") == "top-10-of-2026",
    "no hyphen at the ends": call("words", "slugify('--x--')") == "x",
    "nothing left": call("words", "slugify('!!!')") == "",
    "count still works": call("words", "count('a b c')") == 3,
})
