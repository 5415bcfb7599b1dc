"use strict";
// What the page asks the service for. The token is kept for this tab alone, and is sent to the service that gave the page.
const Api = (() => {
  const KEY = "pod-token";
  const base = new URL("v1/", document.baseURI);
  const QUIET = 45000, FIRST = 1000, LONGEST = 15000, UNSEEN = 20000;

  // A refusal: `kind` for programs, `message` for people.
  class Refused extends Error {
    constructor(status, kind, message) {
      super(message);
      Object.assign(this, { status, kind });
    }
  }

  const token = {
    get: () => sessionStorage.getItem(KEY),
    set: (text) => sessionStorage.setItem(KEY, text),
    drop: () => sessionStorage.removeItem(KEY),
  };

  // What no header can hold is no token: sent as far as it can be, it is refused like any other.
  const headers = (more) => (token.get() ? { authorization: "Bearer " + token.get().replace(/[^\x21-\x7e]/g, "?"), ...more } : more);
  // A name with a part that is the name of an operation goes in one piece.
  const OPERATION = /(^|\/)(events|messages|approvals|context|compact|stop|resume|fork|clear|rewind|result|history|timeline|entries|export)(\/|$)/;
  const path = (name, ...rest) => ["pods", ...(OPERATION.test(name) ? [name] : name.split("/")), ...rest].map(encodeURIComponent).join("/");
  const once = () => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");

  async function asked(address, options) {
    let answer;
    try {
      answer = await fetch(address, { cache: "no-store", credentials: "omit", redirect: "error", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Refused(0, "no_answer", "The service does not answer. It is asked again every few seconds.");
    }
    if (answer.ok) return answer;
    let told = {};
    try { told = await answer.json(); } catch { /* not from the service */ }
    throw new Refused(answer.status, told.error || "refused", told.message || `The service answered ${answer.status}.`);
  }

  async function get(where, query = {}, signal) {
    const address = new URL(where, base);
    for (const [key, value] of Object.entries(query)) if (value !== "" && value !== null && value !== undefined) address.searchParams.set(key, value);
    return (await asked(address, { headers: headers({ accept: "application/json" }), signal })).json();
  }

  // A write is sent again where no answer came: with the same key it is done once.
  async function post(where, body = {}, method = "POST") {
    const key = once();
    for (let left = 3; ; left--) {
      try {
        const told = { "content-type": "application/json", "idempotency-key": key };
        return await (await asked(new URL(where, base), { method, headers: headers(told), body: JSON.stringify(body) })).json();
      } catch (error) {
        if (error.status !== 0 || left <= 1) throw error;
        await rest(700);
      }
    }
  }

  async function file(where) {
    return (await asked(new URL(where, base), { headers: headers({}) })).blob();
  }

  const rest = (milliseconds, signal) =>
    new Promise((done) => {
      const timer = setTimeout(done, milliseconds);
      if (signal) signal.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
    });

  // Resolves once somebody looks.
  const seen = (signal) =>
    new Promise((done) => {
      if (!document.hidden || signal.aborted) return done();
      const look = () => { if (!document.hidden || signal.aborted) { document.removeEventListener("visibilitychange", look); done(); } };
      document.addEventListener("visibilitychange", look);
      signal.addEventListener("abort", look, { once: true });
    });

  // Tells the events of a pod from `after` on, in lots as they come, each once: after a break it goes on where it was. A browser
  // gives all its tabs together only a few connections to one service, so a tab that nobody sees lets its own go.
  async function follow(name, after, { lot, state, refused }, signal) {
    let last = after, pause = FIRST;
    while (!signal.aborted) {
      const broken = new AbortController();
      const stop = () => broken.abort();
      signal.addEventListener("abort", stop, { once: true });
      let quiet = setTimeout(stop, QUIET), unseen = 0;
      const watch = () => { clearTimeout(unseen); if (document.hidden) unseen = setTimeout(stop, UNSEEN); };
      document.addEventListener("visibilitychange", watch);
      try {
        await seen(signal);
        if (signal.aborted) return;
        state("connecting");
        const told = { accept: "text/event-stream", "last-event-id": String(last) };
        const answer = await asked(new URL(path(name, "events"), base), { headers: headers(told), signal: broken.signal });
        state("live");
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let left = "";
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          clearTimeout(quiet);
          quiet = setTimeout(stop, QUIET);
          pause = FIRST;
          const frames = (left + value).split("\n\n");
          left = frames.pop();
          const events = frames.map(event).filter(Boolean);
          for (const each of events) if (each.numbered) last = each.numbered;
          if (events.length) lot(events.map((each) => each.data));
        }
      } catch (error) {
        if (!signal.aborted && error instanceof Refused && [401, 403, 404, 409, 422].includes(error.status)) return refused(error);
      } finally {
        clearTimeout(quiet);
        clearTimeout(unseen);
        document.removeEventListener("visibilitychange", watch);
        signal.removeEventListener("abort", stop);
        stop();
      }
      if (signal.aborted) return;
      if (document.hidden) continue;
      state("waiting");
      await rest(pause * (0.75 + Math.random() / 2), signal);
      pause = Math.min(pause * 2, LONGEST);
    }
  }

  function event(frame) {
    let numbered = 0, data = "";
    for (const line of frame.split("\n")) {
      if (line.startsWith("id: ")) numbered = Number(line.slice(4));
      else if (line.startsWith("data: ")) data += line.slice(6);
    }
    if (!data) return null;
    const found = JSON.parse(data);
    // Those without a number pass: they bear that of the last entry before them.
    if (!numbered) Object.defineProperty(found, "passing", { value: true });
    return { numbered, data: found };
  }

  return { Refused, token, path, get, post, file, follow };
})();
