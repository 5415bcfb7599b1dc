"use strict";
// What fills the context, what would be done about it, and how it went over the requests.
const Figures = (() => {
  const { make, button, num, share } = Dom;
  const AT_ONCE = 2000;

  // -- the context as it is

  function context(home, { name, mayOperate, act }) {
    const bar = make("div", { class: "stack" }), legend = make("ul", { class: "legend" }), facts = make("dl", { class: "facts roomy" });
    const next = make("tbody"), plan = make("div", { role: "status" });
    const focus = Forms.area({ rows: "2", maxlength: "2000" });
    const dry = button("What would a compaction do?", async () => act("", async () => show(await Api.post(Api.path(name, "compact"), { dry_run: true }))));
    const now = button("Compact now", () => act("A compaction is on its way.", () => Api.post(Api.path(name, "compact"), focus.value.trim() ? { focus: focus.value.trim() } : {})), { class: "main" });
    dry.disabled = now.disabled = !mayOperate;
    home.append(
      make("section", { class: "card", "aria-label": "What fills the context" }, make("h2", {}, "What fills the context"), bar, legend, facts),
      make("section", { class: "card", "aria-label": "What would go next" }, make("h2", {}, "What would go next"),
        make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "What would go next" }, make("table", {}, make("thead", {}, make("tr", {}, ...["rule", "now", "tokens", "why"].map((head) => make("th", { scope: "col", class: "left" }, head)))), next))),
      make("section", { class: "card", "aria-label": "Compaction" }, make("h2", {}, "Compaction"), Forms.field("What the summary should keep in view", focus, "May stay empty."), make("p", { class: "bar" }, dry, now), plan));

    function show(found) {
      const rows = [
        ["possible", found.possible ? "yes" : "no"], ["why", found.reason], ["now", num(found.occupancy)], ["expected after", num(found.expected)], ["at least", num(found.least)],
        ["summarised", `${num(found.summarised_items)} items, ${num(found.summarised_tokens)} tokens`], ["kept as they are", `${num(found.retained_items)} items, ${num(found.retained_tokens)} tokens`],
        ["target", num(found.target)], ["lowest trigger", num(found.lowest_trigger)], ["available", num(found.available)], ["would be accepted", found.accepted],
      ].filter(([, value]) => value !== null && value !== undefined && value !== "");
      plan.replaceChildren(make("h3", {}, "It would do this, and has changed nothing"), make("dl", { class: "facts roomy" }, ...Dom.pairs(rows)));
    }
    async function look(signal) {
      const found = await Api.get(Api.path(name, "context"), {}, signal);
      const parts = Object.entries(found.categories || {}).filter(([, tokens]) => tokens > 0);
      const whole = Math.max(found.window || 0, parts.reduce((sum, [, tokens]) => sum + tokens, 0), 1);
      const names = Object.keys(found.categories || {});
      const colour = (part) => "c" + Math.min(names.indexOf(part), 6);
      bar.replaceChildren(...parts.map(([part, tokens]) => {
        const made = make("span", { class: "part " + colour(part), title: `${part}: ${num(tokens)} tokens` });
        made.style.width = (100 * tokens) / whole + "%";
        return made;
      }));
      for (const [trigger, tokens] of Object.entries(found.triggers || {})) {
        if (!tokens) continue;
        const mark = make("span", { class: "mark", title: `${trigger}: ${num(tokens)}` });
        mark.style.left = Math.min((100 * tokens) / whole, 100) + "%";
        bar.append(mark);
      }
      legend.replaceChildren(...parts.map(([part, tokens]) => make("li", {}, Charts.key(colour(part)), `${part} ${num(tokens)}`)));
      facts.replaceChildren(...Dom.pairs([
        ["occupancy", `${num(found.occupancy)} (${found.provenance})`], ["available", num(found.available)], ["window", `${num(found.window)} (${found.window_source})`], ["full", share(found.occupancy, found.available)],
        ...Object.entries(found.triggers || {}).map(([trigger, tokens]) => [trigger.replaceAll("_", " "), num(tokens)]), ["policy", found.policy], ["items", num(found.items)], ["could be pruned", num(found.prunable)],
      ]));
      next.replaceChildren(...(found.next || []).map((one) => make("tr", {}, make("th", { scope: "row", class: "left" }, one.rule), make("td", { class: "left" }, one.happens ? "yes" : "no"), make("td", { class: "left" }, num(one.tokens)), make("td", { class: "wide" }, one.reason))));
    }
    return { look };
  }

  // -- how it went

  function words(step) {
    switch (step.type) {
      case "context.pruned": return `${num(step.results)} results, ${num(step.saved)} tokens`;
      case "compaction.completed": return `${num(step.before)} to ${num(step.after)} tokens (${step.rung})`;
      case "compaction.failed": return step.reason;
      case "segment.started": return step.lineage.replaceAll("_", " ");
      case "run.ended": return [step.status, step.error].filter(Boolean).join(" ");
      default: return "";
    }
  }

  function timeline(home, { name, open }) {
    const tools = make("div", { class: "bar", role: "toolbar", "aria-label": "Chart" }), readout = make("p", { class: "readout" }), plots = make("div");
    const left = make("p", { class: "hint" });
    home.append(tools, readout, plots, left, make("p", { class: "hint" }, "Arrow keys go from point to point, Page Up and Page Down ten at a time, Home and End to the ends, + and - zoom, Enter shows the entry."));
    const FIGURES = ["number", "input", "estimate", "reported", "cached", "output", "window", "available", "reserve"];
    const kinds = new Map();
    let last = 0, chart = null, data = null, marks = {};

    // The columns that a chart is drawn from, empty; which categories and marks there are is the service's to say.
    function begin(found) {
      marks = found.marks;
      const columns = Object.fromEntries(["step", ...FIGURES, "cost", "sum"].map((key) => [key, []]));
      data = {
        kinds: [], marks: [...new Set(Object.values(marks))], categories: [...found.categories, "reserve"], triggers: [],
        steps: { seq: [], kind: [], place: [], words: [] }, requests: { ...columns, parts: found.categories.map(() => []) },
      };
    }
    function add(step) {
      const { steps: S, requests: R } = data;
      if (!kinds.has(step.type)) { kinds.set(step.type, data.kinds.length); data.kinds.push([step.type, marks[step.type] || ""]); }
      S.seq.push(step.seq); S.kind.push(kinds.get(step.type)); S.place.push(R.step.length); S.words.push(words(step));
      if (step.type !== "request.completed") return;
      const at = R.step.length;
      R.step.push(S.seq.length - 1);
      for (const key of FIGURES) R[key].push(step[key]);
      R.cost.push(step.cost_usd); R.sum.push(step.cost_so_far);
      data.categories.slice(0, -1).forEach((category, c) => R.parts[c].push(step.categories[category] || 0));
      for (const trigger of Object.keys(step.triggers)) if (!data.triggers.some(([known]) => known === trigger)) data.triggers.push([trigger, []]);
      for (const [trigger, row] of data.triggers) row[at] = step.triggers[trigger] ?? null;
    }
    async function look(signal) {
      for (let more = true; more; ) {
        const found = await Api.get(Api.path(name, "timeline"), { after: last, limit: AT_ONCE }, signal);
        if (!data) begin(found);
        for (const step of found.steps) add(step);
        ({ last, more } = found);
        left.textContent = found.left_out ? `${num(found.left_out)} older steps are left out; pod inspect ${name} has all.` : "";
      }
      if (!plots.clientWidth) return;
      if (!chart) chart = Charts.charts(data, { plots, readout, tools, open: (step) => open(data.steps.seq[step]) });
      else chart.grew();
    }
    return { look };
  }

  return { context, timeline };
})();
