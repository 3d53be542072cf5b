def count(text):
    """Number of words in a text."""
    return len(text.split())
