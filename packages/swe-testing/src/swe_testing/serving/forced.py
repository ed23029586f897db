"""The engine `vllm-forced`: `vllm` with a script that forces some replies.

    swe-core run -p swe_testing.serving.forced --engine vllm-forced --set engine.vllm-forced.script=FILE

For tests of a complete run with an untrained model: forced replies bring it to the point of interest. The
script is JSON: task → attempt → replies, one per call. "*" is any task or attempt. A reply is an exact text,
or null for a sampled one, as after the last entry.

    {"*": {"*": ["<tool_call>\\n{\\"name\\": ...}\\n</tool_call>", null, "I am done."]}}

Forced tokens are marked in each turn's record and the ledger, and are never trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from swe_core import hookimpl
from swe_core.api.component import Component
from swe_core.api.engine import ChatRequest, Engine, EngineSession
from swe_core.builtin.vllm import VLLMConfig
from swe_core.builtin.vllm.engine import VLLMEngine
from swe_core.errors import ConfigError
from swe_core.tokens.renderer import Renderer

_Attempt = Annotated[str, StringConstraints(pattern=r"^([0-9]+|\*)$")]
_Text = Annotated[str, StringConstraints(min_length=1)]
_Script = dict[str, dict[_Attempt, list[_Text | None]]]
_BIAS = 100.0
"""Highest logit bias of vLLM."""


class ForcedConfig(VLLMConfig):
    """`[engine.vllm-forced]`: the settings of `vllm`, and the script."""

    script: Path = Field(description="a JSON file: task → attempt → what each call answers; see the module")


class ForcedEngine(VLLMEngine):
    """Force replies by vLLM's structured output.

    Raises:
        ConfigError: As of `VLLMEngine`, or the script cannot be read.
    """

    def __init__(self, config: ForcedConfig) -> None:
        super().__init__(config)
        self._path = config.script
        self._script = _read(config.script)
        self._single: dict[str, int] = {}
        self._end: str | None = None

    def constraint(self, request: ChatRequest, session: EngineSession, call: int) -> Mapping[str, Any] | None:
        """See `VLLMEngine.constraint`. A bias makes the chat format's own single ids certain."""
        attempts = self._script.get(session.task_id, self._script.get("*", {}))
        replies = attempts.get(str(session.attempt), attempts.get("*", []))
        text = replies[call] if call < len(replies) else None
        if text is None:
            return None
        bias = {
            str(token): _BIAS for name, token in self._single.items() if name in text or name == self._end
        }
        return {"structured_outputs": {"choice": [text]}, "logit_bias": bias}

    def notes(self) -> Sequence[str]:
        """Return the notes of `vllm`, and one on the script."""
        forced = f"replies were forced as {str(self._path)!r} says; they count in the ledger as dropped"
        return [*super().notes(), forced]

    def _load(self, tokenizer: str) -> Renderer:
        from transformers import AutoTokenizer

        own = AutoTokenizer.from_pretrained(tokenizer)
        self._single, self._end = own.added_tokens_encoder, own.eos_token
        return super()._load(tokenizer)


def _read(path: Path) -> _Script:
    try:
        return TypeAdapter(_Script).validate_json(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"the script {str(path)!r} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "its text"
        raise ConfigError(
            f"the script {str(path)!r} is not task → attempt → replies: {where}: {first['msg']}"
        ) from None


@hookimpl
def swe_engines() -> Iterable[Component[Engine]]:
    return [Component("vllm-forced", ForcedEngine, ForcedConfig, "vllm with replies that a script forces")]
