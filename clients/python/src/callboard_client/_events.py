"""The events of a stream, one class for each type, and `Event`, the union of them.

A delta is not stored: the next `Message` replaces those since the last stored event.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple, Type, Union

from ._types import Answer, Failure, Usage, read

__all__ = [
    "Event", "RoundStarted", "TextDelta", "ThinkingDelta", "ToolCall", "ToolProgress", "ToolResulted",
    "ApprovalRequired", "ClientToolCall", "Retry", "UsageReported", "ContextMeasured", "Compaction", "SkillActivated",
    "Subagent", "Queued", "Message", "TurnRestarted", "Snapshot", "RoundFinished", "PromptEnded", "Unknown",
]


@dataclass(frozen=True)
class _Event:
    #: `epoch.seq.n`: where to continue (`Conversation.events(after=event.id)`).
    id: str
    conversation_id: str
    #: The round, unless the event stands between rounds.
    round_id: Optional[str]


@dataclass(frozen=True)
class RoundStarted(_Event):
    """A round began."""


@dataclass(frozen=True)
class TextDelta(_Event):
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class ThinkingDelta(_Event):
    """A piece of the model's thoughts."""

    text: str


@dataclass(frozen=True)
class ToolCall(_Event):
    """The model called a tool."""

    tool_call_id: str
    name: str
    summary: str
    input: Any


@dataclass(frozen=True)
class ToolProgress(_Event):
    """A running tool wrote something."""

    tool_call_id: str
    text: str


@dataclass(frozen=True)
class ToolResulted(_Event):
    """A tool ended. `summary` is the first line of the result, `preview` up to four more."""

    tool_call_id: str
    name: str
    is_error: bool
    summary: str
    duration_ms: int
    retry_count: int
    preview: str = ""
    artifact_id: Optional[str] = None


@dataclass(frozen=True)
class ApprovalRequired(_Event):
    """A tool call waits for `Conversation.approve`. `expires_at` is in milliseconds since 1970."""

    tool_call_id: str
    name: str
    input: Any
    reason: str
    expires_at: int


@dataclass(frozen=True)
class ClientToolCall(_Event):
    """A call of a `ClientTool` waits for `Conversation.tool_results`."""

    tool_call_id: str
    name: str
    input: Any
    expires_at: int


@dataclass(frozen=True)
class Retry(_Event):
    """The host repeats a model call or a tool call after `delay_ms`."""

    layer: str
    attempt: int
    delay_ms: int
    reason: str


@dataclass(frozen=True)
class UsageReported(_Event):
    """Tokens of a model call."""

    input_uncached: int
    cache_read: int
    cache_write: int
    output: int
    cost_usd: Optional[float] = None


@dataclass(frozen=True)
class ContextMeasured(_Event):
    """How full the model's window is."""

    tokens: int
    window: int
    fraction: float


@dataclass(frozen=True)
class Compaction(_Event):
    """The context was compacted."""

    mode: str
    before_tokens: int
    after_tokens: int


@dataclass(frozen=True)
class SkillActivated(_Event):
    """A skill was activated."""

    name: str
    level: int


@dataclass(frozen=True)
class Subagent(_Event):
    """The state of a subagent: `started`, `running`, `finished` or `failed`."""

    #: The id of its conversation; on the wire it is called `id`, like the place in the stream.
    subagent: str
    state: str
    #: Model calls and tokens so far, while it is `running`.
    steps: Optional[int] = None
    tokens: Optional[int] = None


@dataclass(frozen=True)
class Queued(_Event):
    """The prompt waits in the queue, at this position."""

    position: int


@dataclass(frozen=True)
class Message(_Event):
    """A whole message, which replaces the deltas since the last stored event."""

    message: Mapping[str, Any]
    partial: bool


@dataclass(frozen=True)
class TurnRestarted(_Event):
    """Another start of the host took the round up: deltas since the last `Message` do not count."""

    epoch: int


@dataclass(frozen=True)
class Snapshot(_Event):
    """The state, in place of events that are no longer kept; the stream continues from it."""

    open: str
    rounds: int
    messages: List[Mapping[str, Any]]
    messages_before: int


@dataclass(frozen=True)
class RoundFinished(_Event):
    """The end of a round: the fields of an `Answer`."""

    status: str
    stop_reason: str
    text: str
    full_text: str
    usage: Usage
    latency_ms: int
    error: Optional[Failure] = None

    @property
    def answer(self) -> Answer:
        """The round's result, as `Round.outcome` returns it."""
        return Answer(
            self.conversation_id,
            self.round_id or "",
            self.status,
            self.stop_reason,
            self.text,
            self.full_text,
            self.usage,
            self.latency_ms,
            self.error,
        )


@dataclass(frozen=True)
class PromptEnded(_Event):
    """The type `error`: the prompt ended without a round."""

    code: str
    message: str
    retry_after_ms: Optional[int] = None


@dataclass(frozen=True)
class Unknown(_Event):
    """An event of a newer host, to ignore."""

    type: str
    data: Mapping[str, Any]


Event = Union[
    RoundStarted, TextDelta, ThinkingDelta, ToolCall, ToolProgress, ToolResulted, ApprovalRequired, ClientToolCall,
    Retry, UsageReported, ContextMeasured, Compaction, SkillActivated, Subagent, Queued, Message, TurnRestarted,
    Snapshot, RoundFinished, PromptEnded, Unknown,
]

#: The class of each type on the wire.
EVENT_TYPES: Dict[str, Type[Any]] = {
    "round_started": RoundStarted,
    "text_delta": TextDelta,
    "thinking_delta": ThinkingDelta,
    "tool_call": ToolCall,
    "tool_progress": ToolProgress,
    "tool_result": ToolResulted,
    "approval_required": ApprovalRequired,
    "client_tool_call": ClientToolCall,
    "retry": Retry,
    "usage": UsageReported,
    "context": ContextMeasured,
    "compaction": Compaction,
    "skill_activated": SkillActivated,
    "subagent": Subagent,
    "queued": Queued,
    "message": Message,
    "turn_restarted": TurnRestarted,
    "snapshot": Snapshot,
    "round_finished": RoundFinished,
    "error": PromptEnded,
}


def read_event(place: str, data: Mapping[str, Any]) -> Event:
    """Reads an event. `place` is the id of its frame."""
    kind = str(data.get("type"))
    fields = {"round_id": None, **data, "id": place}
    if kind == "subagent":
        fields["subagent"] = data.get("id")
    if kind not in EVENT_TYPES:
        fields["data"] = data
    return typing.cast(Event, read(EVENT_TYPES.get(kind, Unknown), fields))


def order(place: str) -> Tuple[int, ...]:
    """Returns an event id in the form that compares as ids do."""
    return tuple(int(part) for part in place.split("."))
