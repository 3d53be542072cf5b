"""A typed client of Callboard's HTTP API: streams that resume, prompts that are sent once.

    host = Callboard("http://127.0.0.1:8787", key)
    print(host.conversation("support-42").send("Why is checkout slow?").outcome().text)
"""

from ._client import *
from ._errors import *
from ._events import *
from ._types import *
