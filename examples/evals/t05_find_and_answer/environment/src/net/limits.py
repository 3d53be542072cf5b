from collections import namedtuple

Limit = namedtuple("Limit", "seconds again")

DOWNLOAD = Limit(seconds=20, again=2)
UPLOAD = Limit(seconds=60, again=7)
