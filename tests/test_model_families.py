"""Models whose calls are written in tags, on a real vLLM: what was sampled is what the agent runs."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import anyio.to_thread
import pytest

from swe_testing.serving.start import TokenServer

from .conftest import TASK, Scripted, SweCore

COMMAND = "    printf '        return 1\\n\\n' > slot.py; cat slot.py\n"
"""A command with white space at both ends, and a file with indentation and empty lines."""
FAMILIES = {
    "Qwen3-Coder": (
        Path("packages/swe-core/tests/tokens/templates/qwen3-coder.jinja"),
        "I look.\n<tool_call>\n<function=bash>\n<parameter=command>\n{}\n</parameter>\n</function>\n"
        "</tool_call>",
    ),
    "GLM-4.5": (
        files("trl") / "chat_templates" / "glm4moe.jinja",
        "\n<think>Where?</think>\n<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>{}</arg_value>\n"
        "</tool_call>",
    ),
}
"""Chat template, and a reply in its notation."""


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES)
def test_file_is_written_as_the_model_said(
    swe_core: SweCore, token_server: TokenServer, local_sandbox: None, tmp_path: Path, model: str
) -> None:
    """The model is random, so its first reply is forced; the second one is its own."""
    source, reply = FAMILIES[model]
    template, script = tmp_path / "chat.jinja", tmp_path / "script.json"
    template.write_text(source.read_text(encoding="utf-8"))
    script.write_text(json.dumps({"*": {"*": [reply.format(COMMAND)]}}))
    engine = {
        "script": script,
        "chat_template": template,
        "tokenizer": token_server.directory,
        "max_tokens": 400,
        "renderer": "template",
    }
    done = swe_core(
        *("--agent", "mini", "--tasks", "demo", "--task", TASK),
        *("-p", "swe_testing.serving.forced", "--engine", "vllm-forced"),
        *("--engine-url", token_server.url, "--model", token_server.model),
        *(part for key, value in engine.items() for part in ("--set", f"engine.vllm-forced.{key}={value}")),
    )
    assert done.only["outcome"] != "error", done.stdout
    folder = done.out / "rollouts" / done.only["id"]
    turns = [json.loads(line) for line in (folder / "turns.jsonl").read_text().splitlines()]
    sent = turns[0]["reply"]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(sent) == {"command": COMMAND}
    assert "\n+        return 1\n+\n" in (folder / "patch.diff").read_text()
    ledger = done.only["ledger"]
    assert ledger["sampled"] == ledger["trainable"] + sum(ledger["dropped"].values())
    assert ledger["dropped"]["forced"] > 20


@pytest.mark.anyio
async def test_run_ends_before_a_sandbox_if_calls_cannot_be_read(
    swe_core: SweCore, scripted: Scripted, tmp_path: Path
) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}")
    async with scripted(["Done."]) as vllm:
        args = [
            "--agent",
            "mini",
            "--tasks",
            "demo",
            "--task",
            TASK,
            "--engine",
            "vllm",
            "--model",
            "scripted",
        ]
        args += ["--engine-url", vllm.url, "--set", f"engine.vllm.chat_template={template}"]
        done = await anyio.to_thread.run_sync(lambda: swe_core(*args))
    assert done.code == 2
    assert "engine.vllm.tool_parser" in done.stderr
    assert done.rollouts == []
