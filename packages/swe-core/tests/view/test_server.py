"""The server of the viewer: what it answers, and to whom."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from aiohttp.test_utils import TestClient, TestServer

from swe_core.system.seal import contents_of
from swe_core.view.server import POLICY, application
from swe_core.view.site import NotShown, Site
from swe_testing.records import make_run
from swe_testing.sample_runs import WordTokenizer, add_sample, sample_training

from .html import html


@asynccontextmanager
async def client(site: Site, key: str | None = None) -> AsyncIterator[TestClient]:
    async with TestClient(TestServer(application(site, key))) as found:
        yield found


async def test_pages_allow_no_foreign_script_and_no_cache(training: Path) -> None:
    async with client(Site([training])) as browser:
        outside = ("/assets/..%2fserver.py", "/assets/%2e%2e/server.py", "/run/../../etc/passwd/")
        absent = dict.fromkeys(("/run/none/", "/assets/none", *outside), 404)
        for path, status in {"/": 200, "/run/train/": 200, **absent}.items():
            answer = await browser.get(path)
            assert answer.status == status
            assert answer.headers["Content-Security-Policy"] == POLICY
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Cache-Control"] == "no-store"
        answer = await browser.get("/run/train?text=moto", allow_redirects=False)
        assert (answer.status, answer.headers["Location"]) == (302, "./train/?text=moto")
        assert "unsafe" not in POLICY


async def test_server_only_reads(training: Path) -> None:
    before = contents_of(training)
    async with client(Site([training])) as browser:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert (await browser.request(method, "/run/train/")).status == 405
        await browser.get("/run/train/")
    assert contents_of(training) == before


async def test_foreign_host_name_is_refused(training: Path) -> None:
    """A website whose name resolves to loopback must not read the pages."""
    async with client(Site([training])) as browser:
        for host, status in (("evil.example", 403), ("localhost:8118", 200), ("[::1]:8118", 200)):
            assert (await browser.get("/", headers={"Host": host})).status == status


async def test_key_in_the_url_becomes_a_cookie(training: Path) -> None:
    async with client(Site([training]), "secret-key") as browser:
        for path in ("/run/train/", "/assets/view.css", "/?key=wrong"):
            assert (await browser.get(path)).status == 403
        assert (await browser.get("/", headers={"Cookie": "swe-core-view=\udcff"})).status == 403
        answer = await browser.get("/run/train/?key=secret-key", allow_redirects=False)
        assert (answer.status, answer.headers["Location"]) == (302, "/run/train/")
        assert "HttpOnly" in answer.headers["Set-Cookie"]
        assert "SameSite=Strict" in answer.headers["Set-Cookie"]
        assert (await browser.get("/run/train/")).status == 200


async def test_damaged_run_is_a_sentence_and_the_others_stay(training: Path, tmp_path: Path) -> None:
    """Nor does a start without a zone, which an earlier version wrote, disturb the list."""
    for name in ("one", "two"):
        make_run(tmp_path / name)
    (tmp_path / "one" / "rollouts.jsonl").write_bytes(b"{}\n")
    info = orjson.loads((tmp_path / "two" / "run.json").read_bytes())
    info["created_at"] = "2026-01-02T03:04:05"
    (tmp_path / "two" / "run.json").write_bytes(orjson.dumps(info))
    site = Site([tmp_path])
    site.read_ahead()
    async with client(site) as browser:
        text = await (await browser.get("/")).text()
        assert "is damaged at byte" in text
        assert "run/two/" in text
        answer = await browser.get("/run/one/")
        assert answer.status == 500
        assert "is damaged at byte" in await answer.text()


async def test_page_answers_204_until_the_run_changes(tmp_path: Path) -> None:
    run = sample_training(tmp_path / "run")
    async with client(Site([tmp_path / "run"])) as browser:
        text = await (await browser.get("/run/run/")).text()
        version = text.partition('data-follow="')[2].partition('"')[0]
        assert (await browser.get("/run/run/", params={"version": version})).status == 204
        add_sample(run, WordTokenizer(), "late-g9-0", "late", 0, "resolved")
        answer = await browser.get("/run/run/", params={"version": version})
        assert answer.status == 200
        assert "late-g9-0" in await answer.text()


def test_what_is_not_there_is_a_sentence(training: Path) -> None:
    for place, said in (
        ("compare/train/none", "There is no run 'none' here"),
        ("run/train/rollout/none", "The run 'train' has no rollout 'none'"),
        ("run/train/group/g77", "has no group 'g77'"),
    ):
        with pytest.raises(NotShown, match=said):
            html(Site([training]), *place.split("/"))
