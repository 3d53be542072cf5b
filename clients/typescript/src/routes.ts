// The routes that this client calls, with all that it sends. A test compares each with the host's OpenAPI document.

/** A method and a path, with the names that a request may have. */
export interface Route {
  method: "GET" | "PUT" | "POST" | "DELETE";
  path: string;
  /** `false` if doing it twice is not the same as once: then it is repeated only after 429. */
  repeat?: false;
  query?: string[];
  headers?: string[];
  /** The schema of the body, whose fields `types.ts` has. */
  body?: string;
  /** The schema of the answer. */
  answer?: string;
}

const id = "/v1/conversations/{id}";

export const ROUTES = {
  list: { method: "GET", path: "/v1/conversations", query: ["after", "limit", "titles", "subagents"], answer: "Conversations" },
  create: { method: "PUT", path: id, body: "Configure" },
  state: { method: "GET", path: id, answer: "Standing" },
  delete: { method: "DELETE", path: id },
  history: { method: "GET", path: `${id}/messages`, query: ["after", "limit", "whole"], answer: "History" },
  send: { method: "POST", path: `${id}/messages`, headers: ["Idempotency-Key", "Prefer"], body: "Say", answer: "Accepted" },
  whole: { method: "POST", path: `${id}/messages`, headers: ["Idempotency-Key"], body: "Say", answer: "Answer" },
  events: { method: "GET", path: `${id}/events`, query: ["round"], headers: ["Last-Event-ID"] },
  interrupt: { method: "POST", path: `${id}/interrupt`, repeat: false },
  approve: { method: "POST", path: `${id}/approvals/{tool_call_id}`, repeat: false, body: "Approval" },
  toolResults: { method: "POST", path: `${id}/tool_results`, body: "ToolResults" },
  inject: { method: "POST", path: `${id}/inject`, body: "Inject" },
  fork: { method: "POST", path: `${id}/fork`, repeat: false, body: "Fork" },
  fanOut: { method: "POST", path: "/v1/fanouts", body: "FanOutRequest" },
  fanOuts: { method: "GET", path: "/v1/fanouts", answer: "FanOuts" },
  results: { method: "GET", path: "/v1/fanouts/{name}", query: ["after", "limit", "wait_ms", "ended"], answer: "FanOutShown" },
  cancel: { method: "POST", path: "/v1/fanouts/{name}/cancel" },
  erase: { method: "DELETE", path: "/v1/fanouts/{name}" },
} satisfies Record<string, Route>;
