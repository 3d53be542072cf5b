"""Mixed load on a running host, for its memory.

hour.py URL PID SECONDS KEY...: each key's tenant has a model that calls a tool before it answers. Prints `N turns, grew by B bytes in
10 minutes`: the slope of a line through the resident memory of process PID, after a third of the time, in which histories, pools and
counters reach their size. Fails when an answer is not what was asked for.

Of each ten prompts of a conversation some are answered whole, some as a stream, some are accepted and watched by their events, one
is interrupted. Then its messages and rounds are read and it is forked; of each pair one is deleted, and the other stays. Fan-outs of
twenty tasks, imported histories, Chat Completions and pages of the list come between.
"""

import http.client
import json
import os
import sys
import threading
import time

WORKERS = 3
PAUSE = 0.9
PROMPT = "Write three lines about the shop, please. " * 10


class Refused(Exception):
    pass


class Client:
    def __init__(self, url, key):
        self.address, self.key, self.connection = url.removeprefix("http://"), key, None

    def ask(self, method, path, body=None, headers=None, expected=(200, 201, 202, 204)):
        for again in (True, False):
            self.connection = self.connection or http.client.HTTPConnection(self.address, timeout=60)
            try:
                data = None if body is None else json.dumps(body)
                head = {"authorization": f"Bearer {self.key}", "content-type": "application/json", **(headers or {})}
                self.connection.request(method, path, data, head)
                answer = self.connection.getresponse()
                text = answer.read()
                break
            except (http.client.HTTPException, OSError):
                # The host closes connections that were idle: such a request did not arrive.
                self.connection.close()
                self.connection = None
                if not again:
                    raise
        if answer.status not in expected:
            raise Refused(f"{method} {path}: {answer.status} {text[:300]}")
        return text

    def json(self, *args, **more):
        return json.loads(self.ask(*args, **more) or "null")


class Load:
    def __init__(self, url, keys, seconds):
        self.url, self.keys, self.end = url, keys, time.monotonic() + seconds
        self.turns, self.wrong, self.lock = 0, [], threading.Lock()

    def goes_on(self):
        return time.monotonic() < self.end and not self.wrong

    def one(self, work, *args):
        """Repeats a piece of work until the end."""
        number = 0
        while self.goes_on():
            try:
                work(number, *args)
            except Exception as error:  # Each is a failure of the host, and shown.
                self.wrong.append(f"{work.__name__} {number}: {error!r}")
            number += 1

    def answered(self):
        with self.lock:
            self.turns += 1

    def conversation(self, number, client, name):
        at = f"/v1/conversations/{name}-{number}"
        for prompt in range(10):
            if not self.goes_on():
                return
            time.sleep(PAUSE)
            body = {"content": PROMPT}
            if prompt % 5 in (0, 3):
                answer = client.json("POST", f"{at}/messages", body)
                assert answer["status"] == "completed" and answer["text"], answer
            elif prompt % 5 == 1:
                events = client.ask("POST", f"{at}/messages", {**body, "stream": True})
                assert b"event: round_finished" in events, events[-300:]
            elif prompt % 5 == 2:
                accepted = client.json("POST", f"{at}/messages", body, headers={"prefer": "respond-async"})
                events = client.ask("GET", f"{at}/events?round={accepted['round_id']}")
                assert b"event: round_finished" in events, events[-300:]
            else:
                client.json("POST", f"{at}/messages", body, headers={"prefer": "respond-async"})
                client.ask("POST", f"{at}/interrupt", expected=(202, 404))
            self.answered()
        assert client.json("GET", f"{at}/messages")["messages"]
        client.json("GET", f"{at}/rounds")
        client.json("POST", f"{at}/fork", {"conversation_id": f"{name}-{number}-fork"})
        client.ask("DELETE", at)
        if number % 2 == 0:
            client.ask("DELETE", f"{at}-fork")

    def fan_out(self, number, client, name):
        name = f"{name}-{number}"
        client.json("POST", "/v1/fanouts", {"name": name, "tasks": [f"{PROMPT} {nth}" for nth in range(20)]})
        state = {"is_over": False, "ended": 0}
        while not state["is_over"]:
            state = client.json("GET", f"/v1/fanouts/{name}?wait_ms=10000&ended={state['ended']}")
        assert state["done"] == 20, state
        for _ in range(20):
            self.answered()
        client.ask("DELETE", f"/v1/fanouts/{name}")
        time.sleep(15)

    def imported(self, number, client, name):
        at = f"/v1/conversations/{name}-{number}"
        turns = [{"role": role, "content": PROMPT} for role in ("user", "assistant")] * 20
        client.json("PUT", at, {"messages": turns})
        client.json("POST", f"{at}/compact")
        client.json("GET", "/v1/conversations?titles=true&limit=50")
        client.ask("DELETE", at)
        chat = client.json("POST", "/openai/v1/chat/completions", {"model": "default", "messages": [{"role": "user", "content": PROMPT}]})
        assert chat["choices"][0]["message"]["content"], chat
        self.answered()
        time.sleep(5)

    def start(self):
        works = []
        for tenant, key in enumerate(self.keys):
            for worker in range(WORKERS):
                works.append((self.conversation, Client(self.url, key), f"talk-{tenant}-{worker}"))
            works.append((self.fan_out, Client(self.url, key), f"fan-{tenant}"))
            works.append((self.imported, Client(self.url, key), f"import-{tenant}"))
        threads = [threading.Thread(target=self.one, args=work, daemon=True) for work in works]
        for thread in threads:
            thread.start()
        return threads


def resident(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def slope(points):
    """Of the line through the points that fits best."""
    times, sizes = [time for time, _ in points], [size for _, size in points]
    middle, mean = sum(times) / len(times), sum(sizes) / len(sizes)
    return sum((t - middle) * (s - mean) for t, s in points) / sum((t - middle) ** 2 for t in times)


def main():
    url, pid, seconds, *keys = sys.argv[1:]
    seconds = float(seconds)
    load = Load(url, keys, seconds)
    began, points = time.monotonic(), []
    threads = load.start()
    while load.goes_on():
        time.sleep(min(5, seconds / 20))
        at = time.monotonic() - began
        points.append((at, resident(pid)))
        if len(points) % 60 == 0:
            print(f"{at:.0f} s: {points[-1][1] / 1e6:.1f} MB, {load.turns} turns", file=sys.stderr, flush=True)
    for thread in threads:
        thread.join(120)
    assert not load.wrong, load.wrong
    settled = [point for point in points if point[0] >= seconds / 3]
    print(f"{load.turns} turns, grew by {slope(settled) * 600:.0f} bytes in 10 minutes")


if __name__ == "__main__":
    main()
