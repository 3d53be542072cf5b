def order(needs):
    """An order in which the targets can be built."""
    raise NotImplementedError
