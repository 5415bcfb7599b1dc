"use strict";
// The pods, with how they stand. Looked at again every few seconds while somebody looks, else twice a minute, for the title.
const List = (() => {
  const { make, button, num, money, short, share } = Dom;
  const EVERY = 3000, UNSEEN = 30000, MOST = 500;
  const ATTENTION = { waiting: 0, running: 1, compacting: 1, queued: 2, answered: 2, yielded: 3, "stopped short": 3, failed: 4, unreadable: 4, limit: 5 };

  const ago = (at) => {
    const gone = Math.max((Date.now() - Date.parse(at)) / 1000, 0);
    if (!at || Number.isNaN(gone)) return "-";
    if (gone < 60) return Math.round(gone) + " s ago";
    if (gone < 3600) return Math.round(gone / 60) + " min ago";
    if (gone < 172800) return Math.round(gone / 3600) + " h ago";
    return Math.round(gone / 86400) + " days ago";
  };
  const status = (word) => make("span", { class: "status s-" + word.replaceAll(" ", "-") }, word);

  // How full a context is, with the mark where something is done about it.
  function bar(tokens, available, trigger) {
    if (!tokens || !available) return make("span", { class: "hint" }, "-");
    const full = Math.min(tokens / available, 1);
    const words = `${share(tokens, available)} full: ${num(tokens)} of ${num(available)} tokens` + (trigger ? `, trigger at ${num(trigger)}` : "");
    const made = make("span", { class: "meter", role: "img", "aria-label": words, title: words });
    const fill = make("span", { class: "fill" + (trigger && tokens >= trigger ? " over" : "") });
    fill.style.width = 100 * full + "%";
    made.append(fill);
    if (trigger) {
      const mark = make("span", { class: "mark" });
      mark.style.left = Math.min(100 * trigger / available, 100) + "%";
      made.append(mark);
    }
    return make("span", { class: "metered" }, made, make("span", { class: "amount" }, short(tokens)));
  }

  const address = (name) => "#/pod/" + name.split("/").map(encodeURIComponent).join("/");

  function list(home, { mayOperate, failed }) {
    const wanted = Forms.text({ type: "search", placeholder: "Name, status or model", "aria-label": "Only those that hold" });
    const order = Forms.choice([["attention", "Attention first"], ["recent", "Newest activity first"], ["name", "By name"], ["cost", "Most expensive first"]], { "aria-label": "Order" });
    const count = make("span", { role: "status", class: "hint" });
    const body = make("tbody"), none = make("p", { class: "hint none" }, "Looking for pods …");
    const heads = [["Pod", "left"], ["Status", "left"], ["Context", "left"], ["Requests", ""], ["Cost", ""], ["Model", "left"], ["Last activity", "left"]];
    const table = make("table", { "aria-label": "Pods", class: "pods" },
      make("thead", {}, make("tr", {}, ...heads.map(([words, kind]) => make("th", { scope: "col", class: kind }, words)))), body);
    const create = button("New pod", () => make_(failed), { class: "main" });
    create.disabled = !mayOperate;
    if (!mayOperate) create.title = "This token may look only";
    home.append(make("div", { class: "bar" }, make("h1", {}, "Pods"), create, make("span", { class: "spacer" }), wanted, order, count), make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pods" }, none, table));
    table.hidden = true;
    let rows = [], open = "", timer = 0, closed = false;
    const made = new Map();

    const shown = () => {
      const words = wanted.value.trim().toLowerCase();
      const found = rows.filter((row) => !words || `${row.name} ${row.status} ${row.model}`.toLowerCase().includes(words));
      const by = {
        attention: (a, b) => (ATTENTION[a.status] ?? 6) - (ATTENTION[b.status] ?? 6) || (b.at > a.at ? 1 : -1),
        recent: (a, b) => (b.at > a.at ? 1 : b.at < a.at ? -1 : 0),
        name: (a, b) => a.name.localeCompare(b.name),
        cost: (a, b) => (b.cost_usd || 0) - (a.cost_usd || 0),
      };
      return found.sort(by[order.value]);
    };
    // Rows are kept, so that what has the focus keeps it.
    function render() {
      const found = shown();
      const kept = new Set(found.map((row) => row.name));
      for (const [name, row] of made) if (!kept.has(name)) { row.remove(); made.delete(name); }
      found.forEach((row, index) => {
        let line = made.get(row.name);
        if (!line) {
          const link = make("a", { href: address(row.name), title: row.name }, row.name);
          line = make("tr", {}, make("th", { scope: "row", class: "left" }, link), ...heads.slice(1).map(([, kind]) => make("td", { class: kind })));
          made.set(row.name, line);
        }
        const [, state, full, requests, cost, model, last] = line.children;
        state.replaceChildren(status(row.status));
        full.replaceChildren(bar(row.tokens, row.available, row.trigger));
        requests.textContent = num(row.requests) + (row.partial ? "+" : "");
        cost.textContent = row.status === "unreadable" ? row.problem.slice(0, 80) : money(row.cost_usd);
        model.textContent = row.model;
        last.textContent = ago(row.at);
        last.title = row.at;
        if (row.name === open) line.setAttribute("aria-current", "true"); else line.removeAttribute("aria-current");
        if (body.children[index] !== line) body.insertBefore(line, body.children[index] || null);
      });
      const all = `${num(rows.length)} ${rows.length === 1 ? "pod" : "pods"}`;
      count.textContent = found.length === rows.length ? all : `${num(found.length)} of ${all}`;
      table.hidden = !found.length;
      none.hidden = !table.hidden;
      none.textContent = rows.length ? "None of the pods holds these words in its name, status or model." : mayOperate
        ? "No pods yet. A pod is an agent with its session: “New pod” makes one and gives it its first task."
        : "No pods yet. A pod is an agent with its session; this token may look at those that others make.";
      const waiting = rows.filter((row) => row.status === "waiting").length;
      document.title = (waiting ? `(${waiting}) ` : "") + (open ? open + " · " : "") + "Pods";
    }
    async function look() {
      clearTimeout(timer);
      const began = performance.now();
      if (!closed) {
        try {
          const found = [];
          for (let after = ""; after !== null; ) {
            const page = await Api.get("pods", { after, limit: MOST });
            found.push(...page.pods);
            after = page.next;
          }
          rows = found;
          if (!closed) render();
          failed(null);
        } catch (error) { failed(error); }
      }
      // A home that is slow to look at is looked at less often.
      if (!closed) timer = setTimeout(look, Math.max(document.hidden ? UNSEEN : EVERY, 5 * (performance.now() - began)));
    }
    const again = () => { if (!document.hidden) look(); };
    wanted.addEventListener("input", render);
    order.addEventListener("change", render);
    document.addEventListener("visibilitychange", again);
    look();
    return {
      choose: (name) => { open = name; render(); },
      close: () => { closed = true; clearTimeout(timer); document.removeEventListener("visibilitychange", again); },
    };
  }

  let latest = "";  // the manifest that the last one was made from
  async function make_(failed) {
    let names, said;
    try { ({ manifests: names, descriptions: said } = await Api.get("manifests")); } catch (error) { return failed(error); }
    const manifest = Forms.choice(names.map((name) => [name, name]), { required: "" });
    if (names.includes(latest)) manifest.value = latest;
    const about = Forms.field("Manifest", manifest, "-");
    const describe = () => { about.lastElementChild.textContent = said[manifest.value] || "It says nothing of itself."; };
    manifest.addEventListener("change", describe);
    if (names.length) describe();
    const name = Forms.text({ maxlength: "515" }), task = Forms.area({ rows: "6" });
    const fields = names.length
      ? [about, Forms.field("Name", name, "How it is found again: letters, digits, dots and dashes, groups with / between them. Left out, it gets one."), Forms.field("Task", task, "Left out, it waits for a first message.")]
      : [make("p", {}, "This service offers no manifests: ", make("code", {}, "pod serve --manifests DIR"), " says where they lie.")];
    const found = await Forms.ask("New pod", fields, "Make it", async () => {
      if (!names.length) throw new Error("There is nothing to make one from.");
      const body = { manifest: manifest.value };
      latest = manifest.value;
      if (name.value.trim()) body.name = name.value.trim();
      if (task.value.trim()) body.task = task.value;
      return Api.post("pods", body);
    });
    if (found) location.hash = address(found.pod);
  }

  return { list, bar, status, address };
})();
