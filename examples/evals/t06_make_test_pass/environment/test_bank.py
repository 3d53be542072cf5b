from bank import Account

one, other = Account(500), Account()
try:
    one.pay_out(501)
    raise SystemExit("more was paid out than there was")
except ValueError:
    pass
one.move(other, 200)
assert (one.cents, other.cents) == (300, 200)
print("ok")
