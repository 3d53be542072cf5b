"""Errors of the client. Each has one base class, `CallboardError`."""

from __future__ import annotations

from typing import Dict, Optional, Type

__all__ = ["ApiError", "CallboardError", "Conflict", "ConnectionLost", "Expired", "Invalid", "NotFound", "PromptFailed", "ProtocolError"]
__all__ += ["Unauthorized", "Unavailable"]


class CallboardError(Exception):
    """The base of every error that this package raises."""


class ConnectionLost(CallboardError):
    """The host could not be reached, or did not answer, for `retry_for` seconds.

    A call that is not repeated (`fork`, `interrupt`, `approve`) raises it at the first loss; the host
    may have done it.
    """


class ProtocolError(CallboardError):
    """The answer is not one of Callboard's: the URL may be that of another server."""


class PromptFailed(CallboardError):
    """The stream of a prompt ended with `error`: no round ran for it, or the round was lost.

    `code` is one of Callboard's, such as `deadline`, `deleted` or `withdrawn`.
    """

    def __init__(self, code: str, message: str, retry_after_ms: Optional[int] = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.retry_after_ms = retry_after_ms


class ApiError(CallboardError):
    """The host refused a request. `code` never changes its meaning; docs/errors.md explains each.

    Subclasses name the kinds that programs handle: `Unauthorized`, `NotFound`, `Conflict`, `Expired`,
    `Invalid`, `Unavailable`.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        pointer: Optional[str] = None,
        retry_after_ms: Optional[int] = None,
        request_id: Optional[str] = None,
    ) -> None:
        super().__init__(f"{code} ({status}): {detail}" + (f" at {pointer}" if pointer else ""))
        self.status = status
        self.code = code
        self.detail = detail
        #: The wrong field of the body, as a JSON pointer.
        self.pointer = pointer
        #: When a retry may succeed, in milliseconds after the answer.
        self.retry_after_ms = retry_after_ms
        #: Names the request in the host's log.
        self.request_id = request_id
        #: Whether an earlier attempt was lost, and may have been carried out.
        self.after_loss = False


class Unauthorized(ApiError):
    """401 or 403: the key is missing, wrong, or not that of a tenant."""


class NotFound(ApiError):
    """404: there is no such thing, or it is another tenant's."""


class Conflict(ApiError):
    """409: the state does not allow it, such as `conversation_busy` or `round_open`."""


class Expired(ApiError):
    """410: the round's events are no longer kept. The history has its messages."""


class Invalid(ApiError):
    """400, 413 or 422: the request is wrong; `pointer` names the field."""


class Unavailable(ApiError):
    """429, or a 5xx: it was retried for `retry_for` seconds, or a retry would not help."""


def kind_of(status: int) -> Type[ApiError]:
    """Returns the class for an HTTP status."""
    if status == 429 or status >= 500:
        return Unavailable
    kinds: Dict[int, Type[ApiError]] = {
        401: Unauthorized,
        403: Unauthorized,
        404: NotFound,
        409: Conflict,
        410: Expired,
        400: Invalid,
        413: Invalid,
        422: Invalid,
    }
    return kinds.get(status, ApiError)
