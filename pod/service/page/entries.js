"use strict";
// Rows as elements: of the transcript and of the feed of events.
const Entries = (() => {
  const { make, button, num } = Dom;
  const LONG = 3000;

  const title = (at) => (at || "").slice(0, 19).replace("T", " ") + " UTC";
  // A moment by the reader's own clock; the day too, where it is another one than today.
  function moment(at) {
    const then = new Date(at), two = (value) => String(value).padStart(2, "0");
    if (!at || Number.isNaN(then.getTime())) return "-";
    const day = [then.getFullYear(), two(then.getMonth() + 1), two(then.getDate())].join("-");
    const time = [then.getHours(), then.getMinutes(), then.getSeconds()].map(two).join(":");
    return then.toDateString() === new Date().toDateString() ? time : `${day} ${time}`;
  }
  const clock = (at) => make("time", { datetime: at, title: title(at) }, moment(at));

  // What an agent says, with its code, headings and bold words set apart: elements of these kinds alone, whatever it wrote, and
  // the signs of anything else stay as they are. A link stays text: where it leads is seen before anybody goes there.
  function spoken(text) {
    const made = [];
    text.split(/^ {0,3}```[^`\n]*$\n?/m).forEach((part, at) => {
      if (at % 2) { made.push(make("pre", { tabindex: "0", "aria-label": "Code" }, part.replace(/\n$/, ""))); return; }
      for (const piece of part.replace(/^\n+|\n+$/g, "").split(/^(#{1,6} [^\n]*)$\n*/m)) {
        if (!piece) continue;
        const heading = /^#{1,6} /.exec(piece);
        made.push(heading ? make("p", { class: "heading" }, piece.slice(heading[0].length)) : make("p", {}, ...inline(piece.replace(/\n+$/, ""))));
      }
    });
    return made;
  }
  const inline = (text) => text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part, at) => (at % 2 === 0 ? part : part[0] === "`" ? make("code", {}, part.slice(1, -1)) : make("b", {}, part.slice(2, -2))));

  // A text, cut where it is long until a reader asks for the rest; an agent's with its forms.
  function prose(row, again) {
    const cut = row.text.length > LONG && !row.whole;
    const text = cut ? row.text.slice(0, LONG) + " …" : row.text;
    const made = [make("div", { class: "words" }, ...(row.kind === "agent" ? spoken(text) : [text]))];
    if (cut) made.push(button(`Show all ${num(row.text.length)} characters`, () => { row.whole = true; again(row); }));
    return made;
  }

  // A difference, each line with its sign; the sign stays, so that nothing depends on colour alone.
  function difference(text) {
    const lines = text.replace(/^--- before\n\+\+\+ after\n/, "").split("\n").map((line) => {
      const kind = /^(\+\+\+|---|@@)/.test(line) ? "where" : line.startsWith("+") ? "more" : line.startsWith("-") ? "less" : "";
      return make("span", kind ? { class: kind } : {}, line + "\n");
    });
    return make("pre", { class: "difference", tabindex: "0", "aria-label": "What would change" }, ...lines);
  }

  // What is asked: the tool, and what the call would do, which often begins with the tool's name.
  const asked = (one) => make("p", {}, make("b", {}, one.tool), " ", one.summary.startsWith(one.tool + ": ") ? one.summary.slice(one.tool.length + 2) : one.summary);

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

  // `again` has a row made anew, `entry` gives the text of a log entry, `shown` shows it apart, `answer` goes to where questions are answered.
  function transcript(again, { entry, shown, answer, mayAnswer }) {
    const number = (row) => button("#" + row.seq, () => shown(row.seq), { class: "seq", tabindex: "-1", "aria-label": `Show entry ${row.seq}` });
    const head = (row, who, ...more) => make("div", { class: "head" }, make("b", {}, who), ...more, make("span", { class: "spacer" }), clock(row.at), number(row));

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
      note: (row) => article(row, "note" + (row.bad ? " bad" : "") + (row.turn ? " turn" : ""), row.text, make("span", {}, row.text), make("span", { class: "spacer" }), clock(row.at), number(row)),
      question: (row) => article(row, "question", "Question", head(row, row.answer ? "Question, answered" : "Question"), asked(row),
        ...(row.details ? [make("pre", { class: "words", tabindex: "0", "aria-label": "Details" }, row.details)] : []), ...(row.diff ? [difference(row.diff)] : []),
        row.answer
          ? make("p", { class: "hint" }, `${row.answer.approved ? "Approved" : "Denied"}${row.answer.by ? " by " + row.answer.by : ""}${row.answer.message ? ": " + row.answer.message : ""}`)
          : make("p", { class: "bar" }, "It waits for an answer. ", ...(mayAnswer ? [button("Answer", () => answer(row.id), { "aria-label": `Answer the question of entry ${row.seq}` })] : []))),
      call: (row) => {
        const status = row.denied ? "denied" : STATUS[row.status] || row.status;
        const made = article(row, "call " + (["ok", "waits", "runs"].includes(row.status) && !row.denied ? row.status : "bad"), `Call of ${row.name}, ${status}`,
          make("div", { class: "head" },
            button(row.open ? "−" : "+", () => open(row), { class: "open", "aria-expanded": String(Boolean(row.open)), "aria-label": `${row.open ? "Hide" : "Show"} call and result of ${row.name}` }),
            make("b", {}, row.name), make("span", { class: "brief", title: brief(row.arguments) }, brief(row.arguments)), make("span", { class: "spacer" }),
            make("span", { class: "status" }, status + (row.seconds >= 0.1 ? ", " + Story.seconds(row.seconds) : "")), clock(row.at), number(row)));
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
    const said = (row.said || Story.inALine(row.event) || brief(JSON.stringify(more))).slice(0, 300);
    const made = article(row, "event", type,
      make("div", { class: "head" },
        button(row.open ? "−" : "+", () => { row.open = !row.open; again(row); }, { class: "open", "aria-expanded": String(Boolean(row.open)), "aria-label": `${row.open ? "Hide" : "Show"} event ${seq}, ${type}` }),
        make("b", {}, type), make("span", { class: "brief", title: said }, said), make("span", { class: "spacer" }), clock(at), make("span", { class: "seq" }, row.event.passing ? "" : "#" + seq)));
    if (row.open) made.append(make("pre", { tabindex: "0", "aria-label": "The event" }, JSON.stringify(row.event, null, 2).slice(0, 200000)));
    return made;
  };

  return { transcript, feed, difference, asked, clock };
})();
