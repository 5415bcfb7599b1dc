"use strict";
// Where the page begins: who looks, at what.
(() => {
  const { $, make } = Dom;
  const main = $("main");
  const wide = matchMedia("(min-width: 1100px)"), rail = matchMedia("(min-width: 1600px)");
  let caller = null, list = null, pod = null;

  const TOLD = 6000;

  const say = (words) => { $("said").textContent = words; };
  // What came of something that the reader did: also seen, for a while.
  let telling = 0;
  function tell(words) {
    say(words);
    $("told").textContent = words;
    $("told").hidden = !words;
    clearTimeout(telling);
    telling = setTimeout(() => { $("told").hidden = true; }, TOLD);
  }
  function failed(error) {
    const alarm = $("alarm");
    if (error && error.status === 401) return leave(error.message);
    alarm.hidden = !error;
    alarm.textContent = error ? error.message : "";
  }

  // A link with a token in it is used once: what stands behind the # was sent to nobody, and is taken out of the address.
  function takeToken() {
    const found = /^#token=([^&]+)/.exec(location.hash);
    if (!found) return;
    try { Api.token.set(decodeURIComponent(found[1])); } catch { /* no token */ }
    history.replaceState(null, "", location.pathname + location.search + "#/");
  }

  async function begin() {
    takeToken();
    try { caller = await Api.get("caller"); }
    catch (error) {
      if (error.status === 401) return leave(Api.token.get() ? "This token is not known here." : "");
      failed(error);
      setTimeout(begin, 3000);
      return;
    }
    failed(null);
    $("caller").textContent = `${caller.name} (${caller.role})`;
    $("leave").hidden = !Api.token.get();
    route();
  }
  function leave(wrong) {
    Api.token.drop();
    caller = null;
    close();
    $("leave").hidden = true;
    $("caller").textContent = "";
    $("alarm").hidden = true;
    Forms.signIn(main, wrong, begin);
  }
  function close() {
    if (list) list.close();
    if (pod) pod.close();
    list = pod = null;
    for (const dialog of document.querySelectorAll("dialog")) dialog.close();  // it belongs to what is left
    main.replaceChildren();
    main.className = "";
  }

  function route() {
    if (!caller) return;
    takeToken();
    let found = null;
    try { found = /^#\/pod\/(.+)$/.exec(location.hash)?.[1].split("/").map(decodeURIComponent).join("/"); } catch { /* no name */ }
    close();
    failed(null);
    const another = () => { say("Another pod has this name now."); route(); };
    const options = { role: caller.role, mayOperate: caller.role !== "read", failed, say, tell, wide, again: route, another };
    if (found) {
      main.className = "one";
      if (rail.matches) {
        const aside = make("aside", { class: "rail", "aria-label": "All pods" });
        main.append(aside);
        list = List.list(aside, options);
        list.choose(found);
      } else document.title = found + " · Pods";
      const home = make("div", { class: "pod" });
      main.append(home);
      pod = PodView.view(home, found, options);
    } else {
      main.className = "all";
      const home = make("div", { class: "list" });
      main.append(home);
      list = List.list(home, options);
      document.title = "Pods";
      main.focus({ preventScroll: true });
    }
  }

  $("leave").addEventListener("click", () => leave(""));
  $("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
  addEventListener("hashchange", () => (/^#token=/.test(location.hash) ? begin() : route()));
  rail.addEventListener("change", route);
  // A page that a browser keeps for the way back holds no connection.
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) route(); });
  begin();
})();
