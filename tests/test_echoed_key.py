"""A provider that echoes its key: nothing that a run writes has it, and no sandbox."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import anyio.to_thread
import pyarrow.parquet
import pytest
from click.testing import CliRunner

from swe_core.cli.report import report
from swe_core.hub.rows import shard
from swe_core.hub.secrets import push_redactor
from swe_core.rollout.recording import RecordedReply
from swe_core.rollout.run_directory import RunDirectory
from swe_core.system.redaction import MARK
from swe_core.tokens.chains import chains_of
from swe_testing.provider import ScriptedProvider, say
from swe_testing.vllm import tool_call

from .conftest import Done, Scripted, SweCore

PLUGIN = str(Path(__file__).with_name("echoing_agent.py"))
TASK = "demo__memofn-1"
CANARY = "sk-Canary-0815-4711"
OTHER = "sk-another-key-0123"

pytestmark = pytest.mark.usefixtures("local_sandbox")


async def run_with(swe_core: SweCore, tmp_path: Path, engine: str, url: str, key: str) -> Done:
    variable = {"openai": "OPENAI_API_KEY", "vllm": "VLLM_API_KEY"}[engine]
    args = ["-p", PLUGIN, "--agent", "echoing", "--task", TASK, "--engine", engine, "--engine-url", url]
    args += ["--model", "scripted", "--record", str(tmp_path / "recording.jsonl")]
    done = await anyio.to_thread.run_sync(partial(swe_core, *args, env={variable: key}))
    assert done.code == 0, done.stderr
    return done


def written(done: Done, tmp_path: Path) -> dict[str, bytes]:
    """All that there is of a run, by what it is. The agent's files are in the patch."""
    page, sheet = tmp_path / "page.html", tmp_path / "results.csv"
    shown = CliRunner().invoke(report, [str(done.out), "--html", str(page), "--csv", str(sheet)])
    assert shown.exit_code == 0, shown.output
    run = RunDirectory.open(done.out)
    (tmp_path / "shard").write_bytes(shard(run, "run", run.rollouts(), push_redactor(environment={})))
    rows = pyarrow.parquet.read_table(tmp_path / "shard").to_pylist()
    files = [path for path in done.out.rglob("*") if path.is_file()]
    files += [page, sheet, tmp_path / "recording.jsonl"]
    told = {"stdout": done.stdout, "stderr": done.stderr, "report": shown.output, "rows": repr(rows)}
    return {path.name: path.read_bytes() for path in files} | {
        name: text.encode() for name, text in told.items()
    }


def those_with(text: str, found: dict[str, bytes]) -> set[str]:
    return {name for name, content in found.items() if text.encode() in content}


LEAKING = {"agent.log", "patch.diff", "recording.jsonl", "rows", "transcript.jsonl", "turns.jsonl"}
"""What has the key where it is not known."""


def echo(shift: int) -> RecordedReply:
    """The canary in every field; where pieces have as many characters as it has, cut at `shift`."""
    text = "x" * shift + CANARY
    function = {"name": "bash", "arguments": json.dumps({"command": text})}
    more = {"tool_calls": [{"id": f"c{shift}", "type": "function", "function": function}]}
    return say(f"{text}.", reasoning_content=f"{text}!", unheard_of=text, **more)


@pytest.mark.slow
async def test_openai(swe_core: SweCore, tmp_path: Path) -> None:
    replies = [echo(shift) for shift in range(len(CANARY)) for _ in ("whole", "streamed")]
    async with ScriptedProvider([*replies, say("done")], piece=len(CANARY)) as provider:
        done = await run_with(swe_core, tmp_path, "openai", provider.url, CANARY)
    found = written(done, tmp_path)
    assert (those_with(CANARY, found), those_with(MARK, found)) == (set(), LEAKING)
    assert done.only["turns"] == len(replies) + 1


@pytest.mark.slow
async def test_openai_rejects_an_invalid_key(swe_core: SweCore, tmp_path: Path) -> None:
    """The other tests find what there is to be found."""
    async with ScriptedProvider([echo(0), echo(1), say("done")]) as provider:
        done = await run_with(swe_core, tmp_path, "openai", provider.url, OTHER)
    assert those_with(CANARY, written(done, tmp_path)) == LEAKING


def sampled(shift: int) -> str:
    text = "x" * shift + CANARY
    return f"<think>\n{text}!\n</think>\n\n{text}." + tool_call("bash", command=text)


@pytest.mark.parametrize("key", [CANARY, pytest.param(OTHER, marks=pytest.mark.slow)])
@pytest.mark.slow
async def test_vllm(swe_core: SweCore, scripted: Scripted, tmp_path: Path, key: str) -> None:
    """The ids are those that were sampled, and each turn continues the ids of the one before."""
    replies = [*map(sampled, range(6)), "done"]
    async with scripted(replies, piece=1) as vllm:
        done = await run_with(swe_core, tmp_path, "vllm", vllm.url, key)
    found, known = written(done, tmp_path), key == CANARY
    expected = (set(), LEAKING) if known else (LEAKING, set())
    assert (those_with(CANARY, found), those_with(MARK, found)) == expected
    assert done.only["turns"] == len(replies)
    assert done.only["ledger"]["chains"] == 1, done.only["ledger"]
    (chain,) = chains_of(RunDirectory.open(done.out).turns(done.only["id"]))
    assert chain.input_ids.tolist() == [*vllm.requests[-1].prompt, *vllm.requests[-1].sent]
