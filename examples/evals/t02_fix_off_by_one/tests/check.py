import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import call, finish

finish({
    "a part page is kept": call("pages", "pages([1, 2, 3, 4, 5], 2)") == [[1, 2], [3, 4], [5]],
    "full pages stay": call("pages", "pages([1, 2, 3, 4], 2)") == [[1, 2], [3, 4]],
    "no items, no pages": call("pages", "pages([], 3)") == [],
    "a page larger than the list": call("pages", "pages([1], 10)") == [[1]],
})
