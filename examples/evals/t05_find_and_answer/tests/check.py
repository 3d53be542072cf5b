import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import finish, text

finish({"the number": text("answer.txt").strip() == "7"})
