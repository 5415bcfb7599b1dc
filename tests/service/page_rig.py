"""The service's page in a real browser: a service in a thread, with an agent that does what it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
from service.service_rig import TOKEN, Rig

from pod.service import create_app
from pod.service.access import Tokens
from pod.service.serving import listening, serve
from tests.page.page_browser import Browser
from worker import tool
from worker.models.base import Delta, Emit, Reply, Request
from worker.testing import ScriptedModel, call, calls, say
from worker.testing.scripted import Step

TOKENS = {"reader": "a-token-that-may-only-look", "worker": "a-token-that-may-operate", "ann": TOKEN}
WITHIN = 20.0
"""Seconds for which something is waited for at most."""

gate = threading.Event()
"""Opens what the agent waits for when it is told to `dictate`."""


def play(request: Request) -> Step:
    """Does what the newest message says: `say TEXT`, `read N`, `write`, `mail`, `fail`, `plan`, `dictate`."""
    said = [at for at, item in enumerate(request.items) if item.type == "user"]
    word, _, rest = getattr(request.items[said[-1]], "text", "").partition(" ")
    results = [item for item in request.items[said[-1] :] if item.type == "tool_result"]
    match word:
        case "read" if len(results) < int(rest):
            return call("look", what=f"page {len(results)}")
        case "write" if not results:
            return call("read_file", path="notes.md")
        case "write" if len(results) == 1:
            return call("edit_file", path="notes.md", old="old line\n", new="new line\nand one more\n")
        case "mail" if not results:
            return calls([call("send_mail", to="ann", text="hello"), call("send_mail", to="bob", text="hello")])
        case "background" if not results:
            return call("shell", command="sleep 0.1", background=True)
        case "plan" if not results:
            return call("tasks", add=["first <b>thing</b>", "second thing"])
        case "dictate" if rest == "and look" and not results:
            return call("look", what="a page")
        case "say":
            return say(rest)
        case _:
            return say("Done.")


class Dictating(ScriptedModel):
    """Tells a text piece by piece, the second once the gate is open."""

    async def send(self, request: Request, emit: Emit) -> Reply:
        said = [item.text for item in request.items if item.type == "user"]
        if said[-1].startswith("dictate") and request.items[-1].type == "user":
            emit(Delta("text", "One half "))
            while not gate.is_set():
                await anyio.sleep(0.02)
        return await super().send(request, emit)


@tool
def look(what: str) -> str:
    """Looks at something."""
    return f"{what}: " + "<img src=x onerror=document.title='PWNED'> words and words " * 40


@tool(effect="network")
def send_mail(to: str, text: str) -> str:
    """Sends a mail."""
    return f"sent to {to}"


class Site:
    """A service with its page, in a browser."""

    def __init__(self, rig: Rig, url: str, browser: Browser) -> None:
        self.rig, self.url, self.browser = rig, url, browser

    def open(self, pod: str = "", token: str = TOKEN, **window: Any) -> None:
        """Opens the page anew, in a window of this size: with all pods, or one."""
        self.browser.open("about:blank")
        self.browser.open(f"{self.url}#token={token}", **window)
        self.until(lambda: self.text("#caller"), "somebody")
        if pod:
            self.browser.run("location.hash = '#/pod/' + arguments[0]", pod)

    def ask(self, path: str, body: Any = None) -> Any:
        """Asks the service itself, past the page."""
        import httpx2

        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx2.Client(base_url=self.url, headers=headers, trust_env=False, timeout=60) as client:
            answer = client.get(path) if body is None else client.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def make(self, name: str, task: str | None = None, manifest: str = "plain") -> None:
        """A pod; with a task, until its run is over or waits."""
        self.ask("/v1/pods", {"manifest": manifest, "name": name, **({} if task is None else {"task": task})})
        if task is not None:
            self.settled(name)

    def settled(self, name: str) -> str:
        """How a pod stands once nothing runs."""
        return self.until(lambda: self._standing(name), name)

    def _standing(self, name: str) -> str:
        status = self.ask(f"/v1/pods/{name}")["status"]
        return "" if status in {"running", "queued", "compacting", "answered", "stopped short"} else status

    def until(self, there: Callable[[], Any], what: str) -> Any:
        """What it gives once it is something."""
        end = time.monotonic() + WITHIN
        while time.monotonic() < end:
            if found := there():
                return found
            time.sleep(0.03)
        said = f"{self.text('#alarm')!r}, {self.browser.log()}, {self.text('#main')[:1500]!r}"
        raise AssertionError(f"not within {WITHIN:g} s: {what}; the page says {said}")

    def text(self, selector: str) -> str:
        """The text of the first such element; empty where there is none, or none is shown."""
        return self.browser.run("return document.querySelector(arguments[0])?.innerText || ''", selector)

    def shows(self, words: str, selector: str = "#main") -> None:
        """Waits until this stands there."""
        self.until(lambda: words in self.text(selector), f"{words!r} in {selector}")

    def click(self, words: str, within: str = "body") -> None:
        """Clicks the button or link of these words, which must be there to be clicked."""
        script = (
            "const found = [...document.querySelectorAll(arguments[1] + ' :is(button, a)')].find((each) => each.checkVisibility() &&"
            " !each.disabled && [each.innerText.trim(), each.getAttribute('aria-label')].includes(arguments[0]));"
            "if (!found) return false; found.click(); return true"
        )
        self.until(lambda: self.browser.run(script, words, within), f"a button {words!r} in {within}")

    def fill(self, label: str, text: str) -> None:
        """Fills the field of this label in."""
        script = (
            "const named = [...document.querySelectorAll('label')].find((each) => each.innerText === arguments[0]);"
            'const field = named ? document.getElementById(named.htmlFor) : document.querySelector(`[aria-label="${arguments[0]}"]`);'
            "if (!field) return false; field.value = arguments[1]; field.dispatchEvent(new Event('input', {bubbles: true})); return true"
        )
        self.until(lambda: self.browser.run(script, label, text), f"a field {label!r}")


def rig_of(folder: Path) -> Rig:
    """A home with manifests for an agent that reads, writes and asks."""
    rig = Rig(folder)
    (rig.cwd / "notes.md").write_text("first line\nold line\nlast line\n")
    tools = '[tools]\nenable = ["read_file", "edit_file", "tasks", "shell"]\n'
    rig.manifests.joinpath("plain.toml").write_text(
        f'version = 1\n[model]\nname = "offline:surveyor"\n{tools}[scope]\nread = ["."]\nwrite = ["."]\n[permissions]\nprofile = "safe"\n'
        'rules = [{ tool = "shell", match = "sleep*", action = "allow" }]\n'
        '[context]\nladder = ["coarse"]\n[compaction]\nthreshold = 12000\nrequest_threshold = 12000\n'
    )
    return rig


@contextmanager
def served(rig: Rig, port: int = 0, **options: Any) -> Iterator[str]:
    """A service on a port, or a free one, in a thread of its own; gives its address."""
    listener, ended, up = listening("127.0.0.1", port, None), threading.Event(), threading.Event()
    tokens = {
        **Tokens.single(TOKENS["ann"], "admin", "ann").known,
        **Tokens.single(TOKENS["reader"], "read", "reader").known,
    }
    given: dict[str, Any] = {
        "tokens": Tokens({**tokens, **Tokens.single(TOKENS["worker"], "operate", "worker").known}), "manifests": rig.manifests,
        "home": rig.home, "cwd": rig.cwd, "state": rig.root / "state", "tools": [look, send_mail],
        "model": Dictating([play], strict=False, name="offline:surveyor"), "compact_model": "offline:surveyor",
    }  # fmt: skip

    async def main() -> None:
        ending = anyio.Event()

        async def end() -> None:
            while not ended.is_set():
                await anyio.sleep(0.05)
            ending.set()

        async with anyio.create_task_group() as group:
            group.start_soon(end)
            up.set()
            await serve(create_app(**{**given, **options}), listener, ending)

    thread = threading.Thread(target=anyio.run, args=(main,), kwargs={"backend": "trio"})
    thread.start()
    try:
        assert up.wait(WITHIN)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        gate.set()
        ended.set()
        thread.join()
        listener.close()
