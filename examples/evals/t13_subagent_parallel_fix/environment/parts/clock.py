def minutes(text):
    """Minutes since midnight of a time such as `09:30`."""
    hours, minutes = text.split(":")
    return int(hours) * 24 + int(minutes)
