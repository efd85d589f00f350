"""A headless browser, spoken to over two pipes in the DevTools protocol; no driver, no port."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-quic"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe"),
)
PATIENCE_S = 60


def find_browser() -> str | None:
    """The first browser there is."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Tab:
    """One open page, and every message that it sent."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, from_browser
        self._rest = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session: str | None = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    _session = None

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its answer."""
        return self._call(method, parameters)

    def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            piece = os.read(self._from, 1 << 20)
            assert piece, "the browser is gone"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def open(self, page: Path, *, width: int, dark: bool, height: int = 900) -> None:
        """Show a file from disk in a window of this width."""
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.events.clear()
        self.call("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + PATIENCE_S
        while not any(e.get("method") == "Page.loadEventFired" for e in self.events):
            assert time.monotonic() < until, "the page did not load"
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """A key of the keyboard, down and up."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def picture(self, path: Path, whole: bool = True) -> None:
        """What the page looks like, as PNG."""
        answer = self.call(
            "Page.captureScreenshot", captureBeyondViewport=whole, **self._clip(whole)
        )
        path.write_bytes(base64.b64decode(answer["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {**size, "x": 0, "y": 0, "scale": 1}}

    def complaints(self) -> list[str]:
        """Errors, warnings and violations that the page caused."""
        found = []
        for event in self.events:
            name, content = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown":
                found.append(str(content["exceptionDetails"]))
            if name == "Runtime.consoleAPICalled" and content["type"] in ("error", "warning"):
                found.append(str(content["args"]))
            if name == "Log.entryAdded" and content["entry"]["level"] in ("error", "warning"):
                found.append(content["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for."""
        sent = [e["params"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [content["request"]["url"] for content in sent]


@contextmanager
def browser(program: str) -> Iterator[Tab]:
    """A browser with a profile of its own, for as long as it is needed."""
    profile = tempfile.mkdtemp(prefix="browser-")
    read_by_browser, to_browser = os.pipe()
    from_browser, written_by_browser = os.pipe()

    def arrange() -> None:
        # The browser listens on 3 and answers on 4; the ends could overlap these numbers.
        first, second = os.dup(read_by_browser), os.dup(written_by_browser)
        os.dup2(first, 3)
        os.dup2(second, 4)

    process = subprocess.Popen(
        [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=arrange,
    )
    os.close(read_by_browser)
    os.close(written_by_browser)
    try:
        yield Tab(to_browser, from_browser)
    finally:
        with suppress(OSError):
            os.close(to_browser)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(from_browser)
        shutil.rmtree(profile, ignore_errors=True)
