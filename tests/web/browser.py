"""The chat page in a real browser: Debian's Chromium, headless, driven by selenium."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.fakes import PATIENCE
from tests.web.servers import Server, needs

ENTER, SHIFT_ENTER, CONTROL_ENTER = "\ue007", "\ue008\ue007\ue008", "\ue009\ue007\ue009"
ESCAPE, TAB, SPACE = "\ue00c", "\ue004", "\ue00d"
ALT = "\ue00a"

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # CI runs as root.
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    # A browser that looks for updates would try closed ports.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def needs_browser() -> None:
    """Skip the test if there is no browser to drive."""
    needs("waitress", "selenium")
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            pytest.skip(f"browser: {program} is not installed (Debian's chromium and chromium-driver)")


@contextmanager
def browser(folder: Path, *, width: int = 1000, height: int = 800) -> Iterator[Browser]:
    """A new browser without any history."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={folder}", f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Chromium also writes next to its profile.
    env = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"), env=env))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


class Browser:
    """What a person does on the page, and sees there."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)
        self.until(lambda: self.count("#provider option"))

    def reload(self) -> None:
        self.driver.refresh()
        self.until(lambda: self.count("#provider option"))

    def find(self, selector: str) -> Any:
        """The first match, as soon as there is one."""
        self.until(lambda: self.count(selector))
        return self.driver.find_element("css selector", selector)

    def count(self, selector: str) -> int:
        return len(self.driver.find_elements("css selector", selector))

    def text(self, selector: str = "#log") -> str:
        """The text of the first match, as soon as there is one."""
        self.until(lambda: self.count(selector))
        return str(self.driver.execute_script("return document.querySelector(arguments[0]).textContent", selector))

    def shows(self, selector: str) -> bool:
        return bool(self.find(selector).is_displayed())

    def type(self, keys: str, selector: str = "#prompt") -> None:
        self.find(selector).send_keys(keys)

    def click(self, selector: str) -> None:
        self.find(selector).click()

    def until(self, predicate: Callable[[], Any]) -> None:
        """Wait (bounded) until the page is in this state."""
        deadline = time.monotonic() + PATIENCE
        while not predicate():
            if time.monotonic() > deadline:
                raise AssertionError(f"the page stayed as it is: {self.script('return document.body?.textContent')}")
            time.sleep(0.02)

    def press(self, keys: str) -> None:
        """Press these keys where the focus is."""
        self.driver.switch_to.active_element.send_keys(keys)

    def script(self, code: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns."""
        return self.driver.execute_script(code, *arguments)

    def on_a_phone(self) -> None:
        """From now on, a small touch screen."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 375, "height": 667, "deviceScaleFactor": 2, "mobile": True}
        )

    def turns_done(self, number: int) -> None:
        self.until(lambda: self.count(".cost") == number and not self.count(".busy"))

    def close_tabs(self, but: str) -> None:
        """Close all tabs but one."""
        for tab in self.driver.window_handles:
            if tab != but:
                self.driver.switch_to.window(tab)
                self.driver.close()
        self.driver.switch_to.window(but)

    def forget(self, origins: list[str]) -> None:
        """Forget what pages have stored, and what the browser has complained about."""
        for origin in origins:
            self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": "all"})
        self.complaints()

    def complaints(self) -> list[str]:
        """The browser's own messages: blocked scripts, failed requests."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def screenshot(self, name: str) -> None:
        """Saved if somebody wants to look: `REMOTECLAW_SYNC_SCREENSHOTS` is a folder."""
        if folder := os.environ.get("REMOTECLAW_SYNC_SCREENSHOTS"):
            self.driver.save_screenshot(os.path.join(folder, f"{name}.png"))


class Starter(Protocol):
    """Starts `remoteclaw-sync serve`."""

    def __call__(
        self, *options: str, pace: float = 0.0, cwd: Path | None = None, port: int | None = None
    ) -> Server: ...


Opener = Callable[[Server], Browser]
NewBrowser = Callable[[], Browser]
