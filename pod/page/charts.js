"use strict";
// A session over its requests: what each held, what bounded it, and what happened between them.
//
// `data` holds requests and steps as columns, which may grow: `grew` draws what came. `open` shows a step.
const Charts = (() => {
  const { num, money, share, short, make, draw, button } = Dom;
  const SHAPES = [
    (x, y) => `M${x - 4} ${y - 4}L${x + 4} ${y - 4}L${x} ${y + 4}Z`,
    (x, y) => `M${x} ${y - 5}L${x + 5} ${y}L${x} ${y + 5}L${x - 5} ${y}Z`,
    (x, y) => `M${x - 1.5} ${y - 5}h3v10h-3Z`,
    (x, y) => `M${x - 4} ${y - 4}h8v8h-8Z`,
    (x, y) => `M${x - 5} ${y - 3}l2 -2l3 3l3 -3l2 2l-3 3l3 3l-2 2l-3 -3l-3 3l-2 -2l3 -3Z`,
  ];

  // A line, a shape or a patch of colour, as a chart draws it.
  const key = (name) => {
    const svg = draw("svg", { viewBox: "0 0 18 10", "aria-hidden": "true" });
    const mark = /^mark(\d)$/.exec(name);
    if (mark) svg.append(draw("path", { class: name, d: SHAPES[mark[1]](9, 5) }));
    else if (/^(c\d|cached|uncached)$/.test(name)) svg.append(draw("rect", { class: name, width: 18, height: 10 }));
    else svg.append(draw("path", { class: name, d: "M0 5H18" }));
    return svg;
  };

  const narrow = () => !matchMedia("(min-width: 1200px)").matches;

  function charts(data, { plots, readout, tools, open }) {
    const R = data.requests, S = data.steps;
    const kindOf = (step) => data.kinds[S.kind[step]][0];
    const markOf = (step) => data.kinds[S.kind[step]][1];
    const isRequest = (step) => kindOf(step) === "request.completed";
    const mobile = () => plots.clientWidth < 520;
    const points = [];
    const view = { from: 0, to: 1 };
    let N = 0, read = 0, chosen = 0, named = -1;

    const say = (step) => {
      if (!isRequest(step)) return `Entry ${S.seq[step]}, ${kindOf(step)}: ${S.words[step]}`;
      const i = S.place[step];
      const how = R.reported[i] ? "reported" : "estimated";
      const of = R.available[i] ? ` (${share(R.input[i], R.available[i])} of the ceiling)` : "";
      return `Request ${num(R.number[i])}, entry ${S.seq[step]}: ${num(R.input[i])} tokens in, ${how}${of}, ` +
        `${num(R.cached[i])} cached, ${num(R.output[i])} out, ${money(R.cost[i])}; so far ${money(R.sum[i])}`;
    };

    const LEFT = 78, RIGHT = 8, LANE = 16;
    const lanes = data.marks.length * LANE;

    // What is drawn: at most one request for each pixel, the largest of those that fall on it.
    const columns = (width) => {
      const first = Math.max(Math.floor(view.from), 0), last = Math.min(Math.ceil(view.to), N);
      const found = [];
      const step = Math.max((view.to - view.from) / width, 1);
      for (let at = first; at < last; ) {
        const end = Math.min(Math.max(at + 1, Math.floor(view.from + (Math.floor((at - view.from) / step) + 1) * step)), last);
        let best = at;
        for (let i = at + 1; i < end; i++) if (R.input[i] > R.input[best]) best = i;
        found.push([best, at, end]);
        at = end;
      }
      return found;
    };
    const line = (cols, value, x, y) => {
      let path = "", open = false;
      for (const [i, from, to] of cols) {
        const v = value(i);
        if (v === null || v === undefined) { open = false; continue; }
        path += `${open ? "L" : "M"}${x(from)} ${y(v)}L${x(to)} ${y(v)}`;
        open = true;
      }
      return path;
    };
    const area = (cols, low, high, x, y) => {
      let there = "", back = "";
      for (const [i, from, to] of cols) {
        there += `${there ? "L" : "M"}${x(from)} ${y(high(i))}L${x(to)} ${y(high(i))}`;
        back = `L${x(to)} ${y(low(i))}L${x(from)} ${y(low(i))}` + back;
      }
      return there && there + back + "Z";
    };
    const top = (cols, ...values) => {
      let most = 0;
      for (const [i] of cols) for (const value of values) most = Math.max(most, value(i) || 0);
      return most || 1;
    };
    const even = (raw, steps) => {
      const base = 10 ** Math.floor(Math.log10(raw));
      return steps.map((k) => k * base).find((k) => k >= raw * 0.999);
    };
    const ticks = (most) => {
      const step = even(most / 4, [1, 2, 2.5, 5, 10]);
      return Array.from({ length: Math.floor(most / step + 1.0001) }, (_, n) => n * step);
    };

    const sums = [];
    const part = (c, i) => {
      for (let at = sums.length; at <= i; at++) {
        let sum = 0;
        sums.push(data.categories.slice(0, -1).map((_, c) => (sum += R.parts[c][at])));
      }
      return c < 0 ? 0 : sums[i][c];
    };
    const CHARTS = [
      {
        title: "Occupancy (tokens of each request)", marks: true, height: 220,
        legend: [["occ", "request"], ["ceiling", "ceiling"]],
        most: (cols) => top(cols, (i) => R.input[i], (i) => R.available[i], ...data.triggers.map(([, row]) => (i) => row[i])),
        paths: (cols, x, y) => [
          ["under", area(cols, () => 0, (i) => R.input[i], x, y)],
          ["occ", line(cols, (i) => R.input[i], x, y)],
          ["ceiling", line(cols, (i) => R.available[i], x, y)],
          ...data.triggers.map(([, row], t) => ["trigger" + (t % 3), line(cols, (i) => row[i], x, y)]),
        ],
      },
      {
        title: "What each request held (estimates, scaled to its tokens), and the reserve below the window", height: 200,
        legend: data.categories.map((name, c) => ["c" + c, name]),
        most: (cols) => top(cols, (i) => R.input[i], (i) => R.window[i]),
        paths: (cols, x, y) => [
          ...data.categories.slice(0, -1).map((_, c) => ["c" + c, area(cols, (i) => part(c - 1, i), (i) => part(c, i), x, y)]),
          ["c6", area(cols.filter(([i]) => R.window[i]), (i) => R.available[i], (i) => R.window[i], x, y)],
        ],
      },
      {
        title: "Input: cached and uncached (tokens)", height: 150,
        legend: [["cached", "read from the provider's cache"], ["uncached", "not cached"]],
        most: (cols) => top(cols, (i) => R.input[i]),
        paths: (cols, x, y) => [
          ["cached", area(cols, () => 0, (i) => Math.min(R.cached[i], R.input[i]), x, y)],
          ["uncached", area(cols, (i) => Math.min(R.cached[i], R.input[i]), (i) => R.input[i], x, y)],
        ],
      },
      {
        title: "Cost so far (US dollars, compactions included)", height: 120,
        legend: [["money", "running sum of what is known"]],
        most: (cols) => top(cols, (i) => R.sum[i]), unit: (v) => "$" + +v.toPrecision(3),
        paths: (cols, x, y) => [["money", line(cols, (i) => R.sum[i], x, y)]],
      },
    ];

    for (const chart of CHARTS) {
      chart.plot = make("div", { class: "plot" });
      chart.said = make("ul", { class: "legend" });
      plots.append(make("figure", {}, make("figcaption", {}, chart.title), chart.said, chart.plot));
      chart.plot.addEventListener("click", (event) => { choose(nearest(chart, event)); if (points.length) open(points[chosen], narrow()); });
      chart.plot.addEventListener("pointermove", (event) => {
        if (points.length) readout.textContent = say(points[nearest(chart, event)]);
      });
      chart.plot.addEventListener("pointerleave", tell);
    }
    const slider = CHARTS[0].plot;
    for (const [key, value] of Object.entries({
      tabindex: "0", role: "slider", "aria-label": "Points of the session: requests, prunes, compactions, segments, ends of runs",
      "aria-valuemin": "1",
    })) slider.setAttribute(key, value);

    const across = (width) => (place) => Math.round((LEFT + ((place - view.from) / (view.to - view.from)) * (width - LEFT - RIGHT)) * 10) / 10;

    function legends() {
      for (const chart of CHARTS) {
        const more = chart.marks ? data.triggers.map(([name], t) => ["trigger" + (t % 3), name]) : [];
        chart.said.replaceChildren(...[...chart.legend, ...more].map(([name, text]) => make("li", {}, key(name), text)));
      }
      named = data.triggers.length;
    }

    function render() {
      if (named !== data.triggers.length) legends();
      slider.setAttribute("aria-valuemax", String(Math.max(points.length, 1)));
      for (const chart of CHARTS) {
        const width = Math.max(plots.clientWidth, 200);
        const above = chart.marks ? lanes + 4 : 8;
        const height = (mobile() ? chart.height * 0.85 : chart.height) + above + 18;
        const x = across(width);
        const cols = columns(width - LEFT - RIGHT);
        const most = chart.most(cols) * 1.04;
        const y = (v) => Math.round((height - 18 - (v / most) * (height - 18 - above)) * 10) / 10;
        const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true", focusable: "false" });
        for (const v of ticks(most / 1.04)) {
          svg.append(draw("path", { class: "grid", d: `M${LEFT} ${y(v)}H${width - RIGHT}` }));
          svg.append(draw("text", { x: LEFT - 6, y: y(v) + 4, "text-anchor": "end" }, (chart.unit || short)(v)));
        }
        const every = even(Math.max((view.to - view.from) / (mobile() ? 4 : 8), 1), [1, 2, 5, 10]);
        for (let i = Math.max(Math.floor(view.from), 0); i < Math.min(view.to, N); i++) {
          if (R.number[i] % every && !(N < every)) continue;
          svg.append(draw("text", { x: Math.min(x(i + 0.5), width - 16), y: height - 4, "text-anchor": "middle" }, num(R.number[i])));
        }
        if (N) svg.append(draw("text", { x: LEFT - 6, y: height - 4, "text-anchor": "end" }, "request"));
        const inside = draw("svg", { x: LEFT, y: 0, width: width - LEFT - RIGHT, height, viewBox: `${LEFT} 0 ${width - LEFT - RIGHT} ${height}`, preserveAspectRatio: "none" });
        for (const [name, path] of chart.paths(cols, x, y)) if (path) inside.append(draw("path", { class: name, d: path }));
        marks(chart, svg, inside, x, height);
        inside.append(draw("path", { class: "cursor" }));
        if (chart.marks) inside.append(draw("circle", { class: "dot", r: 5, visibility: "hidden" }));
        svg.append(inside, draw("path", { class: "axis", d: `M${LEFT} ${above}V${height - 18}H${width - RIGHT}` }));
        chart.plot.replaceChildren(svg);
        Object.assign(chart, { x, y, width, tall: height, svg });
      }
      point();
    }

    // One row for each kind of mark, one shape for each pixel; segments cut all charts.
    function marks(chart, svg, inside, x, height) {
      const paths = data.marks.map(() => ""), taken = data.marks.map(() => new Set());
      let cuts = "";
      for (const step of points) {
        const row = data.marks.indexOf(markOf(step)), place = S.place[step];
        if (row < 0 || place < view.from || place > view.to) continue;
        const at = x(place), spot = Math.round(at);
        if (taken[row].has(spot)) continue;
        taken[row].add(spot);
        if (chart.marks) paths[row] += SHAPES[row](Math.min(Math.max(at, LEFT + 5), chart.width ? x(view.to) - 5 : at), (row + 0.5) * LANE);
        if (data.marks[row] === "segment") cuts += `M${at} ${chart.marks ? lanes : 8}V${height - 18}`;
      }
      if (cuts) inside.prepend(draw("path", { class: "cut", d: cuts }));
      if (!chart.marks) return;
      data.marks.forEach((name, row) => {
        svg.append(draw("text", { x: LEFT - 6, y: (row + 0.5) * LANE + 4, "text-anchor": "end" }, name));
        inside.append(draw("path", { class: "lane", d: `M${LEFT} ${(row + 1) * LANE}H${x(view.to)}` }));
        if (paths[row]) inside.append(draw("path", { class: "mark" + row, d: paths[row] }));
      });
    }

    const middle = (step) => S.place[step] + (isRequest(step) ? 0.5 : 0);

    // The point under the pointer: in a row of marks the nearest mark of that row, below it the nearest request.
    function nearest(chart, event) {
      const box = chart.svg.getBoundingClientRect();
      const px = ((event.clientX - box.left) * chart.width) / box.width, py = event.clientY - box.top;
      const row = chart.marks && py < lanes ? data.marks[Math.floor(py / LANE)] : null;
      const search = (fits) => {
        let best = -1, least = Infinity;
        points.forEach((step, at) => {
          if (!fits(step)) return;
          const off = Math.abs(chart.x(middle(step)) - px);
          if (off < least) [best, least] = [at, off];
        });
        return best;
      };
      const found = row ? search((step) => markOf(step) === row) : -1;
      const request = found < 0 ? search(isRequest) : found;
      return request < 0 ? search(() => true) : request;
    }

    function point() {
      const step = points[chosen];
      if (step === undefined) return tell();
      for (const chart of CHARTS) {
        const at = chart.x(middle(step));
        chart.svg.querySelector(".cursor").setAttribute("d", `M${at} 0V${chart.tall - 18}`);
      }
      const dot = slider.querySelector(".dot");
      dot.setAttribute("visibility", "visible");
      dot.setAttribute("cx", CHARTS[0].x(middle(step)));
      dot.setAttribute("cy", isRequest(step) ? CHARTS[0].y(R.input[S.place[step]]) : (data.marks.indexOf(markOf(step)) + 0.5) * LANE);
      slider.setAttribute("aria-valuenow", String(chosen + 1));
      slider.setAttribute("aria-valuetext", say(step));
      tell();
    }

    function tell() {
      readout.textContent = points.length ? say(points[chosen]) : "Nothing was asked of a model yet.";
    }

    function choose(at) {
      if (!points.length) return;
      chosen = Math.min(Math.max(at, 0), points.length - 1);
      const place = middle(points[chosen]), span = view.to - view.from;
      if (place < view.from || place > view.to) look(place - span / 2, span); else point();
    }

    function look(from, span) {
      const width = Math.min(Math.max(Math.round(span), Math.min(8, N)), Math.max(N, 1));
      view.from = Math.min(Math.max(Math.round(from), 0), Math.max(N, 1) - width);
      view.to = view.from + width;
      render();
    }
    function zoom(factor) {
      const place = points.length ? middle(points[chosen]) : 0, span = (view.to - view.from) * factor;
      look(place - span / 2, span);
    }

    slider.addEventListener("keydown", (event) => {
      const moves = {
        ArrowLeft: chosen - 1, ArrowDown: chosen - 1, ArrowRight: chosen + 1, ArrowUp: chosen + 1,
        PageUp: chosen + 10, PageDown: chosen - 10, Home: 0, End: points.length - 1,
      };
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key in moves) choose(moves[event.key]);
      else if (event.key === "Enter" || event.key === " ") { if (points.length) open(points[chosen], true); }
      else if (event.key === "+" || event.key === "=") zoom(0.5);
      else if (event.key === "-") zoom(2);
      else return;
      event.preventDefault();
    });
    tools.append(
      button("Previous", () => choose(chosen - 1)), button("Next", () => choose(chosen + 1)),
      button("Show entry", () => points.length && open(points[chosen], true)),
      button("Zoom in", () => zoom(0.5)), button("Zoom out", () => zoom(2)), button("Whole session", () => look(0, N)),
    );
    // Takes over what came. A view of the whole, and one that shows the end, goes on to show it; so does the newest point.
    function grew() {
      const before = N, atEnd = chosen >= points.length - 1, whole = view.from === 0 && view.to >= before;
      for (; read < S.seq.length; read++) if (isRequest(read) || markOf(read)) points.push(read);
      N = R.step.length;
      if (atEnd) chosen = Math.max(points.length - 1, 0);
      if (whole) view.to = Math.max(N, 1);
      else if (view.to >= before) Object.assign(view, { from: view.from + N - before, to: N });
      render();
    }

    grew();
    let waiting = 0;
    const watch = new ResizeObserver(() => {
      if (plots.clientWidth === CHARTS[0].width || waiting) return;
      waiting = requestAnimationFrame(() => { waiting = 0; render(); });
    });
    watch.observe(plots);
    return { slider, say, grew, narrow, kindOf, isRequest, pick: (step) => { const at = points.indexOf(step); if (at >= 0) choose(at); } };
  }

  return { charts, key };
})();
