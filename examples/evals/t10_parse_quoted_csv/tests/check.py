import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import call, finish, refusal, text

def rows(data):
    return call("table", "rows(%r)" % data)


def error(data):
    return refusal("table", f"rows({data!r})")


finish({
    "plain": rows("a,b\nc,d\n") == [["a", "b"], ["c", "d"]],
    "no end of the last line": rows("a,b") == [["a", "b"]],
    "a comma in quotes": rows('"a,b",c\n') == [["a,b", "c"]],
    "a doubled quote": rows('"say ""hi""",x\n') == [['say "hi"', "x"]],
    "a line end in quotes": rows('"a\nb",c\r\nd,e') == [["a\nb", "c"], ["d", "e"]],
    "empty fields": rows(',\n"",\n') == [["", ""], ["", ""]],
    "an empty line": rows("a\n\nb\n") == [["a"], [""], ["b"]],
    "an empty text": rows("") == [],
    "an open quote": "4" in error('a\n"b\n",c\nd,"open,\nmore'),
    "no module csv": "import csv" not in text("table.py") and "from csv" not in text("table.py"),
})
