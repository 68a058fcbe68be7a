"""Headless Chromium for tests of pages: the fixture `browser`. Tests are skipped where chromium, its driver or selenium
is missing."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
NEED = "GRADLOOM_NEED_BROWSER"  # of the environment: without a browser, tests fail instead of being skipped


class Browser:
    """A tab. `errors`: what pages have logged as an error; `requests`: the URLs that they have loaded or tried to."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver
        self.errors: list[str] = []
        self.requests: list[str] = []

    def open(self, path: Path, width: int = 1280, height: int = 900, end: str = "", **media: str) -> None:
        """Load a page and wait until its figures are drawn. end: of the address. media: features such as
        prefers_color_scheme="dark"."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(path.absolute().as_uri() + end)
        self.until(lambda: self.js("return document.documentElement.dataset.ready") == "true")
        self.collect()

    def collect(self) -> None:
        self.errors += [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self.requests.append(message["params"]["request"]["url"])

    def js(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def find(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def click(self, element: Any) -> None:
        """Scroll to an element and click it."""
        self.js("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def until(self, holds: Callable[[], object], seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"not within {seconds} s; errors: {self.errors}"
            time.sleep(0.02)

    def settle(self) -> None:
        """Wait until what the last event has changed is drawn."""
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()));"
        )


def launched() -> Any:
    """A driver of headless Chromium. Skips the test where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    missing = [name for name, path in (("chromium", found), ("chromedriver", shutil.which("chromedriver"))) if not path]
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        missing.append("the package selenium")
    if missing:
        text = f"needs {', '.join(missing)}"
        if os.environ.get(NEED):
            pytest.fail(text)
        pytest.skip(text)
    options = webdriver.ChromeOptions()
    options.binary_location = str(found)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    made = launched()
    yield made
    made.quit()


@pytest.fixture
def browser(driver: Any) -> Iterator[Browser]:
    """A browser; after the test, no page has logged an error or requested anything but files of its own."""
    one = Browser(driver)
    yield one
    one.collect()
    assert one.errors == []
    assert [url for url in one.requests if not url.startswith(("file:", "data:", "about:"))] == []
    assert len([url for url in one.requests if url.startswith("file:") and not url.endswith(".html")]) == 0
