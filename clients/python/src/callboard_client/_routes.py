"""The routes that this client calls, with all that it sends. A test compares each with the host's OpenAPI document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Tuple, Type

from . import _types as types


@dataclass(frozen=True)
class Route:
    """A method and a path, with the names that a request may have."""

    method: str
    path: str
    #: Whether doing it twice is the same as once: then it is repeated after a loss or a 5xx, otherwise
    #: only after 429.
    repeat: bool = True
    query: Tuple[str, ...] = ()
    headers: Tuple[str, ...] = ()
    #: Fields of the body.
    body: Tuple[str, ...] = ()
    #: What the answer is read as.
    answer: Optional[Type[Any]] = None
    #: The field of the answer that holds a list of `answer`.
    items: Optional[str] = None


_ID = "/v1/conversations/{id}"
_SAID = ("content", "on_busy", "deadline_ms", "wait_ms", "max_tokens", "effort", "thinking", "temperature", "stop", "tools", "tool_choice")
_KEYED = ("Idempotency-Key", "Prefer")

LIST = Route("GET", "/v1/conversations", query=("after", "limit", "titles", "subagents"), answer=types.Listed, items="conversations")
CREATE = Route("PUT", _ID, body=("messages", "pinned"))
STATE = Route("GET", _ID, answer=types.Standing)
DELETE = Route("DELETE", _ID)
HISTORY = Route("GET", _ID + "/messages", query=("after", "limit", "whole"), answer=types.Placed, items="messages")
SEND = Route("POST", _ID + "/messages", headers=_KEYED, body=_SAID, answer=types.Accepted)
WHOLE = Route("POST", _ID + "/messages", headers=_KEYED, body=_SAID, answer=types.Answer)
EVENTS = Route("GET", _ID + "/events", query=("round",), headers=("Last-Event-ID",))
INTERRUPT = Route("POST", _ID + "/interrupt", repeat=False)
APPROVE = Route("POST", _ID + "/approvals/{tool_call_id}", repeat=False, body=("allow", "always", "input", "reason"))
TOOL_RESULTS = Route("POST", _ID + "/tool_results", body=("results",))
INJECT = Route("POST", _ID + "/inject", body=("id", "text"))
FORK = Route("POST", _ID + "/fork", repeat=False, body=("conversation_id", "at"))
FAN_OUT = Route("POST", "/v1/fanouts", body=("name", "tasks", "model", "parallel", "deadline_ms", "retry_failed"))
FAN_OUTS = Route("GET", "/v1/fanouts", answer=types.FanOutShown, items="fan_outs")
RESULTS = Route("GET", "/v1/fanouts/{name}", query=("after", "limit", "wait_ms", "ended"), answer=types.FanOutShown)
CANCEL = Route("POST", "/v1/fanouts/{name}/cancel")
ERASE = Route("DELETE", "/v1/fanouts/{name}")

ROUTES = [value for value in list(globals().values()) if isinstance(value, Route)]
