import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import call, finish

finish({
    "clock": call("parts.clock", "[minutes('09:30'), minutes('00:05'), minutes('23:59')]") == [570, 5, 1439],
    "money": call("parts.money", "[euros(n) for n in (5, 1250, 100, -5, -250)]") == ["0.05", "12.50", "1.00", "-0.05", "-2.50"],
    "names": call("parts.names", "[initials('ada king lovelace'), initials('plato')]") == ["AKL", "P"],
    "grid": call("parts.grid", "[turned([[1, 2], [3, 4]]), turned([[1, 2, 3]])]") == [[[3, 1], [4, 2]], [[1], [2], [3]]],
})
