// What the API takes and answers with, in the names of the wire.

/** A block of a message in the form of Anthropic's Messages API; `text`, `image` and `document` make some. */
export type Block = { type: string; [field: string]: unknown };

/** A message in the form of Anthropic's Messages API. */
export interface Message {
  role: string;
  content: string | Block[];
}

/** Returns a block of text. */
export const text = (text: string): Block => ({ type: "text", text });

/** Returns an image, such as `image(bytes, "image/png")`. */
export const image = (data: Uint8Array, mediaType: string): Block => attached("image", data, mediaType);

/** Returns a document, such as a PDF. */
export const document = (data: Uint8Array, mediaType = "application/pdf"): Block => attached("document", data, mediaType);

function attached(type: string, data: Uint8Array, mediaType: string): Block {
  let bytes = "";
  for (let at = 0; at < data.length; at += 8192) bytes += String.fromCharCode(...data.subarray(at, at + 8192));
  return { type, source: { type: "base64", media_type: mediaType, data: btoa(bytes) } };
}

/** A tool that this program runs: the model is offered it in the round of one prompt. */
export interface ClientTool {
  name: string;
  description?: string;
  /** JSON Schema of the arguments, an object. */
  input_schema: Record<string, unknown>;
}

/** The result of a call of a `ClientTool`. */
export interface ToolResult {
  tool_call_id: string;
  content: string;
  is_error?: boolean;
}

/** What a prompt may say beside its content. */
export interface PromptOptions {
  tools?: ClientTool[];
  /** `none` holds for the round, the others for its first model call. */
  tool_choice?: "auto" | "none" | "any" | { named: string };
  /** What happens while a round is open; `queue` by default. */
  on_busy?: "queue" | "reject" | "interrupt" | "steer";
  /** The most milliseconds of the wait and the round together. */
  deadline_ms?: number;
  /** The most milliseconds of the wait; after it the prompt is withdrawn. */
  wait_ms?: number;
  max_tokens?: number;
  effort?: "low" | "medium" | "high";
  thinking?: "off" | "adaptive" | number;
  temperature?: number;
  stop?: string[];
}

/** A prompt as it is sent. */
export interface Say extends PromptOptions {
  content: string | Block[];
}

/** Tokens of model calls. */
export interface Usage {
  input_uncached: number;
  cache_read: number;
  cache_write: number;
  output: number;
}

/** Why a round or a task failed. */
export interface Failure {
  code: string;
  message: string;
  retry_after_ms?: number;
}

/** The end of a round. */
export interface RoundEnd {
  /** A round that failed has `error` here and in `error`; one that was interrupted is `completed`. */
  status: "completed" | "error";
  /** `end_turn`, `max_tokens`, `refusal`, `budget`, `interrupted`, `error` … */
  stop_reason: string;
  /** The last message of the model. */
  text: string;
  /** All messages of the model in this round. */
  full_text: string;
  usage: Usage;
  latency_ms: number;
  error?: Failure;
}

/** The end of a round, as `outcome` returns it. */
export interface Answer extends RoundEnd {
  conversation_id: string;
  round_id: string;
}

/** The host's receipt of a prompt. */
export interface Accepted {
  conversation_id: string;
  round_id: string;
}

/** The state of a conversation. */
export interface Standing {
  conversation_id: string;
  state: "asleep" | "idle" | "running" | "parked" | "failed";
  /** The open round. */
  round_id?: string;
  /** What it waits for: `kind`, and what belongs to that kind. */
  waits_for: { kind: string; [field: string]: unknown };
  since_ms: number;
  prompts_waiting: number;
  context: { tokens: number; window: number; fraction: number };
  spent: Record<string, number>;
  budget_left: Record<string, number>;
  messages: number;
  rounds: number;
  entries: number;
  epoch: number;
  failure?: string;
}

/** A conversation in a list. Times are in milliseconds since 1970. */
export interface Listed {
  conversation_id: string;
  /** `none`, `running` or `parked`. */
  open: string;
  created_at: number;
  updated_at: number;
  entries: number;
  epoch: number;
  title?: string;
  failed?: string;
}

/** A message of a history. */
export interface Placed {
  index: number;
  message: Message;
}

/** The end of a task of a fan-out. */
export interface TaskShown {
  index: number;
  conversation_id: string;
  ok: boolean;
  text: string;
  /** Whether `text` was left out; the conversation's history has it. */
  text_omitted?: boolean;
  usage: Usage;
  error?: Failure;
  attached: boolean;
}

/** The counts of a fan-out, and a page of results. */
export interface FanOutShown {
  name: string;
  tasks: number;
  ended: number;
  done: number;
  failed: number;
  is_over: boolean;
  results?: TaskShown[];
  next?: number;
}

/** What a fan-out may say beside its tasks. The same name and tasks attach to an earlier one that has ended. */
export interface FanOutOptions {
  name?: string;
  model?: string;
  parallel?: number;
  deadline_ms?: number;
  retry_failed?: boolean;
}

/** A fan-out as it is sent. */
export interface FanOutRequest extends FanOutOptions {
  name: string;
  tasks: string[];
}
