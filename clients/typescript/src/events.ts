// The events of a stream. A delta is not stored: the next `message` replaces those since the last stored event.

import type { Failure, Message, RoundEnd, Usage } from "./types.js";

type Call = { tool_call_id: string; name: string; input: any };

/** The fields of each type of event. */
interface Fields {
  round_started: {};
  text_delta: { text: string };
  thinking_delta: { text: string };
  tool_call: Call & { summary: string };
  tool_progress: { tool_call_id: string; text: string };
  /** `summary` is the first line of the result, `preview` up to four more. */
  tool_result: {
    tool_call_id: string; name: string; is_error: boolean; summary: string; preview?: string;
    duration_ms: number; retry_count: number; artifact_id?: string;
  };
  /** Waits for `approve`. `expires_at` is in milliseconds since 1970. */
  approval_required: Call & { reason: string; expires_at: number };
  /** A call of a `ClientTool` waits for `toolResults`. */
  client_tool_call: Call & { expires_at: number };
  /** The host repeats a model call or a tool call after `delay_ms`. */
  retry: { layer: string; attempt: number; delay_ms: number; reason: string };
  usage: Usage & { cost_usd?: number };
  context: { tokens: number; window: number; fraction: number };
  compaction: { mode: string; before_tokens: number; after_tokens: number };
  skill_activated: { name: string; level: number };
  /** `subagent` is the id of its conversation; on the wire it is called `id`, like the place in the stream. */
  subagent: { subagent: string; state: "started" | "running" | "finished" | "failed"; steps?: number; tokens?: number };
  queued: { position: number };
  /** A whole message, which replaces the deltas since the last stored event. */
  message: { message: Message; partial: boolean };
  /** Another start of the host took the round up: deltas since the last `message` do not count. */
  turn_restarted: { epoch: number };
  /** The state, in place of events that are no longer kept; the stream continues from it. */
  snapshot: { open: string; rounds: number; messages: Message[]; messages_before: number };
  round_finished: RoundEnd;
  /** The prompt ended without a round. */
  error: Failure;
  /** An event of a newer host, to ignore. */
  unknown: { data: unknown };
}

/** What every event has. */
export interface Place {
  /** `epoch.seq.n`: where to continue (`events({ after: event.id })`). */
  id: string;
  conversation_id: string;
  /** The round, unless the event stands between rounds. */
  round_id?: string;
}

/** An event: `switch (event.type)` narrows it. */
export type Event = { [Type in keyof Fields]: Place & { type: Type } & Fields[Type] }[keyof Fields];

/** The event of one type, such as `EventOf<"text_delta">`. */
export type EventOf<Type extends Event["type"]> = Extract<Event, { type: Type }>;

const KNOWN: Record<Exclude<Event["type"], "unknown">, true> = {
  round_started: true, text_delta: true, thinking_delta: true, tool_call: true, tool_progress: true, tool_result: true,
  approval_required: true, client_tool_call: true, retry: true, usage: true, context: true, compaction: true,
  skill_activated: true, subagent: true, queued: true, message: true, turn_restarted: true, snapshot: true,
  round_finished: true, error: true,
};

/** The types that this client knows. */
export const EVENT_TYPES: string[] = Object.keys(KNOWN);

/** Reads an event. `id` is that of its frame. */
export function readEvent(id: string, data: any): Event {
  if (!EVENT_TYPES.includes(data.type)) return { id, conversation_id: data.conversation_id, round_id: data.round_id, type: "unknown", data };
  return data.type === "subagent" ? { ...data, subagent: data.id, id } : { ...data, id };
}

/** Whether the event `id` stands after `other`. */
export function isAfter(id: string, other: string): boolean {
  const [a, b] = [id, other].map((place) => place.split(".").map(Number)) as [number[], number[]];
  const at = a.findIndex((part, index) => part !== b[index]);
  return at >= 0 && a[at]! > b[at]!;
}
