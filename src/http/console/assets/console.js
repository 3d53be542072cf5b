// The script of the console. Pages work without it; it keeps them fresh and saves clicks.
// Text of others is only ever written as text; HTML comes from this host, which escapes it.
"use strict";

const $ = (query, from = document) => from.querySelector(query);
const $$ = (query, from = document) => [...from.querySelectorAll(query)];

// Colours -------------------------------------------------------------------------------------
const theme = $("#theme");
if (theme) {
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `callboard_theme=${root.dataset.theme}; Path=/console; SameSite=Strict; Max-Age=31536000`;
  });
}

// Times ---------------------------------------------------------------------------------------
// The same words as the host writes.
function duration(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 1) return `${Math.max(0, Math.floor(ms))} ms`;
  if (s < 60) return `${s}.${Math.floor((ms % 1000) / 100)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
}
function tick() {
  if (document.hidden) return;
  const now = Date.now();
  for (const time of $$("[data-since]")) time.textContent = duration(now - time.dataset.since);
  for (const time of $$("[data-until]")) time.textContent = duration(time.dataset.until - now);
}
function local(from = document) {
  for (const time of $$("[data-at]", from)) {
    time.textContent = new Date(Number(time.dataset.at)).toLocaleString([], {
      year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit",
    });
  }
}
local();
setInterval(tick, 1000);

// Boxes that scroll can be reached and scrolled by keys. ---------------------------------------
function reach() {
  for (const box of $$(".wide, pre.code")) {
    const given = box.hasAttribute("data-reach");
    if (box.hasAttribute("tabindex") && !given) continue;
    const scrolls = box.scrollWidth > box.clientWidth + 1 || box.scrollHeight > box.clientHeight + 1;
    const wanted = scrolls && !$("a, button, input, select, summary", box);
    if (wanted === given) continue;
    for (const name of ["data-reach", "tabindex", "role", "aria-label"]) box.removeAttribute(name);
    if (!wanted) continue;
    const name = box.closest("section, details, article, main")?.querySelector("summary, h2, h1, strong");
    box.dataset.reach = "";
    box.tabIndex = 0;
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", name?.textContent.trim().slice(0, 80) || "Text that scrolls");
  }
}
reach();
addEventListener("resize", () => requestAnimationFrame(reach));
document.addEventListener("toggle", reach, true);

// HTML of this host ---------------------------------------------------------------------------
const parse = (text) => new DOMParser().parseFromString(text, "text/html");
// Nothing when the session has ended: the login page knows where to come back.
async function get(path, headers = {}) {
  const answer = await fetch(path, { credentials: "same-origin", headers });
  if (!answer.redirected || new URL(answer.url).pathname !== "/console/login") return answer;
  location.reload();
  return null;
}

// Lists refresh while they are looked at; one that does not change is asked for less often. ---
const list = $("[data-refresh]");
if (list) {
  let tag = "";
  let quiet = 0;
  const refresh = async () => {
    if (document.hidden || list.contains(document.activeElement)) return;
    const answer = await get(list.dataset.refresh, tag ? { "If-None-Match": tag } : {}).catch(() => null);
    quiet += 1;
    if (answer?.status !== 200) return;
    if (!answer.headers.get("ETag") || answer.headers.get("ETag") !== tag) quiet = 0;
    tag = answer.headers.get("ETag") || "";
    const fresh = $("#list", parse(await answer.text()));
    if (fresh) list.replaceChildren(...fresh.childNodes);
    reach();
  };
  const again = () => setTimeout(() => refresh().finally(again), quiet < 12 ? 5000 : 10000);
  again();
  document.addEventListener("visibilitychange", refresh);
}

// A thread follows its conversation. ---------------------------------------------------------
const items = $("#items");
const live = $("#live");
if (items && live) follow();

function follow() {
  const path = location.pathname;
  const text = $(".live", live);
  let source = null;
  let timer = 0;
  let busy = false;
  let again = false;

  const atEnd = () => innerHeight + scrollY > document.body.scrollHeight - 160;
  const toEnd = () => scrollTo(0, document.body.scrollHeight);
  if (location.hash === "#end") toEnd();

  function clear() {
    text.textContent = "";
    live.hidden = true;
  }

  // A control, recognised in the HTML that replaces it.
  const keyOf = (one) => [one.tagName, one.id, one.name, one.tagName === "BUTTON" ? one.value : "",
    one.getAttribute("href"), one.form?.getAttribute("action"),
    one.form?.elements.namedItem("call")?.value, one.closest("details")?.id].join("|");

  function focused() {
    const one = document.activeElement;
    const part = one?.closest("#items .item, #status");
    return part && { one, part: part.id, key: keyOf(one), asked: Boolean(one.closest("form.question")) };
  }

  // Gives the focus back to the same control, else to the next question, its item or the box.
  function refocus(was) {
    if (!was || was.one.isConnected) return;
    const part = document.getElementById(was.part);
    const same = part && [part, ...$$("a, button, input, summary, [tabindex]", part)].find((one) => keyOf(one) === was.key);
    const next = was.asked ? $("form.question button", items) : null;
    const to = same || next || (part?.matches(".item") ? part : $("#prompt"));
    to?.focus({ preventScroll: true });
  }

  // Asks for what begins at the first item that can still change.
  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    again = false;
    try {
      const all = $$(".item", items);
      const first = all.findIndex((item) => item.hasAttribute("data-unsettled"));
      const kept = first < 0 ? all : all.slice(0, first);
      const from = first < 0 ? Number($("#status").dataset.head) + 1 : Number(all[first].dataset.seq);
      const answer = await get(`${path}?from=${Math.max(1, from)}`);
      if (answer?.status !== 200) return;
      const fresh = parse(await answer.text());
      const part = $("#items", fresh);
      if (!part.hasAttribute("data-whole")) { location.reload(); return; }
      const open = new Set($$("details[open]", items).map((one) => one.id));
      const stay = atEnd();
      const was = focused();
      const typed = new Map($$("input[id]", items).map((one) => [one.id, one.value]));
      all.slice(kept.length).forEach((item) => item.remove());
      local(part);
      for (const one of $$("details", part)) if (open.has(one.id)) one.open = true;
      for (const one of $$("input[id]", part)) one.value = typed.get(one.id) ?? one.value;
      items.append(...part.childNodes);
      $("#status").replaceWith($("#status", fresh));
      reach();
      refocus(was);
      if (stay) toEnd();
    } finally {
      busy = false;
      if (again) soon();
    }
  }
  function soon() {
    clearTimeout(timer);
    timer = setTimeout(refresh, 120);
  }

  function connect() {
    if (source || document.hidden) return;
    source = new EventSource(`${path}/events`);
    source.addEventListener("text_delta", (event) => {
      const stay = atEnd();
      live.hidden = false;
      text.textContent += JSON.parse(event.data).text;
      if (stay) toEnd();
    });
    for (const name of ["round_started", "message", "tool_call", "tool_result", "approval_required",
      "compaction", "subagent", "snapshot", "turn_restarted", "round_finished", "skill_activated", "queued"]) {
      source.addEventListener(name, () => {
        if (name === "message" || name === "round_finished" || name === "turn_restarted") clear();
        soon();
      });
    }
    source.onopen = soon;
  }
  // A browser has few connections to one host: a page that is not looked at gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; } else connect();
  });
  addEventListener("pagehide", () => source?.close());
  connect();
}

// Plots of the host. -------------------------------------------------------------------------
const plots = $("#plots");
if (plots) watchHost();

function watchHost() {
  const kept = 300;
  const series = {};
  let last = null;

  // The value below which this part of the measurements of a time lies, in milliseconds.
  function quantile(now, before, bounds, part) {
    const counts = now.map((count, at) => count - before[at]);
    const all = counts.reduce((sum, count) => sum + count, 0);
    if (!all) return null;
    let left = all * part;
    for (let at = 0; at < counts.length; at++) {
      if (left <= counts[at]) {
        const low = at ? bounds[at - 1] : 0;
        const high = at < bounds.length ? bounds[at] : low;
        return (low + (high - low) * (left / counts[at])) / 1000;
      }
      left -= counts[at];
    }
    return bounds[bounds.length - 1] / 1000;
  }

  function draw(name, value) {
    const all = (series[name] ||= []);
    all.push(value); // `null`: nothing was measured in this time.
    if (all.length > kept) all.shift();
    const max = Math.max(...all, 1e-9);
    // The first minute fills the plot, then it moves.
    const step = 300 / (Math.max(all.length, 30) - 1);
    const points = all.flatMap((y, at) => (y === null ? [] : `${(at * step).toFixed(1)},${(78 - (y / max) * 74).toFixed(1)}`));
    const plot = $(`[data-plot="${name}"]`);
    $("polyline", plot).setAttribute("points", points.join(" "));
    const digits = value >= 100 ? 0 : value >= 1 ? 1 : 3;
    const unit = plot.dataset.unit;
    const text = value === null ? "–" : value.toLocaleString("en-US", { maximumFractionDigits: digits });
    $(`[data-value="${name}"]`).textContent = value === null ? text : unit === "$" ? `$${text}` : `${text} ${unit}`.trim();
  }

  let source = null;
  function connect() {
    if (source || document.hidden) return;
    last = null;
    source = new EventSource(plots.dataset.live);
    source.addEventListener("figures", (event) => {
      const now = JSON.parse(event.data);
      now.at = performance.now();
      if (last) {
        const seconds = (now.at - last.at) / 1000;
        if (seconds > 0.2) {
          draw("rounds", (now.rounds - last.rounds) / seconds);
          draw("tokens", (now.tokens - last.tokens) / seconds);
          draw("cost", ((now.cost - last.cost) / 1e6 / seconds) * 60);
          draw("queue", now.queue);
          draw("first", quantile(now.first, last.first, now.bounds, 0.95));
          draw("round", quantile(now.round, last.round, now.bounds, 0.95));
        }
      }
      last = now;
    });
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { source?.close(); source = null; } else connect();
  });
  addEventListener("pagehide", () => source?.close());
  connect();
}

// Forms and keys. ----------------------------------------------------------------------------
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const from = document.getElementById(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(from.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(from); // Without TLS a page may only select.
  }
});
for (const button of $$("[data-copy]")) button.hidden = false;

document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input, textarea, select");
  if (field) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && field.hasAttribute("data-send")) {
      field.form.requestSubmit();
    }
    if (event.key === "Escape") field.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const to = $("[data-slash]");
    if (to) { event.preventDefault(); to.focus(); }
  }
  if (event.key === "j" || event.key === "k") {
    const all = $$(".item");
    const at = all.indexOf(document.activeElement.closest(".item"));
    const to = at < 0 ? (event.key === "j" ? 0 : all.length - 1) : at + (event.key === "j" ? 1 : -1);
    all[to]?.focus();
  }
});
