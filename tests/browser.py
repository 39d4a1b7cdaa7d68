"""A real browser for tests of pages: headless Chromium, watched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest


class Browser:
    """Opens files and tells what the page said on its console and what it asked the network for."""

    def __init__(self) -> None:
        chromium, driver = (shutil.which(name) for name in ("chromium", "chromedriver"))
        if chromium is None or driver is None:
            pytest.skip("skipped: no chromium and chromium-driver to open the page in")
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        # the sandbox does not start for root, nor a small /dev/shm hold a page
        for switch in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver))

    def open(self, path: Path, *, scheme: str = "light", width: int = 1100) -> None:
        """Open a file in a colour scheme and a width; forget what was logged before."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        self.driver.get("about:blank")
        for log in ("browser", "performance"):
            self.driver.get_log(log)
        self.driver.get(path.as_uri())

    def console(self) -> list[str]:
        """Return what was written to the console since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """Return the addresses that were asked for; those that hold their own data are none."""
        events = [json.loads(entry["message"]) for entry in self.driver.get_log("performance")]
        messages = [event["message"] for event in events]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
            and not message["params"]["request"]["url"].startswith("data:")
        ]

    def run(self, script: str, *arguments: Any) -> Any:
        """Run JavaScript in the page and return its value."""
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[Any]:
        """Return the elements that a CSS selector names."""
        return self.driver.find_elements("css selector", selector)

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()
