import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import finish, run, text

def after(action):
    """Balances of two accounts, 500 and 100, after an action, and whether it was refused."""
    return run("bank", f"""
a, b, refused = Account(500), Account(100), False
try:
    {action}
except ValueError:
    refused = True
value = [a.cents, b.cents, refused]
""")


finish({
    "paying out works": after("a.pay_out(500)") == [0, 100, False],
    "too much is refused": after("a.pay_out(501)") == [500, 100, True],
    "a negative amount is refused": after("a.pay_out(-1)") == [500, 100, True],
    "zero is not paid in": after("a.pay_in(0)") == [500, 100, True],
    "a move works": after("a.move(b, 200)") == [300, 300, False],
    "a refused move changes neither": after("a.move(b, 600)") == [500, 100, True],
    "the test was not changed": "more was paid out than there was" in text("test_bank.py"),
})
