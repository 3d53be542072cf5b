def total(values):
    """Sums numbers. Texts are joined."""
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result
