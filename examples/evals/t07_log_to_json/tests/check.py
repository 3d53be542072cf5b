import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import finish, text

import json

try:
    found = json.loads(text("summary.json"))
except ValueError:
    found = {}
found = found if isinstance(found, dict) else {}
finish({
    "requests": found.get("requests") == 238,
    "errors": found.get("errors") == 14,
    "slowest": found.get("slowest") == '/items/4',
    "by_status": found.get("by_status") == {'200': 160, '304': 36, '404': 28, '500': 14},
})
