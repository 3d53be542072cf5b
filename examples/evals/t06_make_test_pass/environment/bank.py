class Account:
    """Holds an amount in whole cents. The balance never falls below zero."""

    def __init__(self, cents=0):
        self.cents = cents

    def pay_in(self, cents):
        """Adds an amount, which must be more than zero (else ValueError)."""
        if cents < 0:
            raise ValueError("the amount must be more than zero")
        self.cents += cents

    def pay_out(self, cents):
        """Takes an amount, which must be more than zero and at most the balance (else ValueError)."""
        self.cents -= cents

    def move(self, other, cents):
        """Moves an amount to another account, or changes neither (ValueError)."""
        other.pay_in(cents)
        self.pay_out(cents)
