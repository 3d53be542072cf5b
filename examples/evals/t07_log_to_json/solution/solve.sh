#!/bin/bash
set -e
python3 - <<'END'
import collections, json

lines = [line.split() for line in open("access.log")]
good = [line for line in lines if len(line) == 5]
json.dump({
    "requests": len(good),
    "errors": sum(int(line[3]) >= 500 for line in good),
    "slowest": max(good, key=lambda line: int(line[4][:-2]))[2],
    "by_status": dict(collections.Counter(line[3] for line in good)),
}, open("summary.json", "w"))
END
