"""A real headless Chromium, spoken to over WebDriver with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

MISSING = next((f"{name} is not installed" for name in ("chromedriver", "chromium") if shutil.which(name) is None), "")
"""Why there is no browser; empty where there is one."""

KEYS = {
    "Enter": "\ue007", "Left": "\ue012", "Right": "\ue014", "Up": "\ue013", "Down": "\ue015", "Home": "\ue011", "End": "\ue010",
    "Tab": "\ue004", "Escape": "\ue00c", "Control": "\ue009",
}  # fmt: skip

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Browser:
    """One browser with one page. Everything it logs and every request it makes is kept."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="page-", ignore_cleanup_errors=True)
        folder = self._folder.name  # short: the path of a socket has an end
        environment = {**os.environ, "HOME": folder, "TMPDIR": folder}
        self._driver = subprocess.Popen(
            ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        assert self._driver.stdout is not None
        port = next(
            int(line.rsplit(b" ", 1)[1].strip(b".\n"))
            for line in self._driver.stdout
            if b"successfully on port " in line
        )
        self._url = f"http://127.0.0.1:{port}/session"
        flags = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--no-first-run"]
        options = {"args": [*flags, "--disable-background-networking", f"--user-data-dir={folder}/profile"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        try:
            self._url += "/" + self("", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
            self("/url", {"url": "about:blank"})
        except BaseException:
            self._driver.kill()
            self._end()
            raise

    def __call__(self, path: str, body: Any = None, method: str = "POST") -> Any:
        data = None if method != "POST" else json.dumps(body or {}).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with _DIRECT.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path}: {json.load(error)['value']['message']}") from None

    def close(self) -> None:
        """Ends the browser and its driver."""
        try:
            self("", method="DELETE")
        finally:
            self._driver.terminate()
            self._end()

    def _end(self) -> None:
        self._driver.wait(30)
        assert self._driver.stdout is not None
        self._driver.stdout.close()
        self._folder.cleanup()

    def devtools(self, command: str, **params: Any) -> Any:
        return self("/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, path: Path | str, width: int = 1200, height: int = 900, scheme: str = "light") -> None:
        """Opens a file, or an address."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.log(), self.requests()
        self("/url", {"url": path if isinstance(path, str) else path.as_uri()})

    def run(self, script: str, *args: Any) -> Any:
        return self("/execute/sync", {"script": script, "args": list(args)})

    def press(self, *keys: str) -> None:
        """Presses keys, one after another, on what has the focus."""
        active = self("/element/active", method="GET")[_ELEMENT]
        for key in keys:
            self(f"/element/{active}/value", {"text": KEYS.get(key, key)})

    def chord(self, *keys: str) -> None:
        """Holds all keys but the last one, presses that, and lets them go."""
        held = [KEYS.get(key, key) for key in keys]
        down = [{"type": "keyDown", "value": key} for key in held]
        up = [{"type": "keyUp", "value": key} for key in reversed(held)]
        self("/actions", {"actions": [{"type": "key", "id": "keys", "actions": down + up}]})

    def click(self, x: float, y: float) -> None:
        """Clicks at a place of the window."""
        actions = [
            {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        self("/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]})

    def log(self) -> list[str]:
        """What the console said since the last call."""
        return [entry["message"] for entry in self("/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """What was asked for since the last call, in any way that the browser knows."""
        messages = [json.loads(entry["message"])["message"] for entry in self("/se/log", {"type": "performance"})]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        found = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
