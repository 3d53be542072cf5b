// One request to the host, and when it is repeated.

import { ApiError, CallboardError, ConnectionLost, kindOf, ProtocolError, type Refused } from "./errors.js";
import type { Route } from "./routes.js";

/** Settings of a client. */
export interface Options {
  /** How long a call is repeated after its first failure, in milliseconds; 60,000 by default. */
  retryFor?: number;
  /** The longest silence of a connection, in milliseconds; 45,000 by default. Streams have a sign of life every 15 s. */
  timeout?: number;
  /** Another `fetch`. */
  fetch?: typeof fetch;
}

/** What a request has beside its route. */
export interface Request {
  path?: Record<string, string>;
  query?: Record<string, string | number | boolean | undefined>;
  headers?: Record<string, string>;
  body?: object;
  signal?: AbortSignal | undefined;
}

/** Characters of one event. */
const FRAME_MAX = 64 * 1024 * 1024;

/** Refusals with a 5xx that a repetition would meet again. */
const FINAL = ["deadline", "provider_auth", "unsupported", "store_damaged", "store_newer_schema"];

const DELAY_MS = 250;
const DELAY_MAX_MS = 10_000;

/** Pauses between attempts: random, up to a bound that doubles. Ends `retryFor` after the first failure. */
export class Patience {
  #failures = 0;
  #since: number | undefined;

  constructor(readonly retryFor: number) {}

  /** Waits before the next attempt, at least for `retryAfterMs`. Throws `error` if the time is over. */
  async pause(error: CallboardError, signal: AbortSignal | undefined): Promise<void> {
    const now = Date.now();
    this.#since ??= now;
    let delay = Math.random() * Math.min(DELAY_MAX_MS, DELAY_MS * 2 ** this.#failures);
    if (error instanceof ApiError) delay += error.retryAfterMs ?? 0;
    this.#failures += 1;
    if (now + delay > this.#since + this.retryFor) throw error;
    await new Promise<void>((resolve, reject) => {
      const stop = () => (clearTimeout(timer), reject(signal?.reason));
      const timer = setTimeout(() => (signal?.removeEventListener("abort", stop), resolve()), delay);
      if (signal?.aborted) stop();
      signal?.addEventListener("abort", stop, { once: true });
    });
  }

  /** Starts the time again, because the host answered. */
  connected(): void {
    this.#since = undefined;
  }

  /** Starts with short pauses again, because something new arrived. */
  progressed(): void {
    this.#failures = 0;
  }
}

/** A frame of an event stream. */
export interface Frame {
  id: string;
  data: any;
}

/** Calls routes at one base URL with one key. */
export class Transport {
  readonly retryFor: number;
  readonly #base: string;
  readonly #headers: Record<string, string>;
  readonly #timeout: number;
  readonly #fetch: typeof fetch;

  constructor(url: string, key: string, options: Options) {
    this.#base = new URL(url).href.replace(/\/+$/, "");
    this.#headers = { authorization: `Bearer ${key}` };
    this.#timeout = options.timeout ?? 45_000;
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.retryFor = options.retryFor ?? 60_000;
  }

  /** Calls a route until it is answered; `afterLoss` says whether an earlier attempt may have arrived. */
  async call<T>(route: Route, request: Request): Promise<{ answer: T; afterLoss: boolean }> {
    checkNames(request);
    const patience = new Patience(this.retryFor);
    let afterLoss = false;
    for (;;) {
      let failure: CallboardError;
      const silence = new Silence(this.#timeout, request.signal);
      try {
        const text = await silence.guard(async () => (await this.#once(route, request, silence.signal, afterLoss)).text());
        return { answer: parsed(text) as T, afterLoss };
      } catch (error) {
        failure = failed(error, route, request.signal);
      } finally {
        silence.end();
      }
      const isLost = failure instanceof ConnectionLost;
      afterLoss ||= isLost;
      if (isLost ? route.repeat === false : !isPassing(route, failure)) throw failure;
      await patience.pause(failure, request.signal);
    }
  }

  /** Opens a stream once. Returns `over` if nothing can follow, else `cut`. Throws also what `call` would repeat. */
  async *frames(route: Route, request: Request, opened: () => void): AsyncGenerator<Frame, "over" | "cut"> {
    checkNames(request);
    const silence = new Silence(this.#timeout, request.signal);
    let reader: ReadableStreamDefaultReader<Uint8Array> | undefined;
    try {
      const response = await silence.guard(() => this.#once(route, request, silence.signal, false));
      if (response.status === 204) return "over";
      const isStream = response.headers.get("content-type")?.startsWith("text/event-stream");
      if (!isStream || !response.body) throw new ProtocolError("an answer of the host is not a stream of events");
      opened();
      reader = response.body.getReader();
      const decoder = new TextDecoder();
      let [rest, id, data] = ["", "", ""];
      for (;;) {
        const { done, value } = await silence.guard(() => reader!.read());
        if (done) return "cut";
        const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
        rest = lines.pop()!; // A line, and a frame, that was cut is none.
        if (rest.length + data.length > FRAME_MAX) throw new ProtocolError("an event of the host has more than 64 MiB");
        for (const line of lines.map((line) => line.replace(/\r$/, ""))) {
          if (line.startsWith("id: ")) id = line.slice(4);
          if (line.startsWith("data: ")) data += line.slice(6);
          if (line === "" && data) {
            yield { id, data: parsed(data) };
            data = "";
          }
        }
      }
    } catch (error) {
      throw failed(error, route, request.signal);
    } finally {
      silence.end();
      reader?.cancel().catch(() => {});
    }
  }

  /** Sends one request, once. Throws an `ApiError` for a refusal. */
  async #once(route: Route, request: Request, signal: AbortSignal, afterLoss: boolean): Promise<Response> {
    const path = route.path.replace(/{(\w+)}/g, (_, name: string) => encodeURIComponent(request.path?.[name] ?? ""));
    const query = Object.entries(request.query ?? {}).filter(([, value]) => value !== undefined);
    const search = query.length ? `?${new URLSearchParams(query.map(([name, value]) => [name, String(value)]))}` : "";
    const init: RequestInit = { method: route.method, headers: { ...this.#headers, ...request.headers }, signal, cache: "no-store", redirect: "manual" };
    if (request.body) {
      init.body = JSON.stringify(request.body);
      init.headers = { ...init.headers, "content-type": "application/json" };
    }
    const response = await this.#fetch(this.#base + path + search, init); // A redirect is no answer: the key is for this host alone.
    if (response.ok) return response;
    const problem = await response.json().catch(() => ({}));
    const seconds = Number(response.headers.get("retry-after") ?? NaN);
    const refused: Refused = {
      code: `http_${response.status}`, // A proxy's answer has no code.
      detail: response.statusText,
      ...(seconds >= 0 ? { retry_after_ms: seconds * 1000 } : {}),
      ...problem,
      status: response.status,
    };
    throw new (kindOf(response.status))(refused, response.headers.get("x-request-id"), afterLoss);
  }
}

/** Ends a connection that was silent for too long, or whose caller gave up. */
class Silence {
  readonly #ended = new AbortController();
  readonly #stop = () => this.#ended.abort();

  constructor(readonly timeout: number, readonly outer: AbortSignal | undefined) {
    if (outer?.aborted) this.#stop();
    outer?.addEventListener("abort", this.#stop);
  }

  get signal(): AbortSignal {
    return this.#ended.signal;
  }

  /** Waits for something that must come in time. */
  async guard<T>(what: () => Promise<T>): Promise<T> {
    const timer = setTimeout(this.#stop, this.timeout);
    try {
      return await what();
    } finally {
      clearTimeout(timer);
    }
  }

  end(): void {
    this.outer?.removeEventListener("abort", this.#stop);
    this.#stop();
  }
}

/** What the caller sees of an error: the reason of its own signal, one of ours, or a lost connection. */
function failed(error: unknown, route: Route, signal: AbortSignal | undefined): CallboardError {
  if (signal?.aborted) throw signal.reason;
  if (error instanceof CallboardError) return error;
  return new ConnectionLost(`no answer to ${route.method} ${route.path}`, { cause: error });
}

function parsed(text: string): unknown {
  try {
    return text ? JSON.parse(text) : undefined;
  } catch {
    throw new ProtocolError("an answer of the host is not JSON");
  }
}

/** Whether a refused request may be repeated and may then succeed. */
export function isPassing(route: Route, error: CallboardError): boolean {
  if (!(error instanceof ApiError)) return false;
  return error.status === 429 || (route.repeat !== false && error.status >= 500 && !FINAL.includes(error.code));
}

/** Refuses the ids that `fetch` and proxies take for another path. */
function checkNames(request: Request): void {
  const isWrong = Object.values(request.path ?? {}).some((name) => ["", ".", ".."].includes(name));
  if (isWrong) throw new TypeError("an id or a name is none of '', '.' and '..'");
}
