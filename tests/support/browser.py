"""A real browser for pages: Debian's Chromium by its own driver."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.not_here import not_here

#: Chromium's own sandbox needs rights that containers rarely have; what it opens here is a file of ours.
_OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1000,900")
_WITHIN_S = 60


@contextmanager
def browser() -> Iterator[Any]:
    """A browser; skips the test where there is none (WALRAS_REQUIRE=browser: fails)."""
    driver, chromium = shutil.which("chromedriver"), shutil.which("chromium")
    if driver is None or chromium is None:
        not_here("browser", "no chromium and chromedriver here: apt-get install chromium chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for option in _OPTIONS:
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options, Service(driver))
    try:
        opened.set_page_load_timeout(_WITHIN_S)
        opened.set_script_timeout(_WITHIN_S)
        yield opened
    finally:
        opened.quit()
