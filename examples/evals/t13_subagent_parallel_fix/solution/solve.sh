#!/bin/bash
set -e
sed -i 's/\* 24/* 60/' parts/clock.py
sed -i 's/\[:2\]//' parts/names.py
sed -i 's/zip(\*rows)/zip(*rows[::-1])/' parts/grid.py
cat >parts/money.py <<'END'
def euros(cents):
    """Cents as text with two decimals: 5 is `0.05`, and -5 is `-0.05`."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"
END
