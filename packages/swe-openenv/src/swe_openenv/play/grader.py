"""PlayGrader: the patch in a fresh episode, and the reward of that environment."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from typing import Any

from swe_core.api.grader import Grade, Graded, Hashes
from swe_core.api.sandbox import SandboxProvider, SandboxSpec
from swe_core.api.task import Task
from swe_core.errors import GraderError, SandboxError
from swe_core.sandboxing.repository.git import NO_FIT, failure, last_line, run_script
from swe_core.sandboxing.repository.patch import record_base
from swe_core.system.printable import one_line, printable
from swe_openenv.play.config import PlayGraderConfig
from swe_openenv.play.episode import Episode, ServerRefused
from swe_openenv.play.replies import error_in, finite, reward_in, submit_tool
from swe_openenv.play.sandbox import PlaySandbox
from swe_openenv.play.source import VERDICT

GIT_TIMEOUT = 300.0
"""Seconds to apply a patch."""
MAX_LOG = 1024 * 1024
"""Characters of the environment's answer that are kept."""

# The whole patch fits the recorded tree or none of it; then only the files that it names are written.
_APPLY = r"""
cd -- "$1"
export GIT_DIR="$2" GIT_WORK_TREE="$1" GIT_INDEX_FILE="$2/new.index"
cat >"$GIT_DIR/model.patch"
cp -- "$GIT_DIR/index" "$GIT_INDEX_FILE"
if [ -s "$GIT_DIR/model.patch" ]; then
  git apply --cached --whitespace=nowarn "$GIT_DIR/model.patch" || quit 47
fi
tree=$(git write-tree)
GIT_INDEX_FILE="$GIT_DIR/index" git read-tree --reset -u "$tree"
echo "$tree"
rm -rf "$GIT_DIR"
"""

_Verdict = tuple[float | None, object]  # the reward, and what the environment said with it


class PlayGrader:
    """Grades by the environment's own reward, each time in a fresh episode.

    An environment that gives the reward of an episode for its files alone gives what it would have given the
    agent. What the agent did outside of its repository is not part of a patch.
    """

    def __init__(self, config: PlayGraderConfig) -> None:
        self._config = config

    async def grade(
        self, task: Task, patch: bytes, provider: SandboxProvider, spec: SandboxSpec, timeout: float
    ) -> Graded:
        """See `Grader.grade`."""
        hashes = Hashes(task=task.digest, patch=hashlib.sha256(patch).hexdigest())
        async with provider.open(spec) as sandbox:
            if not isinstance(sandbox, PlaySandbox):
                raise GraderError(
                    "the grader 'openenv' needs the sandbox 'openenv', whose environments give the reward: "
                    "pass --sandbox openenv, or choose another grader"
                )
            tree = await self._apply(sandbox, patch)
            await sandbox.kill_all()
            started = time.monotonic()
            reward, said = await self._reward(sandbox.episode, timeout)
            seconds = time.monotonic() - started
        resolved = reward >= self._config.threshold
        grade = Grade(
            resolved=resolved,
            reason=""
            if resolved
            else f"the environment gave the reward {reward:g}, below {self._config.threshold:g} "
            "(grader.openenv.threshold)",
            fail_to_pass={VERDICT: "PASSED" if resolved else "FAILED"},
            test_seconds=seconds,
            applied_with="git apply" if patch.strip() else None,
            hashes=hashes.model_copy(update={"tree": tree}),
        )
        return Graded(grade=grade, log=said.encode(errors="backslashreplace"))

    async def _apply(self, sandbox: PlaySandbox, patch: bytes) -> str:
        """Apply the patch, and return the git id of the tree.

        Raises:
            GraderError: It does not fit.
            SandboxError: The sandbox failed.
        """
        base = await record_base(sandbox, timeout=GIT_TIMEOUT)
        done = await run_script(sandbox, _APPLY, base.root, base.store, stdin=patch, timeout=GIT_TIMEOUT)
        if done.exit_code == NO_FIT:
            raise GraderError(
                f"git does not apply the patch to the repository of {sandbox.episode.name}: "
                f"{one_line(last_line(done))}; if it fits the agent's repository, the server's reset gives "
                "other files each time"
            )
        if done.exit_code != 0:
            raise failure(done, sandbox.spec.workdir, f"could not take the patch ({last_line(done)})")
        return done.text.strip()

    async def _reward(self, episode: Episode, timeout: float) -> tuple[float, str]:
        """Return the reward, and what the environment said with it.

        Raises:
            GraderError: There is none.
        """
        try:
            if self._config.action is not None:
                what = "the step of grader.openenv.action"
                reward, said = await _step(episode, self._config.action, what, timeout)
            else:
                tool = self._config.submit or await _find_tool(episode)
                what = f"the tool {tool!r}"
                reward, said = await self._submit(episode, tool, what, timeout)
        except SandboxError as error:
            raise GraderError(f"the environment gave no reward: {error}") from None
        text = json.dumps(said, indent=1, default=str)
        if reward is None:
            raise GraderError(
                f"{what} gave no reward in {episode.name}, neither with the observation nor in a result: "
                f"{one_line(text, 200)}; name another with grader.openenv.submit or grader.openenv.action"
            )
        return reward, printable(text)[:MAX_LOG]

    async def _submit(self, episode: Episode, tool: str, what: str, timeout: float) -> _Verdict:
        """Call the tool in the first way that the environment knows; one that it does not know runs nothing.

        Raises:
            SandboxError: The server failed or refused.
        """
        steps: tuple[Mapping[str, Any], ...] = (
            {"type": "call_tool", "tool_name": tool, "arguments": {}},
            {"type": tool},
        )
        for action in steps if self._config.by == "step" else ():
            try:
                return await _step(episode, action, what, timeout)
            except ServerRefused as error:
                if error.code != "VALIDATION_ERROR":
                    raise
        result = await episode.call(tool, {}, timeout)
        if (failed := error_in(result)) is not None:
            raise SandboxError(f"{what} failed in {episode.name}: {one_line(failed)}")
        return reward_in(result), result


async def _find_tool(episode: Episode) -> str:
    tools = await episode.tools()
    found = submit_tool(tools)
    if found is None:
        names = ", ".join(sorted(repr(tool["name"]) for tool in tools)) or "none"
        raise GraderError(
            f"{episode.name} has no tool without parameters that gives the reward; its tools: {names}; name "
            "one with grader.openenv.submit, or a step with grader.openenv.action"
        )
    return found


async def _step(episode: Episode, action: Mapping[str, Any], what: str, timeout: float) -> _Verdict:
    """Take a step, and return the reward with the observation.

    Raises:
        SandboxError: The server failed or refused.
    """
    stepped = await episode.step(action, timeout)
    result = stepped.observation.get("result")
    failed = stepped.observation.get("error") or error_in(result)
    if failed:  # of a tool that could not be called, or not in time
        said = failed.get("message", failed) if isinstance(failed, Mapping) else failed
        raise SandboxError(
            f"{what} failed in {episode.name}: {one_line(str(said))}; if a step is too short for it, set "
            "grader.openenv.by = call"
        )
    if stepped.reward is None:
        return reward_in(result), stepped.observation
    if not stepped.done:
        raise GraderError(
            f"{what} gave the reward {one_line(str(stepped.reward), 40)} in {episode.name}, which goes on: a "
            "reward before the end is no verdict; name what ends the task with grader.openenv.submit or "
            "grader.openenv.action"
        )
    return finite(stepped.reward), stepped.observation
