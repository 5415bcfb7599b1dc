"use strict";
// What is asked of a reader: a form in a dialog, a token.
const Forms = (() => {
  const { make, button } = Dom;
  let numbered = 0;

  // A field with its label; `control` is what is filled in.
  function field(label, control, hint) {
    const id = "field" + ++numbered;
    control.id = id;
    const made = make("p", { class: "field" }, make("label", { for: id }, label), control);
    if (hint) {
      control.setAttribute("aria-describedby", id + "-hint");
      made.append(make("span", { class: "hint", id: id + "-hint" }, hint));
    }
    return made;
  }

  const text = (attributes = {}) => make("input", { type: "text", autocomplete: "off", spellcheck: "false", ...attributes });
  const area = (attributes = {}) => make("textarea", { rows: "4", ...attributes });
  const choice = (options, attributes = {}) => {
    const made = make("select", attributes);
    for (const [value, words] of options) made.append(make("option", { value }, words));
    return made;
  };

  // Asks in a dialog; `act` does it, and what it throws is shown there. Resolves to what it gave, or null.
  function ask(title, fields, words, act, kind = "main") {
    return new Promise((done) => {
      const wrong = make("p", { class: "wrong", role: "alert" });
      // What can't be undone is not what Enter does at once.
      const go = make("button", { type: "submit", class: kind }, words), cancel = button("Cancel", () => dialog.close(), kind === "grave" ? { autofocus: "" } : {});
      const form = make("form", {}, make("h2", {}, title), ...fields, wrong, make("p", { class: "bar" }, go, cancel));
      const dialog = make("dialog", { "aria-label": title }, form);
      let given = null;
      form.addEventListener("submit", async (event) => {
        event.preventDefault();
        go.disabled = true;
        wrong.textContent = "";
        try { given = await act(); dialog.close(); }
        catch (error) { wrong.textContent = error.message; }
        go.disabled = false;
      });
      dialog.addEventListener("close", () => { dialog.remove(); done(given); });
      document.body.append(dialog);
      dialog.showModal();
    });
  }

  // Shows something in a dialog, with more to be done about it.
  function show(title, inner, more = []) {
    const others = more.map(([words, act]) => button(words, () => { dialog.close(); act(); }));
    const dialog = make("dialog", { "aria-label": title }, make("h2", {}, title), ...inner, make("p", { class: "bar" }, button("Close", () => dialog.close(), { class: "main" }), ...others));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }

  // The first thing that a reader without a token sees.
  function signIn(home, wrong, signed) {
    const token = make("input", { type: "password", autocomplete: "current-password", required: "", spellcheck: "false" });
    const form = make("form", { class: "card signin" }, make("h1", {}, "Pods"),
      make("p", {}, "This service asks for a token. ", make("code", {}, "pod serve"), " shows one as it starts, or its operator has one for you."),
      field("Token", token, "It is kept for this tab alone, until you sign out or close it."),
      make("p", { class: "wrong", role: "alert" }, wrong || ""), make("p", { class: "bar" }, make("button", { type: "submit", class: "main" }, "Sign in")));
    form.addEventListener("submit", (event) => { event.preventDefault(); Api.token.set(token.value.trim()); signed(); });
    home.replaceChildren(form);
    token.focus();
  }

  return { field, text, area, choice, ask, show, signIn };
})();
