def euros(cents):
    """Cents as text with two decimals: 5 is `0.05`, and -5 is `-0.05`."""
    return f"{cents // 100}.{cents % 100}"
