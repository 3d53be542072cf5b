def pages(items, size):
    """Splits items into lists of at most `size`."""
    return [items[at * size:(at + 1) * size] for at in range(len(items) // size)]
