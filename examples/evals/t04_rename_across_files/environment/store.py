RECORDS = [("anna", 3), ("ben", 5), ("carla", 1)]


def get_data(least=0):
    """The records with at least `least` points."""
    return [record for record in RECORDS if record[1] >= least]
