"use strict";
// How a pod stands, and what can be done about it: questions with their answers, tasks, messages that wait, controls.
const State = (() => {
  const { make, button, num, money, pairs } = Dom;
  const AT_WORK = new Set(["running", "compacting", "queued"]);
  const TASK = { done: "✓", active: "▸", pending: "○" };

  // `act` does something through the service and says how it went.
  function state(home, { name, role, act, changed, gone }) {
    const may = { operate: role !== "read", admin: role === "admin" };
    const card = (title, ...inner) => make("section", { class: "card", "aria-label": title }, make("h2", {}, title), ...inner);
    const hush = (control, allowed) => { control.disabled = !allowed; if (!allowed) control.title = "This token may not do that"; return control; };
    let facts = null;

    // -- controls

    const stop = button("Stop", async () => { if (await act("It ends before its next request.", () => Api.post(Api.path(name, "stop")))) busy("It was told to stop: it ends before its next request."); });
    const resume = button("Go on", () => act("It goes on.", () => Api.post(Api.path(name, "resume"))));
    const fork = button("Fork …", () => forked()), rewind = button("Rewind …", () => rewound()), clear = button("Clear …", cleared);
    const take = button("Export", exported), remove = button("Delete …", removed, { class: "grave" });
    const controls = make("div", { class: "bar", role: "group", "aria-label": "Controls" }, stop, resume, fork, rewind, clear, take, remove);
    for (const each of [fork, rewind, clear]) hush(each, may.operate);
    for (const each of [take, remove]) hush(each, may.admin);
    stop.disabled = resume.disabled = true;

    async function forked(after = "") {
      const called = Forms.text({ required: "", maxlength: "515", value: name + "-fork" }), at = Forms.text({ inputmode: "numeric", pattern: "[0-9]*", value: String(after) });
      const found = await Forms.ask("Fork " + name, [Forms.field("Name of the new pod", called), Forms.field("After entry", at, "Left out, it begins where this one stands.")], "Fork",
        () => Api.post(Api.path(name, "fork"), { name: called.value.trim(), ...(at.value ? { at: Number(at.value) } : {}) }));
      if (found) location.hash = List.address(found.pod);
    }
    async function rewound(after = "") {
      const to = Forms.text({ required: "", inputmode: "numeric", pattern: "[0-9]+", value: String(after) });
      const found = await Forms.ask("Rewind " + name, [Forms.field("To entry", to, "What came after it is no longer part of the session; the record keeps it.")], "Rewind",
        () => Api.post(Api.path(name, "rewind"), { to: Number(to.value) }));
      if (found) changed(`It was taken back to entry ${num(Number(to.value))}.`);
    }
    async function cleared() {
      const found = await Forms.ask("Clear " + name, [make("p", {}, "It goes on with an empty context: the record keeps what was said, the agent does not.")], "Clear", () => Api.post(Api.path(name, "clear")));
      if (found) changed("It was cleared.");
    }
    async function removed() {
      const typed = Forms.text({ required: "", autocapitalize: "none" });
      const found = await Forms.ask("Delete " + name, [make("p", {}, "Its log, its artifacts and all that it remembers go for good. Files in its working folder stay."), Forms.field("Its name, to be sure", typed)], "Delete",
        () => { if (typed.value !== name) throw new Error("That is not its name."); return Api.post(Api.path(name), {}, "DELETE"); }, "grave");
      if (!found) return;
      location.hash = "#/";
      act(`${name} was deleted.`, async () => found);
    }
    async function exported() {
      await act("It was exported.", async () => {
        const address = URL.createObjectURL(await Api.file(Api.path(name, "export")));
        make("a", { href: address, download: name.replaceAll("/", "-") + ".pod.tar" }).click();
        setTimeout(() => URL.revokeObjectURL(address), 60000);
      });
    }

    // -- questions

    const asked = new Map();
    const questions = make("div");
    const reach = (scope) => [scope, { run: "a yes holds for the rest of this run", once: "a yes is for this call alone" }[scope]];
    function question(one) {
      const scope = Forms.choice(one.scope === "run" ? ["run", "once"].map(reach) : ["once", "run"].map(reach), { "aria-label": "How far a yes reaches" });
      const message = Forms.text({ placeholder: "Why, for the agent (may stay empty)", "aria-label": "Message with the answer", maxlength: "2000" });
      const answered = (approve) => act(approve ? "Approved." : "Denied.", async () => {
        await Api.post(Api.path(name, "approvals", one.id), { approve, message: message.value, ...(approve ? { scope: scope.value } : {}) });
        const held = made.contains(document.activeElement);
        for (const control of made.querySelectorAll("button, select, input")) control.disabled = true;
        if (held) (questions.querySelector("button:not(:disabled)") || home.closest(".pod").querySelector("h1")).focus();
      });
      for (const each of [scope, message]) hush(each, may.operate);
      const yes = hush(button("Approve", () => answered(true), { class: "main" }), may.operate), no = hush(button("Deny", () => answered(false)), may.operate);
      const made = make("article", { class: "asked", "aria-label": one.summary }, Entries.asked(one));
      if (one.details) made.append(make("pre", { tabindex: "0", "aria-label": "Details" }, one.details));
      if (one.diff) made.append(Entries.difference(one.diff));
      made.append(message, make("p", { class: "bar" }, yes, no, scope));
      return made;
    }

    // -- what is shown

    const head = make("dl", { class: "facts" });
    const doing = make("p", { class: "doing" });
    doing.hidden = true;
    const answers = card("Questions", questions), tasks = card("Tasks"), queued = card("Messages that wait"), processes = card("Processes in the background"), servers = card("Servers of tools"), more = card("About");
    for (const each of [answers, tasks, queued, processes, servers]) each.hidden = true;
    const last = make("p", { class: "words" });
    const told = make("dl", { class: "facts lines" });
    more.append(told);
    home.append(make("section", { class: "card", "aria-label": "How it stands" }, head, doing, controls, last), answers, tasks, queued, processes, servers, more);

    const fill = (where, found, render) => {
      where.hidden = !found.length;
      where.replaceChildren(where.firstElementChild, ...(found.length ? [render(found)] : []));
    };
    const items = (found) => make("ul", { class: "plain" }, ...found.map((words) => make("li", {}, words)));

    // Messages that the agent has not taken: those on record, and those that were left from here and lie in its inbox.
    const left = [];
    function waits() {
      const inbox = facts?.inbox || 0, others = Math.max(inbox - left.length, 0);
      const more = others && facts.approvals?.length ? [`${num(others)} left before this page was opened, or elsewhere: taken once the questions are answered`] : [];
      fill(queued, [...(facts?.queued || []), ...left, ...more], (found) => items(found.map((text) => text.slice(0, 500))));
    }
    const sent = (text) => { left.push(text); waits(); };
    function arrived(text) {
      const at = left.indexOf(text);
      if (at >= 0) { left.splice(at, 1); waits(); }
    }

    function show(now) {
      facts = now;
      const ended = facts.ended, open = facts.approvals || [];
      head.replaceChildren(...pairs([
        ["status", List.status(facts.status)], ["requests", num(facts.totals?.requests)], ["cost", money(facts.cost_usd)],
        ["segments", num(facts.totals?.segments)], ["compactions", num(facts.totals?.compactions)], ["prunes", num(facts.totals?.prunes)],
      ]));
      const problem = ended && ended.status !== "finished" && ended.result && (ended.result.error || ended.result.message || ended.result.reason);
      last.textContent = [problem, ...(facts.lost || [])].filter(Boolean).join(" ");
      last.hidden = !last.textContent;
      last.classList.toggle("wrong", facts.status === "failed" || Boolean(facts.lost?.length));
      stop.disabled = !may.operate || !AT_WORK.has(facts.status);
      resume.disabled = !may.operate || AT_WORK.has(facts.status) || facts.status === "new" || facts.status === "finished" || facts.status === "idle" || open.length > 0;
      for (const [each, allowed] of [[rewind, may.operate], [clear, may.operate], [remove, may.admin]]) {
        each.disabled = !allowed || AT_WORK.has(facts.status);
        each.title = !allowed ? "This token may not do that" : AT_WORK.has(facts.status) ? "It runs: stop it first" : "";
      }
      stop.title = may.operate ? "The run ends before its next request" : "This token may not do that";
      resume.title = !may.operate ? "This token may not do that" : open.length ? "The questions come first" : "What is unfinished goes on";
      const ids = new Set(open.map((one) => one.id));
      for (const [id, made] of asked) if (!ids.has(id)) { made.remove(); asked.delete(id); }
      for (const one of open) if (!asked.has(one.id)) { asked.set(one.id, question(one)); questions.append(asked.get(one.id)); }
      answers.hidden = !open.length;
      fill(tasks, facts.tasks || [], (found) => items(found.map((task) => `${TASK[task.status] || ""} ${task.text} (${task.status})`)));
      waits();
      fill(processes, facts.processes || [], (found) => items(found.map((job) => `${job.id}: ${job.status}${Number.isInteger(job.exit_code) ? `, exit code ${job.exit_code}` : ""}, pid ${job.pid}, since ${(job.started_at || "").slice(0, 19).replace("T", " ")}: ${(job.command || "").slice(0, 300)}`)));
      fill(servers, facts.servers || [], (found) => items(found.map((one) => `${one.server}: ${one.state}${one.why ? ", " + one.why : ""}, ${num(one.tools)} tools`)));
      told.replaceChildren(...pairs([
        ["name", name], ["folder", facts.cwd || "-"], ["session", facts.session || "-"], ["made", facts.created ? Entries.clock(facts.created) : "-"],
        ["permissions", facts.settings?.permissions?.profile || "-"], ["sandbox", facts.settings?.sandbox?.mode || "-"],
        ["tokens in, cached, out", facts.totals ? [facts.totals.prompt_tokens, facts.totals.cached_tokens, facts.totals.output_tokens].map(num).join(", ") : "-"],
      ]));
      gone(open.length);
    }
    function busy(words) { doing.textContent = words; doing.hidden = !words; }
    return { show, sent, arrived, forked, rewound, may, doing: busy, focus: (label) => {
      const where = asked.get(label) || questions, first = where.querySelector("button:not(:disabled)") || where.querySelector("pre");
      if (first) first.focus();
    } };
  }

  return { state };
})();
