"""SessionRequest: the body of `POST /sessions`. SessionRecord: what a session keeps of it.

PartRecord: what a part keeps, so that a change of the session leaves the earlier calls as they were.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from openenv.core.harness.capture.sessions import clean_session_id, evaluation_sampling
from openenv.core.harness.capture.upstream import training_sampling
from pydantic import Field

from swe_core.api.records import Record

Level = Literal["tokens", "text"]
"""What an engine gives: exact ids and log-probabilities, or text alone."""
Purpose = Literal["auto", "train", "eval"]

_FIELDS = (
    *("session_id", "llm_url", "model", "metadata", "max_model_calls"),
    *("sampling", "purpose", "eval_sampling"),
)
_RESERVED = (
    *("session_id", "upstream", "capture_level", "max_model_calls"),
    *("sampling", "purpose", "eval_sampling"),
)
OUTPUT_CAP = "max_output_tokens"
"""Key of the metadata that limits the tokens of one reply."""
_MAX_DEPTH = 64
"""Levels of the metadata: readers of JSON refuse deeper documents from about 200 on."""
_OF_THE_SERVER: Mapping[str, tuple[object, ...]] = {
    "auth_header": (None, "", "Authorization"),
    "provider": (None, "", "openai"),
}


class BadSession(ValueError):
    """The body of `POST /sessions` is wrong; the sentence says how."""


class PartRecord(Record):
    """`part.json`: the engine of a part's calls.

    Args:
        submitted: The sampling parameters that the engine sent whatever the agent asked for.
    """

    model: str
    level: Level
    submitted: dict[str, Any] = Field(default_factory=dict)


class SessionRecord(Record):
    """`session.json`. It holds the session's key, its id, and no key of an engine.

    Args:
        submitted: The sampling parameters that the engine sends whatever the agent asks for.
        output_cap: Maximum tokens of one reply; None leaves it to the engine's settings.
    """

    session_id: str
    created_at: float
    llm_url: str
    model: str
    level: Level
    purpose: Purpose = "auto"
    max_model_calls: int = Field(default=0, ge=0)
    sampling: dict[str, float | int] = Field(default_factory=dict)
    eval_sampling: dict[str, float | int] = Field(default_factory=dict)
    submitted: dict[str, Any] = Field(default_factory=dict)
    output_cap: int | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """Return whether its tokens may be trained."""
        return self.level == "tokens" and self.purpose != "eval"

    @property
    def rollout_type(self) -> str:
        """Return OpenEnv's word for it."""
        return "train" if self.trains else "eval"

    @property
    def part(self) -> PartRecord:
        """Return the record of a part that opens now."""
        return PartRecord(model=self.model, level=self.level, submitted=self.submitted)

    @property
    def policy(self) -> Mapping[str, float | int]:
        """Return the sampling parameters that the client asked for."""
        return self.sampling or self.eval_sampling


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A valid body of `POST /sessions`.

    Args:
        session_id: The id to use, new where the client named none that can be a key.
        llm_url: The engine; None is the server's.
        model: The model; "" is the only one that the engine serves.
        purpose: None is the session's own, "auto" for a new one.
        max_model_calls: None is the session's own limit, the server's for a new one; 0 is no limit.
        sampling: None is the session's own, none for a new one.
        eval_sampling: As `sampling`.
    """

    session_id: str
    llm_url: str | None
    model: str
    purpose: Purpose | None
    max_model_calls: int | None
    sampling: Mapping[str, float | int] | None
    eval_sampling: Mapping[str, float | int] | None
    metadata: Mapping[str, Any]

    def after(self, before: SessionRecord | None) -> SessionRequest:
        """Return the request with what it leaves out from the session's record, `before`.

        Raises:
            BadSession: The parts do not fit together.
        """
        purpose = self.purpose or (before.purpose if before else "auto")
        sampling, eval_sampling = self.sampling, self.eval_sampling
        if purpose == "eval":
            if sampling is not None:
                raise BadSession("eval purpose cannot apply a training sampling override")
            if eval_sampling is None and before is not None:
                eval_sampling = before.eval_sampling
        elif sampling is None and before is not None:
            sampling = before.sampling
        budget = self.max_model_calls
        if budget is None and before is not None:
            budget = before.max_model_calls
        metadata = {**(before.metadata if before else {}), **self.metadata}
        return replace(
            self,
            purpose=purpose,
            sampling=sampling,
            eval_sampling=eval_sampling,
            max_model_calls=budget,
            metadata=metadata,
        )

    @property
    def output_cap(self) -> int | None:
        """Return the maximum tokens of one reply; None where the metadata name none."""
        return self.metadata.get(OUTPUT_CAP)

    @property
    def policy(self) -> Mapping[str, float | int]:
        """Return the sampling parameters that the client asked for."""
        return self.sampling or self.eval_sampling or {}

    @classmethod
    def parse(cls, body: object) -> SessionRequest:
        """Return a JSON body as a request.

        Raises:
            BadSession: It is wrong.
        """
        if not isinstance(body, dict):
            raise BadSession("the body must be a JSON object")
        if unknown := sorted(body.keys() - {*_FIELDS, *_OF_THE_SERVER, "api_key"}):
            raise BadSession(f"unknown field {unknown[0]!r}; there are: {', '.join(_FIELDS)}")
        if body.get("api_key"):
            raise BadSession(
                "api_key is not accepted: set the environment variable that the engine's api_key_env names "
                "(VLLM_API_KEY, OPENAI_API_KEY) where the capture server runs"
            )
        for name, accepted in _OF_THE_SERVER.items():
            if body.get(name) not in accepted:
                raise BadSession(f"{name} is not accepted: it belongs to the capture server; leave it out")
        metadata = _metadata(body.get("metadata"))
        purpose = body.get("purpose")
        if "purpose" in body and purpose not in ("auto", "train", "eval"):
            raise BadSession("purpose must be auto, eval, or train")
        try:
            sampling = training_sampling(body.get("sampling"))
            eval_sampling = evaluation_sampling(body.get("eval_sampling"))
        except ValueError as error:
            raise BadSession(str(error)) from None
        if eval_sampling and purpose != "eval":
            raise BadSession("eval_sampling requires explicit eval purpose")
        if purpose == "eval" and body.get("sampling") is not None:
            raise BadSession("eval purpose cannot apply a training sampling override")
        return cls(
            session_id=clean_session_id(body.get("session_id")) or f"s{secrets.token_hex(16)}",
            llm_url=_text(body, "llm_url") or None,
            model=_text(body, "model"),
            purpose=purpose,
            max_model_calls=_budget(body),
            sampling=sampling or None,
            eval_sampling=eval_sampling if body.get("eval_sampling") is not None else None,
            metadata=metadata,
        )


def _metadata(given: object) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise BadSession("metadata must be a JSON object")
    if reserved := sorted(given.keys() & set(_RESERVED)):
        noun = "key" if len(reserved) == 1 else "keys"
        raise BadSession(f"metadata cannot include reserved {noun}: {', '.join(reserved)}")
    cap = given.get(OUTPUT_CAP)
    if cap is not None and (type(cap) is not int or cap < 1):
        raise BadSession(f"session {OUTPUT_CAP} must be a positive integer")
    if _is_deep(given):
        raise BadSession(f"metadata has more than {_MAX_DEPTH} levels")
    return given


def _is_deep(given: object) -> bool:
    level: list[object] = [given]
    for _ in range(_MAX_DEPTH):
        nested = [one for one in level if isinstance(one, dict | list)]
        level = [inner for one in nested for inner in (one.values() if isinstance(one, dict) else one)]
    return any(isinstance(one, dict | list) for one in level)


def _budget(body: Mapping[str, Any]) -> int | None:
    if "max_model_calls" not in body:
        return None
    budget = body["max_model_calls"]
    if type(budget) is not int or budget < 0:
        raise BadSession("max_model_calls must be a non-negative integer")
    return budget


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise BadSession(f"{name} must be a string")
    return (value or "").strip()
