"""A tokenizer with Qwen3's special tokens, and calls of the engine against a scripted server.

The engine imports transformers, which takes seconds: it is imported by the first test that makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tenacity

from swe_core.api.engine import ChatRequest, Completion, EngineSession
from swe_core.api.messages import Message
from swe_core.builtin.vllm import VLLMConfig
from swe_core.tokens.renderer import Renderer
from swe_testing.provider import Ear
from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer
from swe_testing.vllm import ScriptedVLLM

if TYPE_CHECKING:
    from swe_core.builtin.vllm.engine import VLLMEngine

KEY = "sk-do-not-show-this-0123456789"


@pytest.fixture(scope="session")
def tokenizer_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qwen")
    make_tokenizer(QWEN3_TOKENS, eos_token="<|im_end|>", pad_token="<|endoftext|>").save_pretrained(path)
    return path


@dataclass
class Qwen:
    """The tokenizer as tests use it."""

    path: Path
    renderer: Renderer

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.renderer.tokenizer.encode(text, add_special_tokens=False)
        return ids

    @property
    def stop(self) -> int:
        return self.encode("<|im_end|>")[0]

    def server(self, *replies: Any, **settings: Any) -> ScriptedVLLM:
        """A scripted server that serves this tokenizer's model."""
        return ScriptedVLLM(
            replies, encode=self.encode, stop_id=self.stop, **{"root": str(self.path), **settings}
        )

    def text(self, ids: Sequence[int]) -> str:
        return self.renderer.text(ids)


@pytest.fixture(scope="session")
def qwen(tokenizer_path: Path) -> Qwen:
    from swe_core.tokens.load_renderer import load_renderer

    return Qwen(tokenizer_path, load_renderer(str(tokenizer_path), renderer="qwen3"))


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once; their number stays what the settings say."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    monkeypatch.setattr("swe_core.builtin.vllm.engine._BACKOFF", tenacity.wait_none())


def make_engine(*urls: str, **settings: Any) -> VLLMEngine:
    from swe_core.builtin.vllm.engine import VLLMEngine

    defaults = {"url": urls, "model": "scripted", "max_retries": 2, "timeout": 60, "renderer": "qwen3"}
    return VLLMEngine(VLLMConfig(**{**defaults, **settings}))


def session(name: str = "r") -> EngineSession:
    return EngineSession(name, f"task-{name}", 0, "agent")


HELLO: list[Message] = [{"role": "user", "content": "hello"}]
TOOLS = [
    {"type": "function", "function": {"name": "bash", "description": "", "parameters": {"type": "object"}}}
]


def chat(messages: Sequence[Message] = HELLO, **more: Any) -> ChatRequest:
    """A request as the gate makes it; `more` are fields of `ChatRequest`, others go into the body."""
    fields = {key: more.pop(key) for key in ("tools", "max_tokens", "max_context") if key in more}
    return ChatRequest({"messages": messages, **more}, messages, **fields)


def said(completion: Completion) -> Message:
    """The reply as a client sends it back, in canonical form."""
    return {**completion.message, "content": completion.message["content"] or ""}


async def ask(
    engine: VLLMEngine,
    messages: Sequence[Message] = HELLO,
    *,
    stream: bool = False,
    rollout: str = "r",
    **more: Any,
) -> tuple[Completion, Ear]:
    ear = Ear()
    completion = await engine.complete(chat(messages, **more), session(rollout), ear if stream else None)
    return completion, ear
