"""Writes what the program is built from as a CycloneDX 1.5 document: arguments are the version, Cargo.lock and the
output of `cargo metadata`. Only packages that the program reaches by normal dependencies are in it."""

import json
import sys
import tomllib

version, lock_file, metadata_file = sys.argv[1:]
with open(lock_file, "rb") as file:
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(file)["package"]}
with open(metadata_file, encoding="utf-8") as file:
    metadata = json.load(file)

packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
root = next(id for id, package in packages.items() if package["name"] == "callboard")

reached, waiting = set(), [root]
while waiting:
    id = waiting.pop()
    if id in reached:
        continue
    reached.add(id)
    for dependency in nodes[id]["deps"]:
        if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
            waiting.append(dependency["pkg"])


def component(package):
    name, number = package["name"], package["version"]
    entry = {
        "type": "library",
        "name": name,
        "version": number,
        "purl": f"pkg:cargo/{name}@{number}",
        "licenses": [{"expression": package["license"]}] if package["license"] else [],
    }
    checksum = checksums.get((name, number))
    return entry | ({"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {})


libraries = sorted(reached - {root}, key=lambda id: (packages[id]["name"], packages[id]["version"]))
json.dump(
    {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "callboard", "version": version}},
        "components": [component(packages[id]) for id in libraries],
    },
    sys.stdout,
    indent=1,
)
