"""Sample runs, their site, and a real browser."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from aiohttp import web
from playwright.sync_api import Browser, Page, sync_playwright

from swe_core.system.http_server import serve
from swe_core.view.server import application
from swe_core.view.site import Site
from swe_testing.sample_runs import sample_training

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a sample training. Tests only read it."""
    path = tmp_path_factory.mktemp("runs") / "train"
    sample_training(path)
    return path


@contextmanager
def served(site: Site, key: str | None = None) -> Iterator[str]:
    """Serve `site` from a thread of its own, and yield its URL."""
    started, stop = threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    found: list[str] = []

    async def main() -> None:
        runner = web.AppRunner(application(site, key), access_log=None, shutdown_timeout=1)
        async with serve(runner) as url:
            found.append(url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    try:
        if not started.wait(30):
            raise TimeoutError("the server did not start")
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture
def shown() -> Iterator[Callable[[Site], str]]:
    """Serve a site until the test ends: `shown(site)` is its URL."""
    with ExitStack() as stack:
        yield lambda site: stack.enter_context(served(site))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A headless Chromium, the one of the system.

    Playwright keeps an event loop running in this thread, so it ends with the file: async tests may follow.
    """
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt install chromium")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser, shown: Callable[[Site], str]) -> Iterator[Page]:
    """A page of the browser, which closes before the servers of the test end.

    The test fails on an error in its console, and on a request to another host.
    """
    context = browser.new_context(viewport={"width": 1300, "height": 900})
    opened, problems = context.new_page(), list[str]()
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: None if _local(request.url) else problems.append(request.url))
    yield opened
    context.close()
    assert problems == []


def _local(url: str) -> bool:
    return url.startswith(("http://127.0.0.1:", "file://", "data:"))
