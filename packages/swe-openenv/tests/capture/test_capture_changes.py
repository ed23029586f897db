"""A session that is made again, or deleted: what stays, what changes, and what is gone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from swe_core.system.redaction import Redactor
from swe_openenv.capture.options import PartRecord
from swe_openenv.capture.store import OpenPart

from .engines import CALL, HELLO, Qwen, ask, bearer, converse, ours, session

pytestmark = pytest.mark.anyio


async def test_change_keeps_what_it_does_not_name(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server(CALL) as engine, ours(engine, tmp_path / "c") as client:
        trained = {"purpose": "train", "sampling": {"temperature": 0.5}, "metadata": {"max_output_tokens": 7}}
        evaluated = {"purpose": "eval", "eval_sampling": {"temperature": 0.3}}
        for kind, body in (("train", trained), ("eval", evaluated)):
            key = await session(client, **body)
            await ask(client, key)
            made = (
                await client.post("/sessions", json={"session_id": key, "metadata": {"note": "x"}})
            ).json()
            assert made["rollout_type"] == kind
            await ask(client, key, [*HELLO, *HELLO])
        back = {"session_id": key, "purpose": "auto"}
        assert (await client.post("/sessions", json=back)).json()["rollout_type"] == "train"
        await ask(client, key)
    bodies = [one.body for one in engine.requests]
    assert [body["temperature"] for body in bodies] == [0.5, 0.5, 0.3, 0.3, 1.0]
    assert [body["max_tokens"] for body in bodies] == [7, 7, 8192, 8192, 8192]


async def test_training_sampling_does_not_make_an_evaluation_a_training(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client, purpose="eval")
        refused = await client.post("/sessions", json={"session_id": key, "sampling": {"temperature": 0.5}})
        assert refused.status_code == 400
        assert refused.json()["error"]["message"] == (
            "eval purpose cannot apply a training sampling override"
        )


async def test_change_leaves_the_record_of_earlier_calls(qwen: Qwen, tmp_path: Path) -> None:
    out = tmp_path / "c"
    async with qwen.server(CALL, models=("scripted", "other")) as engine:
        async with ours(engine, out) as client:
            key = await session(client, purpose="train", sampling={"temperature": 0.5})
            await ask(client, key)
            await session(client, session_id=key, sampling={"temperature": 0.9})
            await ask(client, key)
            await session(client, session_id=key, llm_url=engine.url, model="other")
            await ask(client, key)
            before = await _documents(client, key)
        async with ours(engine, out) as client:
            assert await _documents(client, key) == before
    rollout, entries = before
    found = [(turn["sampling_params"]["temperature"]) for turn in rollout["turns"]]
    assert found == [0.5, 0.9, 0.9]
    assert [entry["metadata"]["model"] for entry in entries] == ["scripted", "scripted", "other"]
    assert [entry["metadata"]["sampling_params"]["temperature"] for entry in entries] == found


async def _documents(client: httpx.AsyncClient, key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    rollout = (await client.get(f"/sessions/{key}/rollout?include_discarded=1")).json()
    return rollout, (await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]


async def test_change_of_no_engine_leaves_a_call_in_flight(qwen: Qwen, tmp_path: Path) -> None:
    stuck, go = anyio.Event(), anyio.Event()

    async def between(sent: int) -> None:
        if engine.requests:  # else it is a probe
            stuck.set()
            await go.wait()

    async with qwen.server(CALL, between=between) as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client, max_model_calls=5)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, client, key)
            await stuck.wait()
            changed = {"session_id": key, "max_model_calls": 6, "metadata": {"a": 1}}
            made = await client.post("/sessions", json=changed)
            assert made.json()["max_model_calls"] == 6
            go.set()
        assert (await client.get(f"/sessions/{key}")).json()["n_turns"] == 1
        await session(client, session_id=key)
        await ask(client, key, [*HELLO, *HELLO])
    assert len(list((tmp_path / "c" / "rollouts").glob("*/*/turns.jsonl"))) == 1


async def test_change_while_the_engine_is_down_keeps_the_tokens(qwen: Qwen, tmp_path: Path) -> None:
    out = tmp_path / "c"
    async with qwen.server(CALL) as engine:
        async with ours(engine, out) as client:
            key = await session(client, purpose="train")
            await converse(client, key, 1)
    async with ours(engine, out) as client:  # nobody answers at its URL
        changed = {"session_id": key, "sampling": {"temperature": 0.5}}
        made = (await client.post("/sessions", json=changed)).json()
        assert (made["capture_level"], made["rollout_type"]) == ("tokens", "train")
        assert len((await client.get(f"/sessions/{key}/trace_entries")).json()["entries"]) == 1
        new = (await client.post("/sessions", json={})).json()
        assert new["capture_level"] == "text"


async def test_change_opens_a_session_whose_engine_failed(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi", faults=["refuse"]) as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client, purpose="train")
        request = {"json": {"model": "any", "messages": HELLO}, "headers": bearer(key)}
        for _ in range(2):
            assert (await client.post("/v1/chat/completions", **request)).status_code == 424
        assert len(engine.requests) == 1
        await session(client, session_id=key)
        await ask(client, key)
        assert (await client.get(f"/sessions/{key}")).json()["n_turns"] == 1


async def test_change_opens_a_session_whose_agent_submitted(qwen: Qwen, tmp_path: Path) -> None:
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client)
        (folder,) = (tmp_path / "c" / "rollouts").iterdir()
        left = await client.post(f"/rollout/{folder.name}-0/exit", headers=bearer(key))
        assert left.json() == {"ok": True}
        request = {"json": {"model": "any", "messages": HELLO}, "headers": bearer(key)}
        assert (await client.post("/v1/chat/completions", **request)).status_code == 410
        await session(client, session_id=key)
        await ask(client, key)


async def test_session_made_while_it_is_deleted_is_whole(qwen: Qwen, tmp_path: Path) -> None:
    """The delete waits for a call in flight; those who make the session meanwhile get a new one."""
    stuck = anyio.Event()

    async def between(sent: int) -> None:
        if engine.requests and not stuck.is_set():
            stuck.set()
            await anyio.sleep_forever()

    out = tmp_path / "c"
    statuses: list[int] = []
    async with qwen.server(CALL, between=between) as engine:
        async with ours(engine, out) as client:
            key = await session(client, purpose="train")

            async def call() -> None:
                request = {"json": {"model": "any", "messages": HELLO}, "headers": bearer(key)}
                statuses.append((await client.post("/v1/chat/completions", **request)).status_code)

            async def delete() -> None:
                assert (await client.delete(f"/sessions/{key}")).json() == {"deleted": True}

            async def make() -> None:
                await session(client, session_id=key, purpose="train", sampling={"temperature": 0.5})

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await stuck.wait()
                tasks.start_soon(delete)
                for _ in range(4):
                    tasks.start_soon(make)
            await make()
            await ask(client, key)
        assert statuses == [410]
        async with ours(engine, out) as client:
            rollout, entries = await _documents(client, key)
            assert len(rollout["turns"]) == len(entries) == 1
    assert len(list((out / "rollouts").iterdir())) == 1


async def test_changes_at_once_are_made_one_after_the_other(qwen: Qwen, tmp_path: Path) -> None:
    """Each opens another gate of the same key, and a gate takes a while to close."""
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        key = await session(client)

        async def change(number: int) -> None:
            await session(client, session_id=key, metadata={str(number): 1, "max_output_tokens": number})

        async with anyio.create_task_group() as tasks:
            for number in range(1, 9):
                tasks.start_soon(change, number)
        await ask(client, key)
        rollout = (await client.get(f"/sessions/{key}/rollout")).json()
    assert rollout["metadata"].keys() >= {str(number) for number in range(1, 9)}
    assert engine.requests[0].body["max_tokens"] == rollout["metadata"]["max_output_tokens"]


async def test_deleted_session_leaves_no_files(qwen: Qwen, tmp_path: Path) -> None:
    out = tmp_path / "c"
    async with qwen.server("hi") as engine, ours(engine, out) as client:
        key, other = await session(client), await session(client)
        for one in (key, other):
            await ask(client, one)
        assert (await client.delete(f"/sessions/{key}")).json() == {"deleted": True}
        assert (await client.delete(f"/sessions/{key}")).json() == {"deleted": False}
        assert len(list((out / "rollouts").iterdir())) == 1
        await ask(client, other, [*HELLO, *HELLO])


async def test_delete_that_was_killed_is_finished_at_the_next_start(qwen: Qwen, tmp_path: Path) -> None:
    """It had renamed the folder, and not removed it: neither a session nor files come back."""
    out = tmp_path / "c"
    async with qwen.server("hi") as engine:
        async with ours(engine, out) as client:
            await ask(client, await session(client))
        (folder,) = (out / "rollouts").iterdir()
        folder.rename(folder.with_name(f"{folder.name}.deleted-0123456789abcdef"))
        kept = out / "rollouts" / "notes.deleted-by-me"
        kept.mkdir()
        async with ours(engine, out) as client:
            assert (await client.get("/sessions")).json() == {"sessions": []}
    assert list((out / "rollouts").iterdir()) == [kept]


async def test_delete_that_fails_is_answered_and_others_are_served(qwen: Qwen, tmp_path: Path) -> None:
    rollouts = tmp_path / "c" / "rollouts"
    async with qwen.server("hi") as engine, ours(engine, tmp_path / "c") as client:
        key, other = await session(client), await session(client)
        aside = rollouts.rename(tmp_path / "aside")
        failed = await client.delete(f"/sessions/{key}")
        assert failed.status_code == 500
        assert failed.json()["error"]["message"] == "the capture server failed to answer; its log says why"
        again = await client.post("/sessions", json={"session_id": other, "metadata": {"a": 1}})
        assert again.status_code == 500
        aside.rename(rollouts)
        await ask(client, other)
        await session(client, session_id=key)  # opens it again
        await ask(client, key)
        assert (await client.delete(f"/sessions/{key}")).json() == {"deleted": True}
    shutil.rmtree(rollouts)


def test_part_that_is_closed_records_no_delivery(tmp_path: Path) -> None:
    """A slow client may get its last byte when the next part is open already, or the session is deleted."""
    part = OpenPart(tmp_path, PartRecord(model="m", level="tokens"), Redactor())
    part.add_delivered(0)
    part.close()
    part.add_delivered(1)
    assert (tmp_path / "delivered").read_bytes() == b"0\n"
