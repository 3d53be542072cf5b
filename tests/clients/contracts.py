"""What a host says of itself, read by other people's parsers: its OpenAPI document and its Prometheus metrics.

Usage: contracts.py URL ADMIN_KEY. Ends with 0 and a line `ok: …` for each promise, or with the failed one.
"""

import json
import sys
import urllib.request

from openapi_spec_validator import OpenAPIV31SpecValidator
from prometheus_client.parser import text_string_to_metric_families

url, admin_key = sys.argv[1:3]


def get(path, key=None):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    with urllib.request.urlopen(urllib.request.Request(url + path, headers=headers), timeout=30) as response:
        return response.headers.get_content_type(), response.read().decode()


kind, text = get("/openapi.json")
document = json.loads(text)
assert kind == "application/json" and document["openapi"].startswith("3.1"), (kind, document.get("openapi"))
OpenAPIV31SpecValidator(document).validate()
operations = [operation for path in document["paths"].values() for name, operation in path.items() if name in {"get", "put", "post", "delete"}]
assert len(operations) >= 25, f"{len(operations)} operations"
nameless = [operation for operation in operations if not operation.get("operationId") or not operation.get("responses")]
assert not nameless, nameless
print(f"ok: the OpenAPI document is valid and has {len(operations)} operations", flush=True)

kind, text = get("/metrics", admin_key)
families = {family.name: family for family in text_string_to_metric_families(text)}
ours = {name: family for name, family in families.items() if name.startswith("callboard_")}
assert kind == "text/plain" or kind == "application/openmetrics-text", kind
assert len(ours) >= 15, sorted(ours)
assert all(family.documentation for family in ours.values()), [name for name, family in ours.items() if not family.documentation]
assert any(family.type == "histogram" for family in ours.values()), {name: family.type for name, family in ours.items()}
print(f"ok: a Prometheus parser reads {len(ours)} families", flush=True)
