#!/bin/bash
set -e
cat >bank.py <<'END'
class Account:
    """Holds an amount in whole cents. The balance never falls below zero."""

    def __init__(self, cents=0):
        self.cents = cents

    def pay_in(self, cents):
        """Adds an amount, which must be more than zero (else ValueError)."""
        if cents <= 0:
            raise ValueError("the amount must be more than zero")
        self.cents += cents

    def pay_out(self, cents):
        """Takes an amount, which must be more than zero and at most the balance (else ValueError)."""
        if not 0 < cents <= self.cents:
            raise ValueError("the amount must be more than zero and at most the balance")
        self.cents -= cents

    def move(self, other, cents):
        """Moves an amount to another account, or changes neither (ValueError)."""
        self.pay_out(cents)
        other.pay_in(cents)
END
python3 test_bank.py
