"""A receiver of Callboard's webhooks that verifies their signature. Python 3.9 or newer, no packages.

    WEBHOOK_SECRET=whsec_... python3 receiver.py 8900
"""

import base64
import hashlib
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = os.environ["WEBHOOK_SECRET"]
OLDEST_S = 300  # an older call may be a copy that someone kept
SEEN = {}  # ids of calls that were handled; a real receiver keeps them in its database


def is_signed(headers, body):
    """Whether a call was signed with the secret, a short time ago."""
    call, at, given = (headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature"))
    if not at.isdigit() or abs(time.time() - int(at)) > OLDEST_S:
        return False
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    digest = hmac.new(key, f"{call}.{at}.".encode() + body, hashlib.sha256).digest()
    expected = "v1," + base64.b64encode(digest).decode()
    # There are two signatures while the secret changes.
    return any(hmac.compare_digest(expected, one) for one in given.split())


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(min(int(self.headers.get("content-length") or 0), 65536))
        if not is_signed(self.headers, body):
            return self.answer(401)
        call = self.headers["webhook-id"]
        if call not in SEEN:
            SEEN[call] = time.time()
            event = json.loads(body)
            data = event["data"]
            # Work that takes long belongs into a queue: the host waits 15 s for the answer.
            print(event["type"], data["conversation_id"], data["round_id"], flush=True)
        self.answer(204)

    def answer(self, status):
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver)
    print("listening at", server.server_port, flush=True)
    server.serve_forever()
