// The client: a host, its conversations, their rounds, and fan-outs.

import { CallboardError, Conflict, ConnectionLost, Expired, NotFound, PromptFailed } from "./errors.js";
import { isAfter, readEvent, type Event, type EventOf } from "./events.js";
import { isPassing, Patience, Transport, type Options, type Request } from "./http.js";
import { ROUTES, type Route } from "./routes.js";
import type * as api from "./types.js";

/** Where a stream begins, and what ends the reading of it. Leaving its loop ends the connection too. */
export interface Reading {
  /** The id of the last event that is known; `"0.0.0"` stands before the first one. */
  after?: string;
  signal?: AbortSignal;
}

/** Functions that run tools of the client, by name. */
export type Tools = Record<string, (input: any) => string | Promise<string>>;

/** How long a request for results of a fan-out waits at the host. */
const WAIT_MS = 20_000;

/** Behind every event that follows from an entry. */
const LAST = 2 ** 32 - 1;

// Not `randomUUID`, which browsers have on secure pages only.
const random = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/**
 * A host of Callboard, as a tenant sees it.
 *
 * Methods throw an `ApiError` when the host refuses, with its code, and `ConnectionLost` when it does not answer.
 * Requests are repeated after a lost connection, 429 and 5xx, with pauses that grow and with `Retry-After`, until
 * `retryFor` milliseconds after the first failure. No repetition does a thing twice: prompts have an idempotency key,
 * and what has none (`fork`, `interrupt`, `approve`) is repeated only when the host refused it with 429.
 */
export class Callboard {
  readonly #transport: Transport;

  constructor(url: string, key: string, options: Options = {}) {
    this.#transport = new Transport(url, key, options);
  }

  /** Names a conversation, without a request. The first prompt creates it. Without an id it has a random one. */
  conversation(id: string = random()): Conversation {
    return new Conversation(this.#transport, id);
  }

  /** Lists the conversations in order of id, page by page. */
  async *conversations(options: { titles?: boolean; subagents?: boolean } = {}): AsyncGenerator<api.Listed, void> {
    for (let after: string | undefined; ; ) {
      const query = { ...options, after, limit: 200 };
      const { answer } = await this.#transport.call<{ conversations: api.Listed[]; next?: string }>(ROUTES.list, { query });
      yield* answer.conversations;
      if ((after = answer.next) === undefined) return;
    }
  }

  /** Starts one subagent for each task. Throws `Conflict` (`fan_out_running`, `fan_out_differs`) for a name in use. */
  async fanOut(tasks: string[], options: api.FanOutOptions = {}): Promise<FanOut> {
    const request = { ...options, name: options.name ?? random(), tasks };
    await startFanOut(this.#transport, request);
    return new FanOut(this.#transport, request.name, request);
  }

  /** Names a fan-out that was started before, without a request. */
  fanOutNamed(name: string): FanOut {
    return new FanOut(this.#transport, name);
  }

  /** Lists the fan-outs since the host's start, without results. */
  async fanOuts(): Promise<api.FanOutShown[]> {
    return (await this.#transport.call<{ fan_outs: api.FanOutShown[] }>(ROUTES.fanOuts, {})).answer.fan_outs;
  }
}

/** A conversation of the tenant. */
export class Conversation {
  readonly #transport: Transport;

  /** @internal */
  constructor(transport: Transport, readonly id: string) {
    this.#transport = transport;
  }

  /** Creates the conversation, or configures an existing one: `messages` replace its history, `pinned` are added. */
  async create(options: { messages?: api.Message[]; pinned?: string[] } = {}): Promise<void> {
    await this.#call(ROUTES.create, { body: options });
  }

  /**
   * Sends a prompt. Returns when the host has stored it; the round goes on without this program.
   *
   * `key` is the idempotency key, random by default. A program that may die and send again chooses its own: the same
   * key and prompt return the same round for 24 hours. Throws `Conflict` (`conversation_busy` with `reject`),
   * `Invalid`, `Unavailable`.
   */
  async send(content: string | api.Block[], { key = random(), ...options }: api.PromptOptions & { key?: string } = {}): Promise<Round> {
    const prompt: api.Say = { content, ...options };
    const headers = { "Idempotency-Key": key, Prefer: "respond-async" };
    const accepted = await this.#call<api.Accepted>(ROUTES.send, { headers, body: prompt });
    const whole = () => this.#call<api.Answer>(ROUTES.whole, { headers: { "Idempotency-Key": key }, body: prompt });
    return new Round(this, accepted.round_id, key, whole);
  }

  /** Names a round, such as one that another program started. */
  round(id: string): Round {
    return new Round(this, id);
  }

  /**
   * Returns the events of the conversation, until the caller stops: stored ones once each and in order.
   *
   * A lost connection is opened again after the last event. Without `after`, the events begin with the round that runs
   * when this call returns, or with what comes next. Events that the host no longer keeps are replaced by one
   * `snapshot`. Reading throws `NotFound`, `Unauthorized` (also when the key is removed meanwhile), `ConnectionLost`.
   */
  async events({ after, signal }: Reading = {}): Promise<AsyncGenerator<Event, void>> {
    if (after !== undefined) return this.follow(after, undefined, undefined, signal);
    const { round_id, epoch, entries } = await this.state();
    // Behind whatever followed from the last entry; but a running round is read from its start.
    return this.follow(round_id ? undefined : `${epoch}.${entries}.${LAST}`, undefined, round_id, signal);
  }

  /** Reads the state: whether a round runs, and what it waits for. */
  state(): Promise<api.Standing> {
    return this.#call(ROUTES.state);
  }

  /** Reads the messages, oldest first, page by page; with `whole` also those that a compaction dropped. */
  async *history(options: { whole?: boolean } = {}): AsyncGenerator<api.Placed, void> {
    for (let after: number | undefined; ; ) {
      const query = { ...options, after, limit: 200 };
      const page = await this.#call<{ messages: api.Placed[]; next?: number }>(ROUTES.history, { query });
      yield* page.messages;
      if ((after = page.next) === undefined) return;
    }
  }

  /** Ends the open round. Throws `NotFound` when none is open. Not repeated after a lost connection. */
  interrupt(): Promise<void> {
    return this.#call(ROUTES.interrupt);
  }

  /**
   * Answers `approval_required`. `always` also allows later calls like it; `input` are arguments in place of the model's; `reason` says to
   * the model why not; with `round_id` of the event the answer counts for its call only, and not for one with the same id after a rewind
   * or reset (`NotFound`). Not repeated after a lost connection.
   */
  approve(toolCallId: string, allow = true, options: { always?: boolean; input?: object; reason?: string; round_id?: string } = {}): Promise<void> {
    return this.#call(ROUTES.approve, { path: { tool_call_id: toolCallId }, body: { allow, ...options } });
  }

  /** Sends results of `client_tool_call`s, in any order. Throws `Conflict` (`already_answered`) for another result. */
  toolResults(results: api.ToolResult[]): Promise<void> {
    return this.#call(ROUTES.toolResults, { body: { results } });
  }

  /** Sends a message that the model reads at its next call. A repeated id is accepted once. */
  inject(text: string, id: string = random()): Promise<void> {
    return this.#call(ROUTES.inject, { body: { id, text } });
  }

  /** Copies the conversation, up to the round `at`. Not repeated after a lost connection. */
  async fork(id: string = random(), options: { at?: string } = {}): Promise<Conversation> {
    await this.#call(ROUTES.fork, { body: { conversation_id: id, ...options } });
    return new Conversation(this.#transport, id);
  }

  /** Erases the conversation. Throws `NotFound` if there is none. */
  delete(): Promise<void> {
    return erase(this.#transport, ROUTES.delete, { id: this.id });
  }

  /** @internal Yields events after `last`, of one round if it is named, else from the start of `running` on. */
  async *follow(last: string | undefined, round: string | undefined, running: string | undefined, signal: AbortSignal | undefined): AsyncGenerator<Event, void> {
    const patience = new Patience(this.#transport.retryFor);
    for (;;) {
      const query = { round: round ?? (last === undefined ? running : undefined) };
      const headers: Record<string, string> = last === undefined ? {} : { "Last-Event-ID": last };
      const frames = this.#transport.frames(ROUTES.events, { path: { id: this.id }, query, headers, signal }, () => patience.connected());
      let failure: CallboardError = new ConnectionLost("the event stream was cut");
      try {
        for (;;) {
          const next = await attempt(() => frames.next());
          if ("error" in next) {
            failure = next.error;
            break;
          }
          if (next.done) {
            if (next.value === "over") return;
            break;
          }
          const { id, data } = next.value;
          if (last !== undefined && !isAfter(id, last)) continue;
          last = id;
          patience.progressed();
          const event = readEvent(id, data);
          yield event;
          if (round !== undefined && (event.type === "round_finished" || event.type === "error")) return;
        }
      } finally {
        await frames.return("over");
      }
      if (!(failure instanceof ConnectionLost) && !isPassing(ROUTES.events, failure)) throw failure;
      await patience.pause(failure, signal);
    }
  }

  async #call<T>(route: Route, request: Request = {}): Promise<T> {
    return (await this.#transport.call<T>(route, { ...request, path: { id: this.id, ...request.path } })).answer;
  }
}

/** A prompt that the host has stored, and the round that it starts. */
export class Round {
  readonly #whole: (() => Promise<api.Answer>) | undefined;

  /** @internal */
  constructor(
    readonly conversation: Conversation,
    readonly id: string,
    /** The idempotency key of the prompt. */
    readonly key?: string,
    whole?: () => Promise<api.Answer>,
  ) {
    this.#whole = whole;
  }

  /** Yields the events of the round to its end, like `Conversation.events`. Throws `Expired` if they are gone. */
  events({ after, signal }: Reading = {}): AsyncGenerator<Event, void> {
    return this.conversation.follow(after, this.id, undefined, signal);
  }

  /**
   * Waits for the end of the round. A round that failed is an answer too, with `status` `error`. Throws
   * `PromptFailed` if no round ran for the prompt: `deadline` after its `wait_ms`, `deleted`, `withdrawn`.
   */
  outcome(options: { signal?: AbortSignal } = {}): Promise<api.Answer> {
    return this.run({}, options);
  }

  /**
   * Waits like `outcome`, and runs the client's tools meanwhile. What a function throws is a result that the model
   * reads. A call of another name waits for someone else.
   */
  async run(tools: Tools, options: { signal?: AbortSignal } = {}): Promise<api.Answer> {
    try {
      for await (const event of this.events(options)) {
        if (event.type === "round_finished") {
          const { id: _place, type: _type, round_id: _round, ...end } = event;
          return { ...end, round_id: this.id };
        }
        if (event.type === "error") throw new PromptFailed(event.code, event.message, event.retry_after_ms);
        if (event.type === "client_tool_call" && Object.hasOwn(tools, event.name)) await this.#answer(event, tools);
      }
    } catch (error) {
      if (!(error instanceof Expired) || !this.#whole) throw error;
    }
    if (!this.#whole) throw new ConnectionLost("the stream of the round has no end");
    // The events are gone, but the journal has the end: the same prompt and key are answered with it.
    return this.#whole();
  }

  async #answer(call: EventOf<"client_tool_call">, tools: Tools): Promise<void> {
    const result: api.ToolResult = { tool_call_id: call.tool_call_id, content: "" };
    try {
      result.content = await tools[call.name]!(call.input);
    } catch (error) {
      Object.assign(result, { content: String(error), is_error: true });
    }
    try {
      await this.conversation.toolResults([result]);
    } catch (error) {
      // The stream began with a call that has its result.
      if (!(error instanceof Conflict && error.code === "already_answered")) throw error;
    }
  }
}

/** Many tasks at once, a subagent each. */
export class FanOut {
  readonly #transport: Transport;
  readonly #request: api.FanOutRequest | undefined;

  /** @internal */
  constructor(transport: Transport, readonly name: string, request?: api.FanOutRequest) {
    this.#transport = transport;
    this.#request = request;
  }

  /** Reads the counts. */
  progress(): Promise<api.FanOutShown> {
    return this.#read({ limit: 1 });
  }

  /**
   * Yields the counts now, and whenever tasks have ended, until all have.
   *
   * A host that was restarted does not know the fan-out: one that this object started is started again, which attaches
   * to what has ended. Otherwise it throws `NotFound`.
   */
  async *watch(options: { signal?: AbortSignal } = {}): AsyncGenerator<api.FanOutShown, void> {
    let shown = await this.#read({ limit: 1 }, options.signal);
    yield shown;
    while (!shown.is_over) {
      const before = shown.ended;
      shown = await this.#read({ limit: 1, wait_ms: WAIT_MS, ended: before }, options.signal);
      if (shown.ended !== before || shown.is_over) yield shown;
    }
  }

  /** Reads the results so far, in the order of the tasks, page by page. */
  async *results(): AsyncGenerator<api.TaskShown, void> {
    for (let after: number | undefined; ; ) {
      const page = await this.#read({ after });
      yield* page.results ?? [];
      if ((after = page.next) === undefined) return;
    }
  }

  /** Waits until every task has ended. Returns all results. */
  async wait(options: { signal?: AbortSignal } = {}): Promise<api.TaskShown[]> {
    for await (const _shown of this.watch(options));
    const all: api.TaskShown[] = [];
    for await (const result of this.results()) all.push(result);
    return all;
  }

  /** Interrupts running tasks; waiting ones never begin. */
  async cancel(): Promise<void> {
    await this.#transport.call(ROUTES.cancel, { path: { name: this.name } });
  }

  /** Erases the conversations of a fan-out that has ended. */
  delete(): Promise<void> {
    return erase(this.#transport, ROUTES.erase, { name: this.name });
  }

  async #read(query: NonNullable<Request["query"]>, signal?: AbortSignal): Promise<api.FanOutShown> {
    const read = () => this.#transport.call<api.FanOutShown>(ROUTES.results, { path: { name: this.name }, query, signal });
    try {
      return (await read()).answer;
    } catch (error) {
      if (!(error instanceof NotFound) || !this.#request) throw error;
    }
    await startFanOut(this.#transport, this.#request, true);
    return (await read()).answer;
  }
}

async function startFanOut(transport: Transport, body: api.FanOutRequest, again = false): Promise<void> {
  try {
    await transport.call(ROUTES.fanOut, { body });
  } catch (error) {
    // An earlier attempt, or another reader, has started it.
    if (!(error instanceof Conflict && (again || error.afterLoss) && error.code === "fan_out_running")) throw error;
  }
}

async function erase(transport: Transport, route: Route, path: Record<string, string>): Promise<void> {
  try {
    await transport.call(route, { path });
  } catch (error) {
    if (!(error instanceof NotFound && error.afterLoss)) throw error; // Otherwise an earlier attempt erased it.
  }
}

/** Separates the errors of a connection from those of the caller of a generator. */
async function attempt<T extends object>(what: () => Promise<T>): Promise<T | { error: CallboardError }> {
  try {
    return await what();
  } catch (error) {
    if (error instanceof CallboardError) return { error };
    throw error;
  }
}
