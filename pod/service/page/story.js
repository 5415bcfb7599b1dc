"use strict";
// Events as rows of a transcript: what was said, each call with its result in one row, and what else happened in a line each.
const Story = (() => {
  const { num, money } = Dom;

  const tokens = (value) => num(value) + " tokens";
  const seconds = (value) => (value < 10 ? value.toFixed(1) : Math.round(value)) + " s";
  const saved = (value) => (value >= 0 ? tokens(value) + " saved" : tokens(-value) + " more");

  const used = (e) => `${num(e.input_tokens ?? e.estimate)} in, ${num(e.cached_tokens)} cached, ${num(e.output_tokens)} out, ` +
    `${e.cost_usd === null ? "cost unknown" : money(e.cost_usd)}, ${seconds(e.seconds)}`;

  // What an event says in a line; null: nothing for a reader.
  const LINES = {
    "run.started": () => "Run began",
    "run.ended": (e) => ["Run " + e.status, e.error_kind && `(${e.error_kind})`, e.error].filter(Boolean).join(" "),
    "run.yielded": (e) => ({ approval: "Waits for an answer" })[e.reason] || "Yielded: " + e.reason.replaceAll("_", " "),
    "instructions.changed": (e) => "Instruction files changed: " + e.changes.map((each) => each.path).join(", "),
    "input.rejected": (e) => "A message was rejected: " + e.reason,
    "context.pruned": (e) => `Pruned ${num(e.results)} old results: ${saved(e.tokens_saved)} of ${num(e.tokens_before)} (${e.reason.replaceAll("_", " ")})`,
    "context.added": (e) => `The runtime added ${e.kinds.join(", ")} (${e.by})`,
    "context.window_learned": (e) => `Window of ${e.model}: ${tokens(e.window)} (${e.source})`,
    "context.size_refused": (e) => "The provider refused the size of the request" + (e.message ? ": " + e.message : ""),
    "compaction.started": (e) => `Compaction began at ${tokens(e.tokens)} (${e.trigger.replaceAll("_", " ")})`,
    "compaction.rung": (e) => `Compaction, ${e.rung}: ${e.state}` + (e.reason ? ", " + e.reason : ""),
    "compaction.completed": (e) => `Compacted: ${num(e.before)} to ${tokens(e.after)} (${e.rung})`,
    "compaction.failed": (e) => "Compaction failed: " + e.reason,
    "segment.started": (e) => `Segment began (${e.lineage.replaceAll("_", " ")}), ${num(e.items)} items`,
    "retry": (e) => `Try ${e.attempt} failed, again in ${seconds(e.wait)}: ${e.message || e.error}`,
    "paced": (e) => `Rests ${seconds(e.wait)}: ${e.reason.replaceAll("_", " ")}`,
    "model.switched": (e) => `Model: ${e.from_model} to ${e.to_model}, ${e.reason}`,
    "warning": (e) => "Warning: " + e.message,
    "hook.ran": (e) => (e.blocked || e.outcome === "failed" ? `Hook ${e.name} ${e.blocked ? "stopped it" : "failed"}: ${e.reason}` : null),
    "mcp.server": (e) => `Server ${e.server}: ${e.state}` + (e.why ? ", " + e.why : ""),
    "process.orphan_killed": (e) => `Processes that were left behind were ended: ${e.pids.join(", ")}`,
    "log.repaired": (e) => "The log was repaired: " + e.reason,
  };
  const BAD = new Set(["input.rejected", "context.size_refused", "compaction.failed", "retry", "warning", "log.repaired", "process.orphan_killed"]);
  const TURNS = new Set(["run.started", "run.ended", "segment.started", "compaction.completed"]);

  const line = (event) => (LINES[event.type] ? LINES[event.type](event) : null);

  // What the rows of a transcript show in their own way, in a line.
  const SHOWN = {
    "input.received": (e) => e.text,
    "request.completed": (e) => [used(e), e.calls.map((call) => call.name).join(", "), e.text].filter(Boolean).join(" · "),
    "tool.completed": (e) => [e.name, e.status, e.summary].join(" · "),
    "permission.denied": (e) => `${e.tool}: ${e.reason}`,
    "approval.asked": (e) => e.summary,
    "context.measured": (e) => `${e.cause}: ${tokens(e.rewritten)} written to the cache anew${e.cost_usd ? `, ${money(e.cost_usd)}` : ""}`,
    "approval.answered": (e) => (e.approved ? "approved" : "denied") + (e.by ? " by " + e.by : ""),
  };
  const inALine = (event) => (SHOWN[event.type] ? SHOWN[event.type](event) : line(event));

  // What is told to those who listen, when it is new.
  const ANNOUNCED = {
    "run.started": () => "A run began.",
    "run.ended": (e) => `The run ${e.status}.`,
    "approval.asked": (e) => `A question waits for an answer: ${e.summary}`,
    "compaction.started": () => "A compaction began.",
    "compaction.completed": (e) => `Compacted to ${tokens(e.after)}.`,
  };
  const announced = (event) => (ANNOUNCED[event.type] ? ANNOUNCED[event.type](event) : null);

  function story() {
    const calls = new Map(), questions = new Map();
    let draft = null;

    // Follows events; the rows that came and those that changed. `dropped` is a draft that its reply, or an end, took the place of.
    function take(events) {
      const added = [], changed = new Set();
      let dropped = null;
      const add = (row) => { added.push(row); return row; };
      const alter = (row, more) => { Object.assign(row, more); if (!added.includes(row)) changed.add(row); };
      const settle = () => {
        if (!draft) return;
        const at = added.indexOf(draft);
        if (at >= 0) added.splice(at, 1); else dropped = draft;
        changed.delete(draft);
        draft = null;
      };
      for (const event of events) {
        const { type, seq, at } = event;
        if (type === "text.delta") {
          if (draft) alter(draft, { text: draft.text + event.text });
          else draft = add({ kind: "draft", seq, at, text: event.text });
          continue;
        }
        if (type === "compaction.progress" || type === "init" || type === "result") continue;
        if (["request.started", "request.completed", "run.ended", "run.yielded", "retry"].includes(type)) settle();
        if (type === "input.received") add({ kind: "user", seq, at, text: event.text });
        else if (type === "request.completed") {
          if (event.text || !event.calls.length) add({ kind: "agent", seq, at, text: event.text, figures: used(event), stop: event.stop });
          for (const call of event.calls) {
            calls.set(call.call_id, add({ kind: "call", seq, at, name: call.name, arguments: call.arguments, status: "waits", summary: "" }));
          }
        } else if (type === "tool.started") {
          const row = calls.get(event.call_id);
          if (row) alter(row, { status: "runs" });
        } else if (type === "tool.completed") {
          const told = { status: event.status, summary: event.summary, seconds: event.seconds, result: seq };
          const row = calls.get(event.call_id);
          if (row) alter(row, told);
          else add({ kind: "call", seq, at, name: event.name, arguments: "", ...told });
          calls.delete(event.call_id);
        } else if (type === "permission.denied") {
          const row = calls.get(event.call_id);
          if (row) alter(row, { denied: event.reason });
          else add({ kind: "note", seq, at, type, text: `Denied ${event.tool}: ${event.reason}`, bad: true });
        } else if (type === "approval.asked") {
          questions.set(event.id, add({ kind: "question", seq, at, ...event, kind: "question", answer: null }));
        } else if (type === "approval.answered") {
          const row = questions.get(event.id);
          if (row) alter(row, { answer: event });
        } else {
          const text = line(event);
          if (text) add({ kind: "note", seq, at, type, text, bad: BAD.has(type) || (type === "run.ended" && event.status === "failed"), turn: TURNS.has(type) });
        }
      }
      return { added, changed: [...changed], dropped };
    }
    return { take };
  }

  return { story, inALine, announced, seconds };
})();
