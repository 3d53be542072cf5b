import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import call, finish, text

files = ["store.py", "report.py", "stats.py", "README.md"]
finish({
    "the new name works": call("store", "load_records(4)") == [["ben", 5]],
    "the report is the same": call("report", "lines()") == ["anna: 3", "ben: 5"],
    "the statistics are the same": call("stats", "total()") == 9,
    "the old name is gone": all(text(file) and "get_data" not in text(file) for file in files),
})
