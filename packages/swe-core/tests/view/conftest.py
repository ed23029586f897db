"""Sample runs, their site, and a real browser."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from aiohttp import web
from anyio.from_thread import start_blocking_portal
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


@pytest.fixture
def shown() -> Iterator[Callable[[Site], str]]:
    """Serve a site until the test ends: `shown(site)` is its URL."""
    with ExitStack() as stack:
        portal = stack.enter_context(start_blocking_portal())

        def serving(site: Site) -> str:
            runner = web.AppRunner(application(site), access_log=None, shutdown_timeout=1)
            return stack.enter_context(portal.wrap_async_context_manager(serve(runner)))

        yield serving


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
