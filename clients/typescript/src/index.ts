/**
 * A typed client of Callboard's HTTP API: streams that resume, prompts that are sent once.
 *
 * ```ts
 * const host = new Callboard("http://127.0.0.1:8787", key);
 * const round = await host.conversation("support-42").send("Why is checkout slow?");
 * console.log((await round.outcome()).text);
 * ```
 */
export * from "./client.js";
export * from "./errors.js";
export type { Event, EventOf, Place } from "./events.js";
export type { Options } from "./http.js";
export * from "./types.js";
