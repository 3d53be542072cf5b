def initials(name):
    """The first letters of all parts in upper case: `ada king lovelace` is `AKL`."""
    return "".join(part[0].upper() for part in name.split()[:2])
