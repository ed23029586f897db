"""Recorded calls as OpenEnv's documents: the rollout of a session, and its trace entries.

A rollout's sequences are our chains: each sampled id is trained in one of them at most. Where two calls
continue the same one, the ids before the fork are trained in the first chain and are context of the second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from openenv.core.harness.capture.graph import TrainingSequence
from openenv.core.harness.capture.sessions import clean_session_id
from openenv.core.harness.capture.upstream import truncating_params
from openenv.core.harness.capture.validate import check_rollout, check_sequence, check_turn, check_turn_eval

from swe_core.api.chain import Chain
from swe_core.api.records import UNDELIVERED, Turn, requests_of
from swe_core.tokens.chains import Step, build_chains, step_of
from swe_openenv.capture.engines import SAMPLING_KEYS
from swe_openenv.capture.options import SessionRecord
from swe_openenv.capture.shape import Node, Shape
from swe_openenv.capture.store import Part
from swe_openenv.trace import trace_entries

_AGENT, _AUXILIARY, _DISCARDED = "agent", "auxiliary", "discarded"


class NotTrainable(ValueError):
    """The session has no tokens to train on; the sentence says why."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One conversation of one part.

    Args:
        path: Its calls.
        chain: Its ids; None where none of them is trained.
    """

    path: Sequence[Node]
    chain: Chain | None
    role: str


class Capture:
    """What a session has recorded.

    Args:
        parts: All parts, in order.
        budget_stops: Number of calls that got the answer that the budget is spent.

    Raises:
        LedgerError: The records do not fit together.
    """

    def __init__(self, record: SessionRecord, parts: Sequence[Part], budget_stops: int = 0) -> None:
        self._record = record
        self._parts = parts
        self._budget_stops = budget_stops
        self._shape = Shape.of(parts)
        self._discarded = self._shape.discarded()
        self._part_records = {part.number: part.record for part in parts}
        self._turns = {(part.number, turn.index): turn for part in parts for turn in part.turns}
        self._trainable = {part.number: [*map(_without_positive, part.turns)] for part in parts}
        self._steps = {number: self._steps_of(number) for number in self._trainable}
        self._rows = list(self._made_rows())

    def rollout(self, *, include_discarded: bool = False, include_messages: bool = False) -> dict[str, Any]:
        """Return the document of `GET /sessions/{id}/rollout`."""
        record, stats = self._record, self._shape.stats()
        found = check_rollout(self._shape, capture_level=record.level, budget_stop_count=self._budget_stops)
        sequences = [self._sequence(row) for row in self._rows if include_discarded or row.role != _DISCARDED]
        trained = [row for row in sequences if row["trainable"]]
        overridden = self._overridden()
        return {
            "session_id": record.session_id,
            "metadata": self._metadata(overridden),
            "budget_stop_count": self._budget_stops,
            "turns": list(self._described(include_messages)),
            "stats": {
                **stats,
                "n_sequences": len(sequences),
                "n_trainable_sequences": len(trained),
                "n_trainable_tokens": sum(row["n_trainable"] for row in trained),
            },
            "sequences": sequences,
            "validation": [*map(str, found.findings), *self._findings(overridden)],
            "trainable": bool(trained) and found.ok,
            "capture_level": record.level,
            "rollout_type": record.rollout_type,
        }

    def entries(self) -> list[dict[str, Any]]:
        """Return the entries of `GET /sessions/{id}/trace_entries`, chain by chain.

        Raises:
            NotTrainable: It is no training session, or its engine gave no tokens.
        """
        if not self._record.trains:
            raise NotTrainable(
                f"this is an EVAL rollout (capture_level={self._record.level!r}, "
                f"purpose={self._record.purpose!r}): there is nothing to train on; name an engine that is "
                "vLLM when the session is made, and leave purpose out"
            )
        entries = []
        for number, turns in self._trainable.items():
            chains = [
                row.chain
                for row in self._rows
                if row.path[0].part == number and row.role == _AGENT and row.chain is not None
            ]
            nodes = {node.turn: node for node in self._shape.nodes if node.part == number}
            for entry in trace_entries(turns, chains):
                node = nodes[entry["metadata"]["index"]]
                entries.append({**entry, "metadata": self._entry_metadata(node)})
        return entries

    def _steps_of(self, number: int) -> dict[int, Step]:
        dropped = {node.turn for node in self._discarded if node.part == number}
        steps = {}
        for turn in self._trainable[number]:
            if turn.tokens is None:
                continue
            step = step_of(turn.index, turn.tokens)
            if step.dropped is None and (turn.index in dropped or turn.reply is None):
                step = replace(step, dropped=UNDELIVERED)
            steps[turn.index] = step
        return steps

    def _made_rows(self) -> Iterator[_Row]:
        any_tools = any(node.tools for node in self._shape.nodes)
        known = {(node.part, node.turn): node for node in self._shape.nodes}
        shown: set[Node] = set()
        for number, steps in self._steps.items():
            for chain in build_chains(steps.values()):
                path = known[number, chain.turns[-1]].path
                shown.update(path)
                yield _Row(
                    path, chain, self._role(path, any_tools, has_ids=bool(chain.completion_mask.any()))
                )
        for leaf in self._shape.nodes:
            if not leaf.children and leaf not in shown:
                path = leaf.path
                role = self._role(path, any_tools, has_ids=not self._record.trains)
                yield _Row(path, None, _DISCARDED if leaf in self._discarded else role)

    def _role(self, path: Sequence[Node], any_tools: bool, *, has_ids: bool) -> str:
        """Tools tell an agent's calls from titles and summaries, where some calls have tools and some not."""
        if any_tools:
            return _AGENT if any(node.tools for node in path) else _AUXILIARY
        return _AGENT if has_ids else _AUXILIARY

    def _sequence(self, row: _Row) -> dict[str, Any]:
        ids, mask, logprobs, prompt = self._arrays(row)
        trains = self._record.trains
        sequence = TrainingSequence(
            input_ids=ids,
            loss_mask=mask,
            logprobs=logprobs,
            node_ids=[node.id for node in row.path],
            prompt_len=prompt,
            root_id=row.path[0].id,
            n_turns=len(row.path),
        )
        report = check_sequence(sequence) if trains else None
        return {
            "role": row.role,
            "root_id": sequence.root_id,
            "node_ids": sequence.node_ids,
            "n_turns": sequence.n_turns,
            "prompt_len": prompt,
            "n_trainable": sequence.n_trainable if trains else 0,
            "turn_lengths": sequence.turn_lengths(),
            "input_ids": ids,
            "loss_mask": mask if trains else [0] * len(ids),
            "logprobs": logprobs,
            "trainable": bool(report and report.ok and row.role == _AGENT),
            "validation": [str(finding) for finding in report.findings] if report else [],
        }

    def _arrays(self, row: _Row) -> tuple[list[int], list[int], list[float], int]:
        """Return a row's ids, mask, log-probabilities and the length of its first prompt."""
        steps = self._steps[row.path[0].part]
        own = [steps[node.turn] for node in row.path if node.turn in steps]
        prompt = len(own[0].prompt) if own else 0
        if row.chain is not None:
            chain = row.chain
            mask, logprobs = chain.completion_mask, chain.old_log_probs
            return chain.input_ids.tolist(), mask.astype(int).tolist(), logprobs.tolist(), prompt
        ids = [token for step in own for token in (*step.prompt.tolist(), *step.completion.tolist())]
        return ids, [0] * len(ids), [0.0] * len(ids), prompt

    def _described(self, include_messages: bool) -> Iterator[dict[str, Any]]:
        requests: Mapping[tuple[int, int], Mapping[str, Any]] = {}
        if include_messages:
            requests = {
                (part.number, turn.index): body
                for part in self._parts
                for turn, body in zip(part.turns, requests_of(part.turns), strict=True)
            }
        lengths: dict[Node, int] = {}
        for node in self._shape.nodes:
            turn = self._turn(node)
            tokens = turn.tokens
            before = lengths[node.parent] if tokens and node.parent else 0
            prompt = before + len(tokens.prompt) if tokens else 0
            sampled = len(tokens.completion) if tokens else 0
            lengths[node] = prompt + sampled
            described = {
                "node_id": node.id,
                "index": node.index,
                "root_id": node.root.id,
                "n_sampled": sampled,
                "n_prompt": prompt,
                "n_tools": node.tools,
                "finish_reason": turn.finish_reason,
                "harness_session_id": clean_session_id(turn.params.get("user")),
                "sampling_params": self._submitted(node),
                "requested_sampling_params": _requested(turn),
                "sampled_logprobs": _known(turn),
                "discarded": node in self._discarded,
            }
            if include_messages:
                body = requests[node.part, node.turn]
                described |= {
                    "request_messages": body["messages"],
                    "request_tools": body.get("tools"),
                    "response_message": turn.reply,
                }
            yield described

    def _entry_metadata(self, node: Node) -> dict[str, Any]:
        turn = self._turn(node)
        return {
            "node_id": node.id,
            "index": node.index,
            "model": self._part_records[node.part].model,
            "n_tools": node.tools,
            "harness_session_id": clean_session_id(turn.params.get("user")),
            "sampling_params": self._submitted(node),
            "requested_sampling_params": _requested(turn),
        }

    def _findings(self, overridden: Mapping[str, Any]) -> Iterator[str]:
        for node in self._shape.nodes:
            turn = self._turn(node)
            if self._part_records[node.part].level == "tokens" and turn.tokens is not None:
                report = check_turn(
                    turn.tokens.prompt or [0],  # a prompt that adds no id to the call before it is no lack
                    turn.tokens.completion,
                    _known(turn),
                    finish_reason=turn.finish_reason,
                    index=node.index,
                )
            else:
                report = check_turn_eval(turn.reply, finish_reason=turn.finish_reason, index=node.index)
            yield from map(str, report.findings)
        if overridden:
            asked = ", ".join(f"{key}={value}" for key, value in sorted(overridden.items()))
            yield (
                f"[WARN] sampling_neutralised: the agent asked for {asked}, which the engine's own sampling "
                "replaced: log-probabilities are those of the policy as it is"
            )

    def _overridden(self) -> dict[str, Any]:
        """Return what agents asked for that would have changed the distribution."""
        found: dict[str, Any] = {}
        for node in self._shape.nodes:
            if self._part_records[node.part].level == "tokens":
                found = {**truncating_params(_requested(self._turn(node))), **found}
        return found

    def _metadata(self, overridden: Mapping[str, Any]) -> dict[str, Any]:
        found = {"sampling_overridden": overridden} if overridden else {}
        return {**found, **self._shape.api_type, **self._record.metadata}

    def _submitted(self, node: Node) -> dict[str, Any]:
        """Return how a call was sampled, as its part's engine was set then."""
        record = self._part_records[node.part]
        asked = {} if record.level == "tokens" else _requested(self._turn(node))
        return {**asked, **record.submitted}

    def _turn(self, node: Node) -> Turn:
        return self._turns[node.part, node.turn]


def _without_positive(turn: Turn) -> Turn:
    """Return a turn in which log-probabilities above 0 are unknown: OpenEnv refuses them in a trace."""
    if turn.tokens is None or not any(one is not None and one > 0 for one in turn.tokens.logprobs):
        return turn
    known = [None if one is None or one > 0 else one for one in turn.tokens.logprobs]
    return turn.model_copy(update={"tokens": turn.tokens.model_copy(update={"logprobs": known})})


def _requested(turn: Turn) -> dict[str, Any]:
    return {key: turn.params[key] for key in SAMPLING_KEYS if key in turn.params}


def _known(turn: Turn) -> list[float | None] | None:
    """Return the log-probabilities of a call; None where one is missing."""
    if turn.tokens is None or not turn.tokens.completion or None in turn.tokens.logprobs:
        return None
    return turn.tokens.logprobs
