"""What the API takes and answers with. Fields have the names of the wire; unknown ones are ignored."""

from __future__ import annotations

import base64
import dataclasses
import functools
import typing
from dataclasses import dataclass
from typing import Any, List, Mapping, Optional, Sequence, Type, TypeVar, Union

from ._errors import ProtocolError

__all__ = ["Answer", "Block", "ClientTool", "Content", "FanOutShown", "Failure", "Listed", "Placed", "Standing", "TaskShown", "ToolResult", "Usage"]
__all__ += ["document", "image", "text"]

T = TypeVar("T")

#: A block of a message in the form of Anthropic's Messages API; `text`, `image` and `document` make some.
Block = Mapping[str, Any]
#: A prompt: a text, or blocks.
Content = Union[str, Sequence[Block]]


def text(text: str) -> Block:
    """Returns a block of text."""
    return {"type": "text", "text": text}


def image(data: bytes, media_type: str) -> Block:
    """Returns an image, such as `image(path.read_bytes(), "image/png")`."""
    return _attached("image", data, media_type)


def document(data: bytes, media_type: str = "application/pdf") -> Block:
    """Returns a document, such as a PDF."""
    return _attached("document", data, media_type)


def _attached(kind: str, data: bytes, media_type: str) -> Block:
    source = {"type": "base64", "media_type": media_type, "data": base64.b64encode(data).decode()}
    return {"type": kind, "source": source}


@dataclass(frozen=True)
class ClientTool:
    """A tool that this program runs: the model is offered it in the round of one prompt."""

    name: str
    #: JSON Schema of the arguments, an object.
    input_schema: Mapping[str, Any]
    description: str = ""


@dataclass(frozen=True)
class ToolResult:
    """The result of a call of a `ClientTool`."""

    tool_call_id: str
    content: str
    is_error: bool = False


@dataclass(frozen=True)
class Usage:
    """Tokens of model calls."""

    input_uncached: int
    cache_read: int
    cache_write: int
    output: int


@dataclass(frozen=True)
class Failure:
    """Why a round or a task failed."""

    code: str
    message: str
    retry_after_ms: Optional[int] = None


@dataclass(frozen=True)
class Answer:
    """The end of a round. A round that failed is an answer too: look at `ok`."""

    conversation_id: str
    round_id: str
    #: `completed` or `error`.
    status: str
    #: `end_turn`, `max_tokens`, `refusal`, `budget`, `interrupted`, `error` …
    stop_reason: str
    #: The last message of the model.
    text: str
    #: All messages of the model in this round.
    full_text: str
    usage: Usage
    latency_ms: int
    error: Optional[Failure] = None

    @property
    def ok(self) -> bool:
        """Whether the round was completed; one that was interrupted is."""
        return self.status == "completed"


@dataclass(frozen=True)
class Accepted:
    """The host's receipt of a prompt."""

    conversation_id: str
    round_id: str


@dataclass(frozen=True)
class Standing:
    """The state of a conversation."""

    conversation_id: str
    #: `asleep`, `idle`, `running`, `parked` or `failed`.
    state: str
    #: What it waits for: `kind`, and what belongs to that kind.
    waits_for: Mapping[str, Any]
    since_ms: int
    prompts_waiting: int
    context: Mapping[str, Any]
    spent: Mapping[str, Any]
    budget_left: Mapping[str, Any]
    messages: int
    rounds: int
    entries: int
    epoch: int
    #: The open round.
    round_id: Optional[str] = None
    failure: Optional[str] = None


@dataclass(frozen=True)
class Listed:
    """A conversation in a list. Times are in milliseconds since 1970."""

    conversation_id: str
    #: `none`, `running` or `parked`.
    open: str
    created_at: int
    updated_at: int
    entries: int
    epoch: int
    title: Optional[str] = None
    failed: Optional[str] = None


@dataclass(frozen=True)
class Placed:
    """A message of a history, in the form of Anthropic's Messages API."""

    index: int
    message: Mapping[str, Any]


@dataclass(frozen=True)
class TaskShown:
    """The end of a task of a fan-out."""

    index: int
    conversation_id: str
    ok: bool
    text: str
    usage: Mapping[str, Any]
    attached: bool
    #: Whether `text` was left out; the conversation's history has it.
    text_omitted: bool = False
    error: Optional[Failure] = None


@dataclass(frozen=True)
class FanOutShown:
    """The counts of a fan-out, and a page of results."""

    name: str
    tasks: int
    ended: int
    done: int
    failed: int
    is_over: bool
    results: Optional[List[TaskShown]] = None
    next: Optional[int] = None


def read(kind: Type[T], data: Any) -> T:
    """Reads a dataclass from JSON.

    # Errors
    `ProtocolError` if a field without a default is absent.
    """
    hints = _hints(kind)  # type: ignore[arg-type]  # A class can be hashed.
    if isinstance(data, Mapping):
        known = {name: _value(hint, data[name]) for name, hint in hints.items() if name in data}
        try:
            return kind(**known)
        except TypeError as error:
            raise ProtocolError(f"an answer is not a {kind.__name__}: {error}") from None
    raise ProtocolError(f"an answer is not a {kind.__name__}, and not an object")


@functools.lru_cache(maxsize=None)
def _hints(kind: Type[Any]) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _value(hint: Any, value: Any) -> Any:
    """Converts a value of JSON to the type of a field: dataclasses, also in lists and optional ones."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return read(hint, value)
    inner = typing.get_args(hint)
    if isinstance(value, list) and typing.get_origin(hint) is list:
        return [_value(inner[0], item) for item in value]
    if value is not None and typing.get_origin(hint) is Union:
        return _value(next(one for one in inner if one is not type(None)), value)
    return value
