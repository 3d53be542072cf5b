"""The client: a host, its conversations, their rounds, and fan-outs."""

from __future__ import annotations

import dataclasses
import ssl
import uuid
from typing import Any, Callable, Dict, Generator, Iterator, List, Mapping, Optional, Sequence, Union

from . import _routes as routes
from ._errors import CallboardError, Conflict, ConnectionLost, Expired, NotFound, PromptFailed
from ._events import ClientToolCall, Event, PromptEnded, RoundFinished, order, read_event
from ._http import LOST, Patience, Transport, is_passing
from ._routes import Route
from ._types import Accepted, Answer, ClientTool, Content, FanOutShown, Listed, Placed, Standing, TaskShown, ToolResult, read

__all__ = ["Callboard", "Conversation", "Events", "FanOut", "Round"]

#: Events until the caller stops reading; `close()` ends the connection.
Events = Generator[Event, None, None]

#: How long a request for results of a fan-out waits at the host.
_WAIT_MS = 20_000


class Callboard:
    """A host of Callboard, as a tenant sees it.

    Methods raise `ApiError` when the host refuses, with its code, and `ConnectionLost` when it does not answer.
    Requests are repeated after a lost connection, 429 and 5xx, with pauses that grow and with `Retry-After`, until
    `retry_for` seconds after the first failure. No repetition does a thing twice: prompts have an idempotency key,
    and what has none (`fork`, `interrupt`, `approve`) is repeated only when the host refused it with 429, or was
    not reached.

    Threads may share it. `timeout` bounds the silence of a connection, in seconds; streams have a sign of
    life every 15.
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        retry_for: float = 60.0,
        timeout: float = 45.0,
        context: Optional[ssl.SSLContext] = None,
    ) -> None:
        self._transport = Transport(url, key, retry_for, timeout, context)

    def conversation(self, id: Optional[str] = None) -> Conversation:
        """Names a conversation, without a request. The first prompt creates it. Without an id it has a random one."""
        return Conversation(self._transport, uuid.uuid4().hex if id is None else id)

    def conversations(self, *, titles: bool = False, subagents: bool = False) -> Iterator[Listed]:
        """Lists the conversations in order of id, page by page."""
        return _pages(self._transport, routes.LIST, {}, {"titles": titles or None, "subagents": subagents or None})

    def fan_out(
        self,
        tasks: Sequence[str],
        *,
        name: Optional[str] = None,
        model: Optional[str] = None,
        parallel: Optional[int] = None,
        deadline_ms: Optional[int] = None,
        retry_failed: bool = False,
    ) -> FanOut:
        """Starts one subagent for each task. The same name and tasks attach to an earlier fan-out that has ended.

        Raises `Conflict` with `fan_out_running` or `fan_out_differs` for a name that is in use.
        """
        body = {"name": name or uuid.uuid4().hex, "tasks": list(tasks), "model": model, "parallel": parallel}
        body.update({"deadline_ms": deadline_ms, "retry_failed": retry_failed or None})
        fan_out = FanOut(self._transport, str(body["name"]), _given(body))
        fan_out._start()
        return fan_out

    def fan_out_named(self, name: str) -> FanOut:
        """Names a fan-out that was started before, without a request."""
        return FanOut(self._transport, name, None)

    def fan_outs(self) -> List[FanOutShown]:
        """Lists the fan-outs since the host's start, without results."""
        answer, _ = self._transport.call(routes.FAN_OUTS, {})
        return [read(FanOutShown, item) for item in answer["fan_outs"]]


class Conversation:
    """A conversation of the tenant."""

    def __init__(self, transport: Transport, id: str) -> None:
        self._transport = transport
        self.id = id

    def create(self, *, messages: Optional[Sequence[Mapping[str, Any]]] = None, pinned: Sequence[str] = ()) -> None:
        """Creates the conversation, or configures an existing one: `messages` replace its history, `pinned` are added."""
        body = {"messages": None if messages is None else list(messages), "pinned": list(pinned) or None}
        self._call(routes.CREATE, body=_given(body))

    def send(
        self,
        content: Content,
        *,
        key: Optional[str] = None,
        tools: Sequence[ClientTool] = (),
        tool_choice: Union[str, Mapping[str, str], None] = None,
        on_busy: Optional[str] = None,
        deadline_ms: Optional[int] = None,
        wait_ms: Optional[int] = None,
        max_tokens: Optional[int] = None,
        effort: Optional[str] = None,
        thinking: Union[str, int, None] = None,
        temperature: Optional[float] = None,
        stop: Optional[Sequence[str]] = None,
    ) -> Round:
        """Sends a prompt. Returns when the host has stored it; the round goes on without this program.

        `key` is the idempotency key, random by default. A program that may die and send again chooses its own:
        the same key and prompt return the same round for 24 hours.

        `on_busy` is `queue` (the default), `reject`, `interrupt` or `steer`.

        Raises `Conflict` (`conversation_busy` with `reject`), `Invalid`, `Unavailable`.
        """
        body: Dict[str, Any] = {"content": content if isinstance(content, str) else list(content), "on_busy": on_busy}
        body.update({"tools": [dataclasses.asdict(tool) for tool in tools] or None, "tool_choice": tool_choice})
        body.update({"deadline_ms": deadline_ms, "wait_ms": wait_ms, "max_tokens": max_tokens, "effort": effort})
        body.update({"thinking": thinking, "temperature": temperature, "stop": None if stop is None else list(stop)})
        key = uuid.uuid4().hex if key is None else key
        headers = {"Idempotency-Key": key, "Prefer": "respond-async"}
        accepted = read(Accepted, self._call(routes.SEND, headers=headers, body=_given(body)))
        return Round(self, accepted.round_id, key, _given(body))

    def round(self, id: str) -> Round:
        """Names a round, such as one that another program started."""
        return Round(self, id)

    def events(self, after: Optional[str] = None) -> Events:
        """Yields the events of the conversation until the caller stops: stored ones once each and in order.

        A lost connection is opened again after the last event. Without `after`, the events begin with the round that
        runs at the time of this call, or with what comes next; `"0.0.0"` stands before the first one. Events that
        the host no longer keeps are replaced by one `Snapshot`.

        Raises `NotFound`, `Unauthorized` (also when the key is removed meanwhile), `ConnectionLost`.
        """
        running = None
        if after is None:
            now = self.state()
            running = now.round_id
            # Behind whatever followed from the last entry. A running round is read from its start instead.
            after = None if running else f"{now.epoch}.{now.entries}.{2**32 - 1}"
        return self._events(after, None, running)

    def state(self) -> Standing:
        """Reads the state: whether a round runs, and what it waits for."""
        return read(Standing, self._call(routes.STATE))

    def history(self, *, whole: bool = False) -> Iterator[Placed]:
        """Reads the messages, oldest first, page by page; with `whole` also those that a compaction dropped."""
        return _pages(self._transport, routes.HISTORY, {"id": self.id}, {"whole": whole or None})

    def interrupt(self) -> None:
        """Ends the open round. Raises `NotFound` when none is open. Not repeated after a lost connection."""
        self._call(routes.INTERRUPT)

    def approve(
        self, tool_call_id: str, allow: bool = True, *, always: bool = False, reason: str | None = None, input: dict[str, Any] | None = None,
        round_id: str | None = None
    ) -> None:
        """Answers an `ApprovalRequired`. `always` also allows later calls like it; `input` are arguments in place of the model's; `reason`
        says to the model why not; with `round_id` of the event the answer counts for its call only, and not for one with the same id
        after a rewind or reset (`NotFound`). Not repeated after a lost connection."""
        body = _given({"allow": allow, "always": always or None, "input": input, "reason": reason, "round_id": round_id})
        self._call(routes.APPROVE, {"tool_call_id": tool_call_id}, body=body)

    def tool_results(self, results: Sequence[ToolResult]) -> None:
        """Sends results of `ClientToolCall`s, in any order. Raises `Conflict` (`already_answered`) for another result."""
        self._call(routes.TOOL_RESULTS, body={"results": [dataclasses.asdict(result) for result in results]})

    def inject(self, text: str, *, id: Optional[str] = None) -> None:
        """Sends a message that the model reads at its next call. A repeated id is accepted once."""
        self._call(routes.INJECT, body={"id": id or uuid.uuid4().hex, "text": text})

    def fork(self, id: Optional[str] = None, *, at: Optional[str] = None) -> Conversation:
        """Copies the conversation, up to the round `at`. Not repeated after a lost connection."""
        copy = Conversation(self._transport, uuid.uuid4().hex if id is None else id)
        self._call(routes.FORK, body=_given({"conversation_id": copy.id, "at": at}))
        return copy

    def delete(self) -> None:
        """Erases the conversation. Raises `NotFound` if there is none."""
        _erase(self._transport, routes.DELETE, {"id": self.id})

    def _call(
        self,
        route: Route,
        path: Optional[Mapping[str, str]] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        return self._transport.call(route, {"id": self.id, **(path or {})}, headers=headers, body=body)[0]

    def _events(self, last: Optional[str], round: Optional[str], running: Optional[str] = None) -> Events:
        """Yields events after `last`, of one round if it is named, else from the start of `running` on."""
        patience = Patience(self._transport.retry_for)
        while True:
            query = {"round": round or (running if last is None else None)}
            headers = {} if last is None else {"Last-Event-ID": last}
            lost: CallboardError = ConnectionLost("the event stream was cut")
            pause_ms = None
            try:
                connection = self._transport.connect()
                with self._transport.ask(connection, routes.EVENTS, {"id": self.id}, query, headers) as reply:
                    if reply.status == 204:
                        return
                    if reply.status != 200:
                        refusal = reply.refusal()
                        if not is_passing(routes.EVENTS, refusal):
                            raise refusal
                        lost, pause_ms = refusal, refusal.retry_after_ms
                    else:
                        patience.connected()
                        for place, data in reply.frames():
                            if last is not None and order(place) <= order(last):
                                continue
                            last = place
                            patience.progressed()
                            event = read_event(place, data)
                            yield event
                            if round is not None and isinstance(event, (RoundFinished, PromptEnded)):
                                return
            except LOST as error:
                lost.__cause__ = error
            patience.pause(lost, pause_ms)


class Round:
    """A prompt that the host has stored, and the round that it starts."""

    def __init__(self, conversation: Conversation, id: str, key: Optional[str] = None, prompt: Optional[Mapping[str, Any]] = None) -> None:
        self.conversation = conversation
        self.id = id
        #: The idempotency key of the prompt.
        self.key = key
        self._prompt = prompt

    def events(self, after: Optional[str] = None) -> Events:
        """Yields the events of the round from its start, or after an event, to its end.

        Lost connections are opened again, as in `Conversation.events`. Raises `Expired` if the events are gone.
        """
        return self.conversation._events(after, self.id)

    def outcome(self) -> Answer:
        """Waits for the end of the round. A round that failed is an answer whose `ok` is false.

        Raises `PromptFailed` if no round ran for the prompt: `deadline` after its `wait_ms`, `deleted`, `withdrawn`.
        """
        return self.run({})

    def run(self, tools: Mapping[str, Callable[[Any], str]]) -> Answer:
        """Waits like `outcome`, and runs the client's tools meanwhile: by name, a function from the input to a result.

        What a function raises is a result that the model reads. A call of another name waits for someone else.
        """
        try:
            for event in self.events():
                if isinstance(event, RoundFinished):
                    return event.answer
                if isinstance(event, PromptEnded):
                    raise PromptFailed(event.code, event.message, event.retry_after_ms)
                if isinstance(event, ClientToolCall) and event.name in tools:
                    self._answer(event, tools[event.name])
        except Expired:
            if self._prompt is None:
                raise
        # The events are gone, but the journal has the end: the same prompt and key are answered with it.
        headers = {"Idempotency-Key": self.key or ""}
        return read(Answer, self.conversation._call(routes.WHOLE, headers=headers, body=self._prompt))

    def _answer(self, call: ClientToolCall, tool: Callable[[Any], str]) -> None:
        try:
            result = ToolResult(call.tool_call_id, tool(call.input))
        except Exception as error:  # Whatever it is, the model shall read it.
            result = ToolResult(call.tool_call_id, f"{type(error).__name__}: {error}", True)
        try:
            self.conversation.tool_results([result])
        except Conflict as error:
            if error.code != "already_answered":  # The stream began with a call that has its result.
                raise


class FanOut:
    """Many tasks at once, a subagent each."""

    def __init__(self, transport: Transport, name: str, request: Optional[Mapping[str, Any]]) -> None:
        self._transport = transport
        self.name = name
        self._request = request

    def progress(self) -> FanOutShown:
        """Reads the counts."""
        return self._read({"limit": 1})

    def watch(self) -> Iterator[FanOutShown]:
        """Yields the counts now, and whenever tasks have ended, until all have.

        A host that was restarted does not know the fan-out: one that this object started is started again, which
        attaches to what has ended. Otherwise it raises `NotFound`.
        """
        shown = self.progress()
        yield shown
        while not shown.is_over:
            before = shown.ended
            shown = self._read({"limit": 1, "wait_ms": _WAIT_MS, "ended": before})
            if shown.ended != before or shown.is_over:
                yield shown

    def results(self) -> Iterator[TaskShown]:
        """Reads the results so far, in the order of the tasks, page by page."""
        after: Optional[int] = None
        while True:
            page = self._read({"after": after})
            yield from page.results or []
            if page.next is None:
                return
            after = page.next

    def wait(self) -> List[TaskShown]:
        """Waits until every task has ended. Returns all results."""
        for _ in self.watch():
            pass
        return list(self.results())

    def cancel(self) -> None:
        """Interrupts running tasks; waiting ones never begin."""
        self._transport.call(routes.CANCEL, {"name": self.name})

    def delete(self) -> None:
        """Erases the conversations of a fan-out that has ended."""
        _erase(self._transport, routes.ERASE, {"name": self.name})

    def _start(self, again: bool = False) -> None:
        try:
            self._transport.call(routes.FAN_OUT, {}, body=self._request)
        except Conflict as error:
            # An earlier attempt, or another reader, has started it.
            if not ((again or error.after_loss) and error.code == "fan_out_running"):
                raise

    def _read(self, query: Mapping[str, Any]) -> FanOutShown:
        try:
            return read(FanOutShown, self._transport.call(routes.RESULTS, {"name": self.name}, query)[0])
        except NotFound:
            if self._request is None:
                raise
        self._start(again=True)
        return read(FanOutShown, self._transport.call(routes.RESULTS, {"name": self.name}, query)[0])


def _given(body: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in body.items() if value is not None}


def _erase(transport: Transport, route: Route, path: Mapping[str, str]) -> None:
    try:
        transport.call(route, path)
    except NotFound as error:
        if not error.after_loss:  # Otherwise an earlier attempt erased it.
            raise


def _pages(transport: Transport, route: Route, path: Mapping[str, str], query: Mapping[str, Any]) -> Iterator[Any]:
    assert route.items is not None and route.answer is not None
    after = None
    while True:
        page, _ = transport.call(route, path, {**query, "after": after, "limit": 200})
        for item in page[route.items]:
            yield read(route.answer, item)
        after = page.get("next")
        if after is None:
            return
