"use strict";
// Rows as elements: of the transcript and of the feed of events.
const Entries = (() => {
  const { make, button, num } = Dom;
  const LONG = 3000;

  const clock = (at) => make("time", { datetime: at }, (at || "").slice(11, 19));
  const title = (at) => (at || "").slice(0, 19).replace("T", " ") + " UTC";

  // A text, cut where it is long until a reader asks for the rest.
  function prose(row, again, kind = "p") {
    const cut = row.text.length > LONG && !row.whole;
    const made = [make(kind, { class: "words" }, cut ? row.text.slice(0, LONG) + " …" : row.text)];
    if (cut) made.push(button(`Show all ${num(row.text.length)} characters`, () => { row.whole = true; again(row); }));
    return made;
  }

  // A difference, each line with its sign; the sign stays, so that nothing depends on colour alone.
  function difference(text) {
    const lines = text.split("\n").map((line) => {
      const kind = /^(\+\+\+|---|@@)/.test(line) ? "where" : line.startsWith("+") ? "more" : line.startsWith("-") ? "less" : "";
      return make("span", kind ? { class: kind } : {}, line + "\n");
    });
    return make("pre", { class: "difference", tabindex: "0", "aria-label": "What would change" }, ...lines);
  }

  const brief = (text) => {
    let value = text;
    try {
      const parsed = JSON.parse(text);
      if (parsed && typeof parsed === "object") value = Object.values(parsed).map((each) => (typeof each === "string" ? each : JSON.stringify(each))).join("  ");
    } catch { /* as it is */ }
    return value.replace(/\s+/g, " ").slice(0, 200);
  };
  const pretty = (text) => {
    try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
  };
  const STATUS = { waits: "waits", runs: "runs", ok: "done", denied: "denied", error: "failed" };

  function article(row, kind, label, ...inner) {
    return make("article", { class: "row " + kind, "aria-label": `${label}, entry ${row.seq}, ${title(row.at)}` }, ...inner);
  }

  // `again` has a row made anew, `entry` gives the text of a log entry.
  function transcript(again, entry) {
    const head = (row, who, ...more) => make("div", { class: "head" }, make("b", {}, who), ...more, make("span", { class: "spacer" }), clock(row.at), make("span", { class: "seq" }, "#" + row.seq));

    async function open(row) {
      row.open = !row.open;
      again(row);
      if (!row.open || row.output !== undefined || !row.result) return;
      try {
        const found = await entry(row.result);
        row.output = (found.content || found.text) + (found.cut ? "\n… (there is more of it)" : "");
      } catch (error) { row.output = error.message; }
      again(row);
    }

    const KINDS = {
      user: (row) => article(row, "user", "Message", head(row, "Message"), ...prose(row, again)),
      agent: (row) => article(row, "agent", "Agent", head(row, "Agent"), ...(row.text ? prose(row, again) : [make("p", { class: "hint" }, `No text (${row.stop}).`)]), make("p", { class: "figures" }, row.figures)),
      draft: (row) => article(row, "agent draft", "Agent is writing", head(row, "Agent is writing"), make("p", { class: "words" }, row.text.slice(-LONG))),
      note: (row) => article(row, "note" + (row.bad ? " bad" : "") + (row.turn ? " turn" : ""), row.text, make("span", {}, row.text), make("span", { class: "spacer" }), clock(row.at), make("span", { class: "seq" }, "#" + row.seq)),
      question: (row) => article(row, "question", "Question", head(row, row.answer ? "Question, answered" : "Question"), make("p", {}, row.summary),
        ...(row.details ? [make("pre", { class: "words", tabindex: "0", "aria-label": "Details" }, row.details)] : []), ...(row.diff ? [difference(row.diff)] : []),
        make("p", { class: row.answer ? "hint" : "" }, row.answer ? `${row.answer.approved ? "Approved" : "Denied"}${row.answer.by ? " by " + row.answer.by : ""}${row.answer.message ? ": " + row.answer.message : ""}` : "Waits for an answer under State.")),
      call: (row) => {
        const status = row.denied ? "denied" : STATUS[row.status] || row.status;
        const made = article(row, "call " + (["ok", "waits", "runs"].includes(row.status) && !row.denied ? row.status : "bad"), `Call of ${row.name}, ${status}`,
          make("div", { class: "head" },
            button(row.open ? "−" : "+", () => open(row), { class: "open", "aria-expanded": String(Boolean(row.open)), "aria-label": `${row.open ? "Hide" : "Show"} call and result of ${row.name}` }),
            make("b", {}, row.name), make("span", { class: "brief" }, brief(row.arguments)), make("span", { class: "spacer" }),
            make("span", { class: "status" }, status + (row.seconds >= 0.1 ? ", " + Story.seconds(row.seconds) : "")), clock(row.at), make("span", { class: "seq" }, "#" + row.seq)));
        if (row.summary || row.denied) made.append(make("p", { class: "summary" }, row.denied || row.summary));
        if (row.open) {
          if (row.arguments) made.append(make("pre", { tabindex: "0", "aria-label": "Arguments" }, pretty(row.arguments)));
          if (row.result) made.append(make("pre", { tabindex: "0", "aria-label": "Result" }, row.output === undefined ? "Reading …" : row.output));
        }
        return made;
      },
    };
    return (row) => KINDS[row.kind](row);
  }

  // An event in a line, and whole when it is opened.
  const feed = (again) => (row) => {
    const { type, seq, at, ...more } = row.event;
    const said = (Story.inALine(row.event) || brief(JSON.stringify(more))).slice(0, 300);
    const made = article(row, "event", type,
      make("div", { class: "head" },
        button(row.open ? "−" : "+", () => { row.open = !row.open; again(row); }, { class: "open", "aria-expanded": String(Boolean(row.open)), "aria-label": `${row.open ? "Hide" : "Show"} event ${seq}, ${type}` }),
        make("b", {}, type), make("span", { class: "brief" }, said), make("span", { class: "spacer" }), clock(at), make("span", { class: "seq" }, row.event.passing ? "" : "#" + seq)));
    if (row.open) made.append(make("pre", { tabindex: "0", "aria-label": "The event" }, JSON.stringify(row.event, null, 2).slice(0, 200000)));
    return made;
  };

  return { transcript, feed, difference, title };
})();
