"use strict";
// One pod: its transcript as it goes on, how it stands, its context, its figures, all its events, its record.
const PodView = (() => {
  const { make, button, num } = Dom;
  const TABS = [["transcript", "Transcript"], ["state", "State"], ["context", "Context"], ["figures", "Figures"], ["events", "Events"], ["record", "Record"]];
  const STATE_CHANGES = /^(run|approval|input|compaction|segment|tool|request\.completed|mcp|log|permission)/;
  const FIGURE_CHANGES = /^(request\.completed|context|compaction|segment|run\.ended)/;
  const SOON = 500;
  // Messages that were begun and not sent, by their pods.
  const drafts = new Map();
  const when = (facts) => (facts.approvals?.length ? "it is taken once the questions are answered" : /^(running|compacting|queued)$/.test(facts.status) ? "it joins at the next request" : "a run begins with it");

  // Does a thing once it is quiet, or has not been for a while: once for all who asked meanwhile, and not twice at a time. What
  // takes long is done less often.
  function gently(what) {
    let timer = 0, latest = 0, busy = false, again = false, took = 0;
    const run = async () => {
      clearTimeout(timer);
      timer = latest = 0;
      if (busy) { again = true; return; }
      busy = true;
      const began = performance.now();
      try { await what(); } finally { busy = false; took = performance.now() - began; }
      if (again) { again = false; ask(); }
    };
    const ask = (wait = Math.max(SOON, 2 * took)) => {
      const now = performance.now();
      latest = latest || now + 4 * wait;
      clearTimeout(timer);
      timer = setTimeout(run, Math.max(Math.min(wait, latest - now), 0));
    };
    return { ask, now: run, end: () => clearTimeout(timer) };
  }

  function view(home, name, { role, failed, say, tell, wide, again, another }) {
    const mayOperate = role !== "read";
    const ended = new AbortController();
    const title = make("h1", { tabindex: "-1", title: name }, name), status = make("span"), full = make("span"), link = make("span", { class: "hint", role: "status" });
    const banner = make("p", { class: "banner", role: "status" });
    banner.hidden = true;
    const tabs = make("div", { class: "tabs", role: "tablist", "aria-label": "Views of " + name });
    const panels = new Map(), buttons = new Map();
    let active = "transcript", facts = null, waiting = 0, loading = true;

    for (const [key, words] of TABS) {
      const tab = button(words, () => choose(key), { role: "tab", id: "tab-" + key, "aria-controls": "panel-" + key });
      const panel = make("section", { role: "tabpanel", id: "panel-" + key, "aria-labelledby": "tab-" + key, class: "panel " + key });
      tabs.append(tab);
      buttons.set(key, tab);
      panels.set(key, panel);
    }
    tabs.addEventListener("keydown", (event) => {
      const keys = TABS.map(([key]) => key).filter((key) => !buttons.get(key).hidden);
      const moves = { ArrowLeft: -1, ArrowRight: 1 };
      const at = keys.indexOf(active);
      const to = event.key === "Home" ? 0 : event.key === "End" ? keys.length - 1 : event.key in moves ? (at + moves[event.key] + keys.length) % keys.length : -1;
      if (to < 0) return;
      event.preventDefault();
      choose(keys[to]);
      buttons.get(keys[to]).focus();
    });

    const act = async (words, what) => {
      try { const found = await what(); if (words) tell(words); failed(null); refresh.ask(150); return found; }
      catch (error) { failed(error); return null; }
    };

    // -- panels

    const entry = (seq) => Api.get(Api.path(name, "entries", String(seq)), { whole: "true" });
    const show = (maker, label, panel) => {
      const held = {};
      held.list = Scroller.scroller(panels.get(panel), label, maker((row) => held.list.changed(row, true), { entry, shown: opened, answer, mayAnswer: mayOperate }));
      return held.list;
    };
    const wantedEvents = Forms.text({ type: "search", placeholder: "Only events that hold these words", "aria-label": "Only events that hold" });
    panels.get("events").prepend(wantedEvents);
    const transcript = show(Entries.transcript, "Transcript", "transcript");
    const feed = show(Entries.feed, "Events", "events");
    const story = Story.story();
    const every = [], called = new Map();
    const fits = (row) => {
      const words = wantedEvents.value.trim().toLowerCase();
      return !words || `${row.event.type} ${row.said || Story.inALine(row.event) || ""}`.toLowerCase().includes(words);
    };
    wantedEvents.addEventListener("input", () => { feed.clear(); feed.add(every.filter(fits)); });
    const toEnd = button("Go to the end", () => transcript.end(), { class: "toend" });
    toEnd.hidden = true;
    const hollow = make("p", { class: "hint hollow" }, "Nothing has been said yet: the first message begins its work.");
    hollow.hidden = true;
    panels.get("transcript").append(toEnd, hollow);
    transcript.view.addEventListener("scroll", () => { toEnd.hidden = transcript.follows; }, { passive: true });

    const state = State.state(panels.get("state"), { name, role, act, changed: (words) => { tell(words); again(); }, gone: (open) => {
      if (open > waiting) say(`${open} ${open === 1 ? "question waits" : "questions wait"} for an answer.`);
      waiting = open;
      banner.hidden = !open;
      banner.replaceChildren(`${num(open)} ${open === 1 ? "question waits" : "questions wait"} for an answer. `, button(mayOperate ? "Answer" : "Look at it", () => answer()));
    } });
    function answer(label) { if (!wide.matches) choose("state"); state.focus(label); }
    const context = Figures.context(panels.get("context"), { name, mayOperate, act });
    const figures = Figures.timeline(panels.get("figures"), { name, open: opened });

    async function opened(seq) {
      const text = make("pre", { tabindex: "0", "aria-label": "The entry" }, "Reading …");
      Forms.show(`Entry ${seq}`, [text], state.may.operate ? [["Fork from here …", () => state.forked(seq)], ["Rewind to here …", () => state.rewound(seq)]] : []);
      try {
        const found = await entry(seq);
        text.textContent = `${found.at}\n${found.text}${found.cut ? "\n…" : ""}`;
      } catch (error) { text.textContent = error.message; }
    }

    Recall.panel(panels.get("record"), { name, open: opened, signal: ended.signal });

    // -- what is said to the agent

    const text = Forms.area({ rows: "2", placeholder: mayOperate ? "A message for the agent" : "This token may look only", "aria-label": "Message", "aria-keyshortcuts": "Control+Enter", maxlength: "900000" });
    const send = make("button", { type: "submit", class: "main", title: "Control+Enter" }, "Send");
    text.disabled = send.disabled = !mayOperate;
    text.value = drafts.get(name) || "";
    text.addEventListener("input", () => drafts.set(name, text.value));
    const composer = make("form", { class: "composer" }, text, send);
    composer.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!text.value.trim() || send.disabled) return;
      send.disabled = true;
      const said = text.value;
      const found = await act(waiting ? "It was left for the agent, which takes it once the questions are answered." : "It was left for the agent.", async () => {
        state.sent(said);
        try { return await Api.post(Api.path(name, "messages"), { text: said }); } catch (error) { state.arrived(said); throw error; }
      });
      if (found) { text.value = ""; drafts.delete(name); transcript.end(); }
      send.disabled = false;
    });
    text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) composer.requestSubmit(); });

    home.append(make("div", { class: "podhead" }, make("a", { href: "#/", class: "back" }, "All pods"), title, status, full, make("span", { class: "spacer" }), link), banner, tabs, make("div", { class: "panels" }, ...panels.values()), composer);

    // -- tabs: where there is room, the state stands beside them all

    function choose(key) {
      active = key;
      arrange();
      buttons.get(key).scrollIntoView({ block: "nearest", inline: "nearest" });
      if (key === "context") freshContext.now();
      if (key === "figures") freshFigures.now();
      transcript.layout();
      feed.layout();
    }
    function arrange() {
      const beside = wide.matches;
      home.classList.toggle("beside", beside);
      buttons.get("state").hidden = beside;
      if (beside && active === "state") active = "transcript";
      for (const [key, panel] of panels) {
        const on = key === active;
        panel.hidden = !on && !(beside && key === "state");
        buttons.get(key).setAttribute("aria-selected", String(on));
        buttons.get(key).setAttribute("tabindex", on ? "0" : "-1");
      }
      if (beside) { panels.get("state").removeAttribute("aria-labelledby"); panels.get("state").setAttribute("aria-label", "State"); panels.get("state").setAttribute("role", "complementary"); }
      else { panels.get("state").setAttribute("aria-labelledby", "tab-state"); panels.get("state").setAttribute("role", "tabpanel"); }
    }
    wide.addEventListener("change", arrange, { signal: ended.signal });
    arrange();

    // -- what is looked at again as things happen

    const quiet = (what) => async () => { try { await what(); } catch (error) { if (!ended.signal.aborted && error.name !== "AbortError") refused(error); } };
    // A pod that is not there, or no longer, has nothing to look at.
    function refused(error) {
      if (error.status !== 404) return failed(error);
      ended.abort();
      failed(null);
      home.className = "list";
      home.replaceChildren(make("section", { class: "card none" }, make("h1", { tabindex: "-1" }, "There is no such pod"),
        make("p", {}, "No pod here is named ", make("b", {}, name), ": it may have been removed, or have another name."), make("a", { href: "#/" }, "All pods")));
      home.querySelector("h1").focus({ preventScroll: true });
    }
    const refresh = gently(quiet(async () => {
      const now = await Api.get(Api.path(name), {}, ended.signal);
      if (ended.signal.aborted) return;
      if (facts && (facts.session !== now.session || facts.created !== now.created)) return another();
      facts = now;
      status.replaceChildren(List.status(facts.status));
      if (facts.tokens) full.replaceChildren(List.bar(facts.tokens, facts.available, facts.trigger));
      state.show(facts);
      if (mayOperate) text.placeholder = `A message for the agent: ${when(facts)} (Control+Enter sends)`;
      hollow.hidden = facts.status !== "new" || transcript.rows.some((row) => row.kind !== "note");
    }));
    const freshContext = gently(quiet(async () => { if (active === "context") await context.look(ended.signal); }));
    const freshFigures = gently(quiet(async () => { if (active === "figures") await figures.look(ended.signal); }));

    function lot(events) {
      const { added, changed, dropped } = story.take(events);
      if (dropped) transcript.drop(dropped);
      transcript.add(added);
      for (const row of changed) transcript.changed(row);
      for (const event of events) {
        if (event.type === "input.received") state.arrived(event.text);
        for (const call of event.type === "request.completed" ? event.calls : []) called.set(call.call_id, call.name);
      }
      const rows = events.filter((event) => event.type !== "text.delta").map((event) => ({ seq: event.seq, at: event.at, event, said: event.type === "tool.started" ? called.get(event.call_id) : undefined }));
      every.push(...rows);
      feed.add(rows.filter(fits));
      let state_ = false, figures_ = false;
      for (const event of events) {
        if (event.type === "request.started") {
          state.doing(`Request ${num(event.request)} is under way: ${num(event.tokens)} of ${num(event.ceiling)} tokens.`);
          full.replaceChildren(List.bar(event.tokens, event.ceiling, event.trigger));
        } else if (event.type === "compaction.progress") state.doing(`Compaction: ${event.stage.replaceAll("_", " ")}`);
        else if (["request.completed", "run.ended", "run.yielded", "compaction.completed", "compaction.failed"].includes(event.type)) state.doing("");
        state_ = state_ || STATE_CHANGES.test(event.type);
        figures_ = figures_ || FIGURE_CHANGES.test(event.type);
        if (!loading) { const words = Story.announced(event); if (words) say(words); }
      }
      if (state_) refresh.ask();
      if (figures_) { freshContext.ask(); freshFigures.ask(); }
    }

    refresh.now();
    setTimeout(() => { loading = false; }, 2500);
    Api.follow(name, 0, {
      lot,
      state: (now) => { link.textContent = { live: "live", connecting: "connecting …", waiting: "no connection: trying again" }[now]; link.dataset.state = now; if (now === "live") refresh.ask(); },
      refused: (error) => { if (error.kind === "another_pod") return another(); link.textContent = "closed"; refused(error); },
    }, ended.signal);
    title.focus({ preventScroll: true });
    return { close: () => { ended.abort(); refresh.end(); freshContext.end(); freshFigures.end(); transcript.close(); feed.close(); } };
  }

  return { view };
})();
