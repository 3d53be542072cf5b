def rows(text):
    """The rows of a CSV text, each a list of fields."""
    return [line.split(",") for line in text.splitlines()]
