#!/bin/bash
set -e
cat >build.py <<'END'
import heapq


def order(needs):
    """An order in which the targets can be built."""
    left = {name: set(of) for name, of in needs.items()}
    for of in needs.values():
        for name in of:
            left.setdefault(name, set())
    users = {name: [] for name in left}
    for name, of in left.items():
        for need in of:
            users[need].append(name)
    ready = [name for name, of in left.items() if not of]
    heapq.heapify(ready)
    found = []
    while ready:
        name = heapq.heappop(ready)
        found.append(name)
        for user in users[name]:
            left[user].discard(name)
            if not left[user]:
                heapq.heappush(ready, user)
        del left[name]
    if left:
        name, seen = min(left), []
        while name not in seen:
            seen.append(name)
            name = min(left[name])
        raise ValueError("in a circle: " + ", ".join(seen[seen.index(name):]))
    return found
END
