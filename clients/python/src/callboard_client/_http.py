"""One request to the host, and when it is repeated. Each request has a connection that ends with it."""

from __future__ import annotations

import http.client
import json
import random
import re
import ssl
import time
from types import TracebackType
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple, Type, Union
from urllib.parse import quote, urlencode, urlsplit

from ._errors import ApiError, CallboardError, ConnectionLost, ProtocolError, kind_of
from ._routes import Route

#: What a connection that was cut or went silent raises.
LOST = (OSError, http.client.HTTPException)

#: Bytes of one event.
FRAME_MAX = 64 * 1024 * 1024

#: Refusals with a 5xx that a repetition would meet again.
_FINAL = {"deadline", "provider_auth", "unsupported", "store_damaged", "store_newer_schema"}

_DELAY_S, _DELAY_MAX_S = 0.25, 10.0


class Patience:
    """Pauses between attempts: random, up to a bound that doubles. Ends `retry_for` after the first failure."""

    def __init__(self, retry_for: float) -> None:
        self._retry_for = retry_for
        self._failures = 0
        self._since: Optional[float] = None

    def pause(self, error: CallboardError, retry_after_ms: Optional[int] = None) -> None:
        """Sleeps before the next attempt, at least for `retry_after_ms`. Raises `error` if the time is over."""
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        delay = random.random() * min(_DELAY_MAX_S, _DELAY_S * 2 ** min(self._failures, 8))
        delay += (retry_after_ms or 0) / 1000
        self._failures += 1
        if now + delay > self._since + self._retry_for:
            raise error
        time.sleep(delay)

    def connected(self) -> None:
        """Starts the time again, because the host answered."""
        self._since = None

    def progressed(self) -> None:
        """Starts with short pauses again, because something new arrived."""
        self._failures = 0


class Reply:
    """An answer whose body is still to be read."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status

    def __enter__(self) -> Reply:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self._response.close()
        self._connection.close()

    def json(self) -> Any:
        """Reads the whole body; `None` if it is empty."""
        body = self._response.read()
        return _parsed(body) if body else None

    def frames(self) -> Iterator[Tuple[str, Mapping[str, Any]]]:
        """Reads server-sent events: id and data of each. A frame that was cut is none."""
        if self._response.headers.get_content_type() != "text/event-stream":
            raise ProtocolError("an answer of the host is not a stream of events")
        place, data = "", ""
        for line in iter(lambda: self._response.readline(FRAME_MAX), b""):
            if len(line) + len(data) >= FRAME_MAX:
                raise ProtocolError("an event of the host has more than 64 MiB")
            if not line.endswith(b"\n"):
                return
            name, _, value = line.decode(errors="replace").rstrip("\r\n").partition(":")
            value = value[1:] if value.startswith(" ") else value
            if name == "id":
                place = value
            elif name == "data":
                data += value
            elif not name and not value and data:
                yield place, _parsed(data)
                data = ""

    def refusal(self) -> ApiError:
        """Reads the problem of an answer that is none of 2xx. Proxies answer in another form: the code is `http_502` then.

        A redirect counts as one: the key is for this host alone.
        """
        try:
            problem = json.loads(self._response.read())
        except (ValueError, RecursionError, *LOST):
            problem = None
        problem = problem if isinstance(problem, dict) else {}
        header = self._response.headers.get("Retry-After", "")
        asked = int(header) * 1000 if re.fullmatch("[0-9]{1,9}", header) else None
        wait = problem.get("retry_after_ms", asked)
        return kind_of(self.status)(
            self.status,
            problem.get("code", f"http_{self.status}"),
            problem.get("detail", self._response.reason),
            problem.get("pointer"),
            wait if type(wait) is int and wait >= 0 else asked,
            self._response.headers.get("X-Request-Id"),
        )


def _parsed(text: Union[str, bytes]) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise ProtocolError("an answer of the host is not JSON") from None


class Transport:
    """Calls routes at one base URL with one key."""

    def __init__(self, url: str, key: str, retry_for: float, timeout: float, context: Optional[ssl.SSLContext]) -> None:
        self._base = urlsplit(url)
        if self._base.scheme not in ("http", "https") or not self._base.hostname:
            raise ValueError("the URL of a host begins with http:// or https:// and names a host")
        self._headers = {"Authorization": f"Bearer {key}", "Connection": "close", "User-Agent": "callboard-client-python"}
        self._timeout = timeout
        self._context = context
        self.retry_for = retry_for

    def call(
        self,
        route: Route,
        path: Mapping[str, str],
        query: Optional[Mapping[str, Any]] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Optional[Mapping[str, Any]] = None,
    ) -> Tuple[Any, bool]:
        """Calls a route until it is answered. Returns the answer, and whether an earlier attempt may have arrived."""
        patience = Patience(self.retry_for)
        was_lost = False
        while True:
            connection = self._connect(patience)
            try:
                with self.ask(connection, route, path, query, headers, body) as reply:
                    if reply.status < 300:
                        return reply.json(), was_lost
                    refusal = reply.refusal()
            except LOST as error:
                was_lost = True
                lost = ConnectionLost(f"the connection was lost before the answer to {route.method} {route.path}: {error}")
                if not route.repeat:
                    raise lost from error
                patience.pause(lost)
                continue
            refusal.after_loss = was_lost
            if not is_passing(route, refusal):
                raise refusal
            patience.pause(refusal, refusal.retry_after_ms)

    def _connect(self, patience: Patience) -> http.client.HTTPConnection:
        while True:
            try:
                return self.connect()
            except ssl.SSLCertVerificationError as error:
                raise ConnectionLost(f"the host's certificate is not trusted: {error.verify_message}") from error
            except OSError as error:
                patience.pause(ConnectionLost(f"the host cannot be reached: {error}"))

    def connect(self) -> http.client.HTTPConnection:
        """Opens a connection. Nothing was sent when it fails."""
        host, port = self._base.hostname or "", self._base.port
        if self._base.scheme == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, timeout=self._timeout, context=self._context)
        else:
            connection = http.client.HTTPConnection(host, port, timeout=self._timeout)
        connection.connect()
        return connection

    def ask(
        self,
        connection: http.client.HTTPConnection,
        route: Route,
        path: Mapping[str, str],
        query: Optional[Mapping[str, Any]] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Optional[Mapping[str, Any]] = None,
    ) -> Reply:
        """Sends one request, once."""
        if not {"", ".", ".."}.isdisjoint(path.values()):
            connection.close()
            raise ValueError("an id or a name is none of '', '.' and '..'")  # Proxies take these for another path.
        target = self._base.path.rstrip("/") + route.path.format(**{name: quote(value, safe="") for name, value in path.items()})
        sent = {name: str(value).lower() if isinstance(value, bool) else value for name, value in (query or {}).items() if value is not None}
        if sent:
            target += "?" + urlencode(sent)
        for given, names in ((sent, route.query), (headers or {}, route.headers), (body or {}, route.body)):
            assert set(given) <= set(names), (route.path, set(given) - set(names))
        fields: Dict[str, str] = {**self._headers, **(headers or {})}
        content: Optional[bytes] = None
        if body is not None:
            content = json.dumps(body).encode()
            fields["Content-Type"] = "application/json"
        try:
            connection.request(route.method, target, content, fields)
            response = connection.getresponse()
            if response.length is None and not response.chunked:  # Headers that were cut are not refused by `http.client`.
                raise http.client.IncompleteRead(b"")
            return Reply(connection, response)
        except BaseException:
            connection.close()
            raise


def is_passing(route: Route, refusal: ApiError) -> bool:
    """Whether a refused request may be repeated and may then succeed."""
    if refusal.status == 429:
        return True
    return route.repeat and refusal.status >= 500 and refusal.code not in _FINAL
