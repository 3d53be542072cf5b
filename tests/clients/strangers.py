"""Schemathesis against the OpenAPI document of `callboard serve`: it knows nothing but the document.

Usage: strangers.py URL KEY [SECONDS]. Ends with 0 and a line `ok: …`, or with what it found. With SECONDS it tries all routes of a tenant
in every way, as long as that; without, the routes of the compatible APIs with the values at the bounds of their fields.

Three kinds of values are chosen for it, because it would not find one that is accepted by itself: the model, the messages, and
ids of conversations. Streams that have no end, and the routes of operators, are left out.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request

url, key = sys.argv[1:3]
seconds = sys.argv[3:4]
with urllib.request.urlopen(f"{url}/openapi.json") as answer:
    document = json.load(answer)

texts = {"type": "string", "maxLength": 20}
message = {
    "type": "object",
    "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": texts},
    "required": ["role", "content"],
    "additionalProperties": False,
}
schemas = document["components"]["schemas"]
for schema in schemas.values():
    fields = schema.get("properties", {})
    if "model" in schema.get("required", []) and "messages" in fields:
        fields["messages"] = {"type": "array", "items": message, "minItems": 1, "maxItems": 4}
    if "model" in schema.get("required", []) and ("messages" in fields or "input" in fields):
        fields["model"] = {"enum": ["default"]}
    if "input" in fields:
        fields["input"] = {"anyOf": [texts, fields.get("messages", {"type": "array", "items": message, "minItems": 1, "maxItems": 4})]}
    if "content" in fields and "on_busy" in fields:
        fields["content"] = texts
for item in document["paths"].values():
    for operation in item.values():
        for parameter in operation.get("parameters", []):
            if parameter["in"] == "path" and parameter["name"] == "id":
                parameter["schema"] = {"enum": ["a", "b", "c"]}

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "openapi.json")
    with open(path, "w") as file:
        json.dump(document, file)
    checks = "not_a_server_error,content_type_conformance,response_schema_conformance,response_headers_conformance"
    left_out = "^/v1/admin|^/metrics|/events$|^/v1/fanouts/[{]name[}]$"
    command = [sys.executable, "-m", "schemathesis.cli", "run", path, "--url", url, "--checks", checks]
    command += ["--exclude-path-regex", left_out, "--header", f"Authorization: Bearer {key}", "--workers", "2"]
    command += ["--warnings", "off", "--request-timeout", "20", "--suppress-health-check", "all", "--no-color"]
    if seconds:
        command += ["--max-time", *seconds]
    else:
        command += ["--phases", "coverage", "--include-path-regex", "^/openai|^/anthropic", "--seed", "1"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder)
said = ran.stdout[-6000:] + ran.stderr[-2000:]
assert ran.returncode == 0, said
cases = next(int(line.split()[0]) for line in ran.stdout.splitlines() if " generated, " in line)
assert cases > 500, said
print(f"ok: {cases} requests, no server error and no answer outside of the document")
