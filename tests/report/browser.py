"""A real browser without a window, driven through its debugging pipe: Chromium and the standard library."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 30.0
KEYS = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "End": 35}
START = (
    "import os, sys\n"
    "one, other = (os.dup(int(number)) for number in sys.argv[1:3])\n"
    "one, other = (os.dup(number) if number < 5 else number for number in (one, other))\n"
    "os.dup2(one, 3); os.dup2(other, 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])\n"
)
"""Hands the two ends of the pipe on as 3 and 4, where the browser expects them."""


def find_browser() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page; what the page complains about is kept in ``complaints``."""

    def __init__(self, program: str, folder: Path) -> None:
        theirs, self._out = os.pipe()
        self._in, ours = os.pipe()
        words = [
            *(program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *("--disable-dev-shm-usage", "--hide-scrollbars", "--disable-extensions", "--force-color-profile=srgb"),
            *("--disable-background-networking", f"--user-data-dir={folder}", "about:blank"),
        ]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(theirs), str(ours), *words],
            pass_fds=(theirs, ours),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(ours)
        self._buffer = b""
        self._numbers = itertools.count(1)
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._session = None
            self.tell("Browser.close")
        except (OSError, RuntimeError):
            pass
        finally:
            os.close(self._out)
            os.close(self._in)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    # --- the protocol

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one message and wait for its answer; events that come in between are taken note of."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._out, data) :]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                found: dict[str, Any] = answer.get("result", {})
                return found
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise RuntimeError("the browser does not answer")
            found = os.read(self._in, 1 << 20)
            if not found:
                raise RuntimeError("the browser went away")
            self._buffer += found
        message, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        what, facts = event.get("method"), event.get("params", {})
        if what == "Runtime.exceptionThrown":
            details = facts["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description") or details.get("text", ""))
        elif what == "Runtime.consoleAPICalled" and facts["type"] in ("error", "warning", "assert"):
            self.complaints.append(" ".join(str(one.get("value", one.get("description"))) for one in facts["args"]))
        elif what == "Log.entryAdded" and facts["entry"]["level"] in ("error", "warning"):
            self.complaints.append(facts["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])

    # --- what a person does

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Open a page at some size, and wait until it says that it is ready."""
        self.complaints.clear()
        self.requests.clear()
        self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.tell("Emulation.setEmulatedMedia", features=scheme)
        self.tell("Page.navigate", url=page.as_uri())
        self.wait("document.documentElement?.dataset.ready === 'yes'")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.tell("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        end = time.monotonic() + PATIENCE
        while not self.run(f"Boolean({condition})"):
            if time.monotonic() > end:
                raise RuntimeError(f"never came true: {condition}; {self.complaints}")
            time.sleep(0.02)

    def press(self, *keys: str) -> None:
        for key in keys:
            number = ord(key.upper()) if len(key) == 1 and key.isalnum() else KEYS.get(key, 0)
            facts: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": number}
            if key == "Enter":
                facts["text"] = "\r"
            elif len(key) == 1:
                facts["text"] = key
            self.tell("Input.dispatchKeyEvent", type="keyDown", **facts)
            self.tell("Input.dispatchKeyEvent", type="keyUp", key=key)

    def choose(self, box: str, value: str) -> None:
        """Set a select box, as a person would."""
        self.run(
            f"(box => {{ box.value = {json.dumps(value)}; box.dispatchEvent(new Event('change')); }})"
            f"(document.getElementById({json.dumps(box)}))"
        )

    def settle(self) -> None:
        """Wait until two frames were drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def click(self, selector: str, across: float, down: float) -> None:
        """Click into an element, at shares of its width and height, after scrolling to it."""
        left, top, width, height = self.run(
            f"(one => {{ one.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            " const box = one.getBoundingClientRect(); return [box.left, box.top, box.width, box.height]; })"
            f"(document.querySelector({json.dumps(selector)}))"
        )
        x, y = left + across * width, top + down * height
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.tell("Input.dispatchMouseEvent", type=kind, x=x, y=y, **button)

    def picture(self, target: Path, *, whole: bool = True) -> None:
        """A screenshot; of the whole page, or of what the window shows."""
        self.settle()
        answer = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        target.write_bytes(base64.b64decode(answer["data"]))
