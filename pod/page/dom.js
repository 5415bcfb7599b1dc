"use strict";
// What every page is made of. Every text is set as text, so that nothing in the data is ever read as markup.
const Dom = (() => {
  const $ = (id) => document.getElementById(id);

  const num = (value) => (value === null || value === undefined ? "-" : Math.round(value).toLocaleString("en-US"));
  const money = (value) => (value === null || value === undefined ? "unknown" : "$" + value.toFixed(value < 1 ? 4 : 2));
  const share = (part, whole) => (whole ? Math.round((100 * part) / whole) + " %" : "-");
  const short = (value) =>
    value >= 1e6 ? +(value / 1e6).toFixed(1) + "M" : value >= 1e3 ? +(value / 1e3).toFixed(1) + "k" : String(Math.round(value));

  const make = (name, attributes = {}, ...inner) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...inner);
    return element;
  };
  const draw = (name, attributes = {}, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const button = (text, act, attributes = {}) => {
    const made = make("button", { type: "button", ...attributes }, text);
    made.addEventListener("click", act);
    return made;
  };
  const pairs = (rows) => rows.map(([key, value]) => make("div", {}, make("dt", {}, key), make("dd", {}, value)));

  return { $, num, money, share, short, make, draw, button, pairs };
})();
