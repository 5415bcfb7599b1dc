"use strict";
(() => {
  const { $, num, money, share, make, button, pairs } = Dom;
  const data = JSON.parse($("data").textContent);
  const R = data.requests, S = data.steps;
  const cut = new Set(S.cut);
  let shown = -1;

  const chart = Charts.charts(data, { plots: $("plots"), readout: $("readout"), tools: $("tools"), open: (step, focus) => show(step, focus) });
  chart.slider.id = "points";

  // -- the entry of a step

  function show(step, focus = false) {
    shown = step;
    $("entry-title").textContent = `Entry ${S.seq[step]}: ${chart.kindOf(step)}`;
    const body = $("entry-body");
    body.replaceChildren(make("p", { class: "words" }, S.at[step] + (chart.isRequest(step) ? "" : "  " + S.words[step])));
    if (chart.isRequest(step)) {
      const i = S.place[step];
      body.append(make("dl", {}, ...pairs([
        ["request", num(R.number[i])], [R.reported[i] ? "input, reported" : "input, estimated", num(R.input[i])],
        ["estimated before", num(R.estimate[i])], ["of the ceiling", share(R.input[i], R.available[i])],
        ["cached", num(R.cached[i])], ["output", num(R.output[i])], ["took", R.seconds[i].toFixed(1) + " s"],
        ["cost", money(R.cost[i])], ["so far", money(R.sum[i])],
        ...data.categories.slice(0, -1).map((name, c) => [name, num(R.parts[c][i])]), ["reserve", num(R.reserve[i])],
      ])));
    }
    body.append(make("pre", { tabindex: "0", "aria-label": "The entry" }, S.entry[step]));
    if (cut.has(step)) body.append(make("p", { class: "hint" }, `Cut here. pod show ${data.pod} --item ${S.seq[step]} prints its items whole.`));
    const after = [];
    for (let next = step + 1; chart.isRequest(step) && next < S.seq.length && !chart.isRequest(next) && after.length < 20; next++) {
      after.push(make("li", {}, button(`${S.seq[next]}  ${S.words[next]}`, () => show(next, true))));
    }
    if (after.length) body.append(make("p", { class: "hint" }, "After it:"), make("ul", {}, ...after));
    body.append(make("p", {}, button("Back to the chart", () => chart.slider.focus())));
    for (const table of tables) table.go(step);
    if (!focus) return;
    const top = $("entry").getBoundingClientRect().top;
    if (chart.narrow() || top < 0 || top > innerHeight / 2) $("entry").scrollIntoView({ block: "start" });
    $("entry").focus({ preventScroll: true });
  }
  $("entry").addEventListener("keydown", (event) => { if (event.key === "Escape") chart.slider.focus(); });

  // -- tables

  const PAGE = 25;
  const tables = [];
  function table(home, label, heads, steps, cells) {
    let rows = steps, first = 0;
    const head = make("tr", {}, ...heads.map(([text, kind]) => make("th", { scope: "col", ...(kind ? { class: "left" } : {}) }, text)));
    const body = make("tbody");
    const where = make("span", { role: "status" });
    const earlier = button("Earlier", () => page(first - PAGE)), later = button("Later", () => page(first + PAGE));
    const bar = make("div", { class: "bar" }, earlier, later, where);
    function page(at) {
      first = Math.max(0, Math.min(at, Math.floor((rows.length - 1) / PAGE) * PAGE));
      const last = Math.min(first + PAGE, rows.length);
      where.textContent = rows.length ? `${num(first + 1)} to ${num(last)} of ${num(rows.length)}` : "none";
      earlier.disabled = first === 0;
      later.disabled = last >= rows.length;
      body.replaceChildren(...rows.slice(first, last).map((step) => {
        const number = make("th", { scope: "row", class: "left" }, button(String(S.seq[step]), () => pick(step), { "aria-label": `Show entry ${S.seq[step]}` }));
        const others = cells(step).map((text, at) => make("td", heads[at + 1][1] ? { class: heads[at + 1][1] } : {}, text));
        return make("tr", step === shown ? { "aria-current": "true" } : {}, number, ...others);
      }));
    }
    home.append(bar, make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, make("table", { "aria-label": label }, make("thead", {}, head), body)));
    tables.push({
      bar,
      go: (step) => { const at = rows.indexOf(step); page(at < 0 ? first : at - (at % PAGE)); },
      only: (chosenSteps) => { rows = chosenSteps; page(0); },
    });
    page(Infinity);
    return tables[tables.length - 1];
  }
  function pick(step) {
    chart.pick(step);
    show(step, true);
  }

  table($("requests"), "Requests",
    [["entry", "left"], ["request"], ["time", "left"], ["input"], ["cached"], ["uncached"], ["output"], ["of ceiling"], ["cost"], ["so far"],
      ...data.categories.map((name) => [name]), ["what it did", "wide"]],
    R.step,
    (step) => {
      const i = S.place[step];
      return [num(R.number[i]), S.at[step].replace("T", " ").replace("Z", ""), num(R.input[i]), num(R.cached[i]), num(Math.max(R.input[i] - R.cached[i], 0)),
        num(R.output[i]), share(R.input[i], R.available[i]), money(R.cost[i]), money(R.sum[i]),
        ...R.parts.map((row) => num(row[i])), num(R.reserve[i]), S.words[step]];
    });
  const all = S.seq.map((_, step) => step);
  const happened = table($("steps"), "What happened",
    [["entry", "left"], ["time", "left"], ["kind", "left"], ["what", "wide"]], all,
    (step) => [S.at[step].replace("T", " ").replace("Z", ""), chart.kindOf(step), S.words[step]]);
  const filter = make("select", { "aria-label": "Which kinds" }, make("option", { value: "" }, "all kinds"),
    ...data.kinds.map(([kind], at) => make("option", { value: String(at) }, kind)));
  filter.addEventListener("change", () => happened.only(filter.value === "" ? all : all.filter((step) => S.kind[step] === +filter.value)));
  happened.bar.append(filter);

  const heads = ["segment", "began by", "from entry", "requests", "largest", "input", "cached", "output", "tools", "prunes", "saved", "cost"];
  const left = (at) => (at < 2 ? { class: "left" } : {});
  const segments = make("table", { "aria-label": "Segments" },
    make("thead", {}, make("tr", {}, ...heads.map((text, at) => make("th", { scope: "col", ...left(at) }, text)))),
    make("tbody", {}, ...data.segments.map((row) => make("tr", {},
      make("th", { scope: "row", class: "left", title: row[0] }, row[0].slice(-12)), make("td", { class: "left" }, row[1]),
      ...row.slice(2, 11).map((value) => make("td", {}, num(value))), make("td", {}, money(row[11]))))));
  $("segments").append(make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Segments" }, segments));

  // -- the head

  $("facts").append(...pairs(data.facts));
  const notes = [];
  if (data.leftOut) notes.push(`${num(data.leftOut)} older steps are left out; pod inspect ${data.pod} --json has all.`);
  if (data.ended) notes.push(data.ended);
  $("notes").textContent = notes.join(" ");

})();
