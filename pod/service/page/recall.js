"use strict";
// The record: the whole session, searched and listed. What is found is told as rows, each with the way to its entry.
const Recall = (() => {
  const { make, button, num } = Dom;
  const KINDS = { user: "Message", assistant: "Agent", reasoning: "Reasoning", tool_call: "Call", tool_result: "Result", context: "From the runtime", order: "From the runtime" };
  const SAID = 4000;

  // The lines of an answer: a row, the place where more begins, or words. A line that introduces the answer to a model is left out.
  function lines(text) {
    return text.split("\n").filter((line) => line && !line.startsWith("Recorded data of this session")).map((line) => {
      try {
        const value = JSON.parse(line);
        if (value && typeof value === "object") return value;
      } catch { /* words */ }
      return { words: line.replace(/^session_history: /, "") };
    });
  }

  // A text in which what was looked for is marked, whatever the case.
  function marked(text, wanted) {
    const where = wanted ? text.toLowerCase().indexOf(wanted.toLowerCase()) : -1;
    // Where small letters are longer than large ones the places would not be the same.
    if (where < 0 || text.toLowerCase().length !== text.length) return [text];
    return [text.slice(0, where), make("mark", {}, text.slice(where, where + wanted.length)), ...marked(text.slice(where + wanted.length), wanted)];
  }

  function panel(home, { name, open, signal }) {
    const wanted = Forms.text({ type: "search", required: "", maxlength: "500", "aria-label": "Search the session's record", placeholder: "Words, whatever the case" });
    const found = make("div", { class: "found", role: "region", "aria-label": "What was found", "aria-live": "polite" });
    const search = make("form", { class: "bar", role: "search" }, wanted, make("button", { type: "submit", class: "main" }, "Search"), button("Windows", () => look({ action: "list_windows" })), button("Items", () => look({ action: "list_items" })));
    search.addEventListener("submit", (event) => { event.preventDefault(); look({ action: "search", query: wanted.value.trim() }); });
    found.append(make("p", { class: "hint" }, "All that was said and done since the session began, also what a compaction took out of the context."));
    home.append(search, found);
    let asked = 0;

    function row(one, query) {
      if (one.words !== undefined) return make("p", { class: "hint" }, one.words);
      const at = one.seq ?? one.first_seq;
      const entry = at === undefined ? [] : [button("#" + at, () => open(at), { class: "seq", "aria-label": `Show entry ${at}` })];
      if (one.type === undefined) {
        return make("h3", { class: "head" }, `Window ${one.window.slice(-12)}` + (one.how ? ` (${one.how.replaceAll("_", " ")})` : ""), make("span", { class: "spacer" }), ...(one.began ? [Entries.clock(one.began)] : []), ...entry);
      }
      const more = [one.tool, one.kind && one.kind.replaceAll("_", " "), one.status, one.characters && `${num(one.characters)} characters`, one.more && `${num(one.more)} more in it`].filter(Boolean).join(" · ");
      return make("article", { class: "hit", "aria-label": `${KINDS[one.type] || one.type}, entry ${at}` },
        make("div", { class: "head" }, make("b", {}, KINDS[one.type] || one.type.replaceAll("_", " ")), make("span", { class: "hint" }, more), make("span", { class: "spacer" }), Entries.clock(one.at), ...entry),
        make("p", { class: "words" }, ...marked((one.text || "").slice(0, SAID), query || "")));
    }

    async function look(query) {
      const number = ++asked;
      if (!query.cursor) found.replaceChildren(make("p", { class: "hint" }, "Searching …"));
      let told;
      try { told = lines((await Api.get(Api.path(name, "history"), query, signal)).text || "Nothing was found."); }
      catch (error) { if (!signal.aborted) told = [{ words: error.message }]; }
      if (number !== asked || !told) return;
      const rows = told.filter((one) => one.cursor === undefined).map((one) => row(one, query.query));
      const next = told.find((one) => one.cursor !== undefined);
      if (query.cursor) found.append(...rows); else found.replaceChildren(...rows);
      if (next) {
        const more = button("Show more", () => { more.remove(); look({ ...query, cursor: next.cursor }); });
        found.append(more);
      }
    }
  }

  return { panel };
})();
