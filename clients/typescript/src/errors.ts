// Errors of the client. Each has one base class, `CallboardError`.

/** The base of every error that this package throws. An aborted signal throws its own reason. */
export class CallboardError extends Error {
  override get name(): string {
    return this.constructor.name;
  }
}

/**
 * The host could not be reached, or did not answer, for `retryFor` milliseconds. A call that is not repeated
 * (`fork`, `interrupt`, `approve`) throws it at the first loss; the host may have done it.
 */
export class ConnectionLost extends CallboardError {}

/** The answer is not one of Callboard's: the URL may be that of another server. */
export class ProtocolError extends CallboardError {}

/** The stream of a prompt ended with `error`: no round ran for it. `code` is `deadline`, `deleted`, `withdrawn` … */
export class PromptFailed extends CallboardError {
  constructor(readonly code: string, message: string, readonly retryAfterMs?: number) {
    super(`${code}: ${message}`);
  }
}

/** What an `ApiError` is made of. */
export interface Refused {
  status: number;
  code: string;
  detail: string;
  pointer?: string;
  retry_after_ms?: number;
}

/**
 * The host refused a request. `code` never changes its meaning; docs/errors.md explains each. Subclasses name the
 * kinds that programs handle: `Unauthorized`, `NotFound`, `Conflict`, `Expired`, `Invalid`, `Unavailable`.
 */
export class ApiError extends CallboardError {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  /** The wrong field of the body, as a JSON pointer. */
  readonly pointer: string | undefined;
  /** When a retry may succeed, in milliseconds after the answer. */
  readonly retryAfterMs: number | undefined;

  constructor(
    refused: Refused,
    /** Names the request in the host's log. */
    readonly requestId: string | null,
    /** Whether an earlier attempt was lost, and may have been carried out. */
    readonly afterLoss: boolean,
  ) {
    super(`${refused.code} (${refused.status}): ${refused.detail}${refused.pointer ? ` at ${refused.pointer}` : ""}`);
    this.status = refused.status;
    this.code = refused.code;
    this.detail = refused.detail;
    this.pointer = refused.pointer;
    this.retryAfterMs = Number.isFinite(refused.retry_after_ms) && refused.retry_after_ms! >= 0 ? refused.retry_after_ms : undefined;
  }
}

/** 401 or 403: the key is missing, wrong, or not that of a tenant. */
export class Unauthorized extends ApiError {}
/** 404: there is no such thing, or it is another tenant's. */
export class NotFound extends ApiError {}
/** 409: the state does not allow it, such as `conversation_busy` or `round_open`. */
export class Conflict extends ApiError {}
/** 410: the round's events are no longer kept. The history has its messages. */
export class Expired extends ApiError {}
/** 400, 413 or 422: the request is wrong; `pointer` names the field. */
export class Invalid extends ApiError {}
/** 429, or a 5xx: it was retried for `retryFor` milliseconds, or a retry would not help. */
export class Unavailable extends ApiError {}

const KINDS: Record<number, typeof ApiError> = {
  400: Invalid, 401: Unauthorized, 403: Unauthorized, 404: NotFound, 409: Conflict, 410: Expired, 413: Invalid, 422: Invalid, 429: Unavailable,
};

/** Returns the class for an HTTP status. */
export function kindOf(status: number): typeof ApiError {
  return KINDS[status] ?? (status >= 500 ? Unavailable : ApiError);
}
