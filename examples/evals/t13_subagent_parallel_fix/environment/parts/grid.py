def turned(rows):
    """The grid turned by 90 degrees clockwise: `[[1, 2], [3, 4]]` is `[[3, 1], [4, 2]]`."""
    return [list(column) for column in zip(*rows)]
