"""A real Chromium for tests that look at pages as a person does."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# As root and without a screen; and nothing of Chromium's own may look for the network.
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


class WatchedPage:
    """A page, and everything it asked for, complained about or popped up."""

    def __init__(self, page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.problems: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: message.type == "error" and self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: (self.problems.append(dialog.message), dialog.dismiss()))

    def open(self, address: str) -> None:
        self.page.goto(address, timeout=60_000)


@contextmanager
def open_browser(*, width: int = 1000, scheme: str = "light") -> Iterator[WatchedPage]:
    """Give a page of a new browser; the test is skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=list(FLAGS), timeout=120_000)
        try:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
            context.grant_permissions(["clipboard-read", "clipboard-write"])
            yield WatchedPage(context.new_page())
        finally:
            browser.close()
