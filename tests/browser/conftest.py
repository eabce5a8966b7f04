from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from dashboard.hub import Hub
from tests.dashboard.factories import World, full_world
from tests.dashboard.serve import serving
from tests.programs import find_program

FLAGS = ("--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser per module: while it lives, the thread has a running event loop, and no async test could run."""
    chromium = find_program("chromium", "chromium-browser", "google-chrome", package="chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return full_world(tmp_path)


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with serving(world, Hub(tick_s=0.1)) as url:
        yield url


class Visit:
    """A page, and all that went wrong on it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.troubles: list[str] = []
        page.on("console", lambda m: self.troubles.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("requestfailed", self._on_failure)
        page.on("response", lambda r: self.troubles.append(f"{r.status} {r.url}") if r.status >= 400 else None)
        page.on("request", lambda r: None if r.url.startswith(url) else self.troubles.append(f"outside: {r.url}"))

    def _on_failure(self, request: Request) -> None:
        if "/api/events" not in request.url:  # a stream is cut when the page is left
            self.troubles.append(f"failed: {request.url}")

    def open(self, path: str) -> None:
        """Go there, and wait until the page's stream is open."""
        self.page.goto(self.url + path)
        expect(self.page.locator("html[data-live]")).to_be_attached()


@pytest.fixture
def visit(browser: Browser, url: str) -> Iterator[Visit]:
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    yield Visit(context.new_page(), url)
    context.close()
