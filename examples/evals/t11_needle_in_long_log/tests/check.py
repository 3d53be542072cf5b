import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import finish, text

finish({"the measurement": text("answer.txt").split() == ["00877", "pump-23"]})
