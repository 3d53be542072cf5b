#!/bin/bash
set -e
cat >>words.py <<'END'


def slugify(title):
    """The title as a part of an address."""
    import re

    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
END
