"use strict";
// A long list of rows of which only those near the window are elements: ten thousand cost what twenty do.
//
// `render(row)` makes the element of a row; `changed(row)` has it made anew. A reader at the end stays there as rows come; one
// who reads further up is not moved. Keys: arrows go from row to row, Page Up and Page Down ten at a time, Home and End to the ends.
const Scroller = (() => {
  const { make } = Dom;
  const GUESS = 56, BEYOND = 500, NEAR = 40, WITHIN = "button, [tabindex]";

  function scroller(home, label, render) {
    const room = make("div", { class: "room", role: "feed", "aria-label": label, "aria-busy": "false" });
    const view = make("div", { class: "view" }, room);
    home.append(view);
    const rows = [], heights = [], tops = [0];
    const shown = new Map(), places = new Map();
    let clean = 0, current = -1, follows = true, due = 0, width = 0, typical = GUESS;

    const settle = (upto) => {
      for (; clean < upto; clean++) tops[clean + 1] = tops[clean] + (heights[clean] || typical);
    };
    const total = () => { settle(rows.length); return tops[rows.length]; };
    const at = (y) => {
      settle(rows.length);
      let low = 0, high = rows.length;
      while (low < high) { const mid = (low + high) >> 1; if (tops[mid + 1] <= y) low = mid + 1; else high = mid; }
      return Math.min(low, Math.max(rows.length - 1, 0));
    };
    const isAtEnd = () => view.scrollTop + view.clientHeight >= room.clientHeight - NEAR;

    function element(index) {
      let made = shown.get(index);
      if (made) return made;
      made = render(rows[index]);
      made.setAttribute("aria-posinset", String(index + 1));
      made.setAttribute("aria-setsize", String(rows.length));
      made.setAttribute("tabindex", index === current ? "0" : "-1");
      made.dataset.row = String(index);
      shown.set(index, made);
      const next = [...room.children].find((child) => Number(child.dataset.row) > index);
      room.insertBefore(made, next || null);
      return made;
    }

    // Lays out what is near the window: measured, placed, and once more where the measures moved it.
    function layout() {
      due = 0;
      if (!view.isConnected || !view.clientHeight) return;
      if (view.clientWidth !== width) { width = view.clientWidth; heights.fill(0); clean = 0; }
      for (let round = 0; round < 4; round++) {
        const top = follows ? Math.max(total() - view.clientHeight, 0) : view.scrollTop;
        const anchor = at(top), offset = tops[anchor] - top;
        const first = at(top - BEYOND), last = at(top + view.clientHeight + BEYOND);
        const kept = new Set();
        for (let index = first; index <= last && index < rows.length; index++) { kept.add(index); element(index); }
        for (const [index, made] of shown) {
          if (kept.has(index) || made.contains(document.activeElement)) continue;
          made.remove();
          shown.delete(index);
        }
        let moved = false;
        for (const [index, made] of shown) {
          const height = made.offsetHeight;
          if (height !== heights[index]) { heights[index] = height; clean = Math.min(clean, index); moved = true; }
        }
        room.style.height = total() + "px";
        for (const [index, made] of shown) made.style.transform = `translateY(${tops[index]}px)`;
        const wanted = follows ? Math.max(total() - view.clientHeight, 0) : Math.max(tops[anchor] - offset, 0);
        if (Math.abs(view.scrollTop - wanted) > 1) view.scrollTop = wanted;
        if (!moved) break;
      }
    }
    const soon = () => { due = due || requestAnimationFrame(layout); };

    function add(more) {
      if (!more.length) return;
      for (const row of more) { places.set(row, rows.length); rows.push(row); heights.push(0); }
      if (current < 0 || (follows && !room.contains(document.activeElement))) mark(rows.length - 1);
      for (const [, made] of shown) made.setAttribute("aria-setsize", String(rows.length));
      soon();
    }
    // Makes a row anew. What comes by itself leaves one alone in which somebody reads; what they `asked` for is done at once, and
    // the focus stays on what had it.
    function changed(row, asked = false) {
      const index = places.get(row), made = shown.get(index);
      if (!made) { if (index !== undefined) { heights[index] = 0; clean = Math.min(clean, index); } return soon(); }
      const held = made.contains(document.activeElement);
      if (held && made !== document.activeElement && !asked) { row.stale = true; return; }
      const at = held ? [...made.querySelectorAll(WITHIN)].indexOf(document.activeElement) : -1;
      row.stale = false;
      shown.delete(index);
      made.remove();
      const anew = element(index);
      if (held) (anew.querySelectorAll(WITHIN)[at] || anew).focus({ preventScroll: true });
      soon();
    }
    // Takes the newest row away.
    function drop(row) {
      const index = places.get(row);
      if (index === undefined || index !== rows.length - 1) return;
      places.delete(row);
      rows.pop(); heights.pop();
      const made = shown.get(index);
      if (made) made.remove();
      shown.delete(index);
      clean = Math.min(clean, rows.length);
      tops.length = rows.length + 1;
      if (current >= rows.length) mark(rows.length - 1);
      soon();
    }
    function clear() {
      rows.length = heights.length = 0;
      tops.length = 1;
      clean = 0;
      current = -1;
      follows = true;
      shown.clear(); places.clear();
      room.replaceChildren();
      soon();
    }

    function mark(index) {
      const before = shown.get(current);
      if (before) before.setAttribute("tabindex", "-1");
      current = index;
      const now = shown.get(index);
      if (now) now.setAttribute("tabindex", "0");
    }
    function go(index) {
      if (!rows.length) return;
      const wanted = Math.min(Math.max(index, 0), rows.length - 1);
      mark(wanted);
      settle(rows.length);
      follows = false;
      const top = tops[wanted], bottom = tops[wanted + 1];
      if (top < view.scrollTop) view.scrollTop = top;
      else if (bottom > view.scrollTop + view.clientHeight) view.scrollTop = Math.max(bottom - view.clientHeight, 0);
      layout();
      element(wanted).focus({ preventScroll: true });
      layout();
      if (wanted === rows.length - 1) { follows = true; layout(); }
    }
    const show = (row) => { const index = places.get(row); if (index !== undefined) go(index); };
    function end() { follows = true; layout(); }

    view.addEventListener("scroll", () => { follows = isAtEnd(); soon(); }, { passive: true });
    view.addEventListener("keydown", (event) => {
      if (!event.target.dataset || event.target.dataset.row === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      const moves = { ArrowUp: current - 1, ArrowDown: current + 1, PageUp: current - 10, PageDown: current + 10, Home: 0, End: rows.length - 1 };
      if (event.key in moves) go(moves[event.key]);
      else if (event.key === "Enter" && event.target.querySelector("button")) event.target.querySelector("button").click();
      else return;
      event.preventDefault();
    });
    view.addEventListener("focusin", (event) => {
      const made = event.target.closest("[data-row]");
      if (made) mark(Number(made.dataset.row));
    });
    view.addEventListener("focusout", (event) => {
      const made = event.target.closest("[data-row]"), row = made && rows[Number(made.dataset.row)];
      if (row && row.stale && !made.contains(event.relatedTarget)) { row.stale = false; queueMicrotask(() => changed(row)); }
    });
    const watch = new ResizeObserver(soon);
    watch.observe(view);
    return { add, changed, drop, clear, show, end, rows, view, layout, get follows() { return follows; }, close: () => watch.disconnect() };
  }

  return { scroller };
})();
