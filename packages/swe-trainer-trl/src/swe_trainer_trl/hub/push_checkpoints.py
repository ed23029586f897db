"""Push of checkpoints to a model repository on the Hub (docs/internals/hub.md); `restore` reads them.

Transformers' own `hub_strategy="checkpoint"` does not fit a resumed training. It leaves out the journal. It
uploads a large checkpoint in several commits, so that a kill leaves a mixture of two checkpoints. It does not
report failed pushes. Here a checkpoint is one commit with everything that `--resume` needs.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from swe_core.errors import UsageError, sentence
from swe_core.hub.client import TryLater, client, translate_errors
from swe_core.hub.options import PushOptions
from swe_core.hub.pushed_run import public_name, run_name
from swe_core.hub.secrets import push_redactor
from swe_core.rollout.run_directory import ROLLOUTS_FILE, RUN_FILE, RunInfo
from swe_core.rollout.training_records import EARLIER_FILE, EVALUATIONS_FILE, GROUPS_FILE
from swe_trainer_trl.hub.restore import FOLDER, STATE
from swe_trainer_trl.journal.checkpoints import CHECKPOINTS, METRICS_FILE, last_checkpoint
from swe_trainer_trl.journal.journal import JOURNAL

logger = logging.getLogger(__name__)

_STAGED = "push"
_LEFT_OUT = ("training_args.bin",)
"""A pickle with paths of this machine, which a resumed run does not need."""
_TEXTS = (RUN_FILE, ROLLOUTS_FILE, METRICS_FILE, GROUPS_FILE, EVALUATIONS_FILE)


class CheckpointPush(TrainerCallback):  # type: ignore[misc]  # transformers is not typed here
    """Pushes checkpoints in a separate thread. A checkpoint that is saved during another push is skipped.

    A failed push is logged and does not stop the training.

    Args:
        options: `to` names the repository, which is created if it does not exist.
        directory: The run directory.

    Raises:
        UsageError: There is no token, or a package is missing.
    """

    def __init__(self, options: PushOptions, directory: Path) -> None:
        self.id = options.to or ""
        self._api = client(self.id)
        self._private = options.private
        self._directory = directory
        self._thread: threading.Thread | None = None
        self._pushed = 0
        self._opened = False

    def open(self) -> None:
        """Create the repository, or check that the token may push to it.

        Raises:
            TryLater: The Hub is not available now.
            UsageError: The token has no permission, the name is taken by another model or training, or the
                repository is public but should be private.
        """
        with translate_errors(self.id):
            self._api.create_repo(self.id, private=self._private, exist_ok=True)
            self._api.auth_check(self.id, write=True)
            info = self._api.model_info(self.id)
            names = {one.rfilename for one in info.siblings or ()}
            if self._private and not info.private:
                raise UsageError(
                    f"the model {self.id!r} is public: name another, or say that checkpoints may be public "
                    "(push.private=false)"
                )
            if f"{STATE}/{RUN_FILE}" in names:
                there = run_name(_info(self._read(f"{STATE}/{RUN_FILE}")))
            elif names - {".gitattributes", "README.md"}:
                raise UsageError(f"the name {self.id!r} is taken by another model: give another")
            else:
                there = None
        run = self._directory / RUN_FILE
        if there is not None and (not run.is_file() or there != run_name(_info(run.read_bytes()))):
            raise UsageError(
                f"the model {self.id!r} has the checkpoints of another training, {there}: name another, or "
                f"resume that one (swe-core restore {self.id} RUN, swe-core run --resume RUN)"
            )
        self._opened = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Push the new checkpoint, unless another push is running."""
        if self._thread is None or not self._thread.is_alive():
            self._begin()

    def finish(self, model: Path) -> None:
        """Push the last checkpoint if needed and the trained model, and wait for the end.

        Args:
            model: Directory of the trained model.
        """
        self._wait()
        path, step = last_checkpoint(self._directory / CHECKPOINTS)
        if path is not None and step != self._pushed:
            self._begin()
            self._wait()
        with self._boundary(f"the trained model in {str(model)!r}"):
            files = {
                path.name: path for path in model.iterdir() if path.is_file() and path.name not in _LEFT_OUT
            }
            self._commit(files, "", "Trained model", {"README.md": self._card()})
            logger.info("pushed the model to %s/%s", self._api.endpoint, self.id)

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        """Copy everything of the last checkpoint, and push the copy in a thread."""
        path, step = last_checkpoint(self._directory / CHECKPOINTS)
        if path is None:
            return
        with self._boundary(f"the checkpoint of step {step}"):
            staged = self._directory / _STAGED
            shutil.rmtree(staged, ignore_errors=True)
            _stage(self._directory, path, staged)
            self._thread = threading.Thread(
                target=self._push, args=(staged, step), name="checkpoint-push", daemon=True
            )
            self._thread.start()

    def _push(self, staged: Path, step: int) -> None:
        with self._boundary(f"the checkpoint of step {step}"):
            files = {
                path.relative_to(staged).as_posix(): path for path in staged.rglob("*") if path.is_file()
            }
            self._commit(files, FOLDER, f"Checkpoint of step {step}")
            self._pushed = step
        shutil.rmtree(staged, ignore_errors=True)

    def _commit(
        self, files: Mapping[str, Path], folder: str, message: str, first: Mapping[str, bytes] | None = None
    ) -> None:
        """Make one commit after which `folder` has exactly these files. The root keeps its other files.

        Args:
            files: Path in `folder` → file.
            folder: Folder in the repository; "" for the root.
            message: Message of the commit.
            first: Files to add at the root unless they exist.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        if not self._opened:
            self.open()
        prefix = f"{folder}/" if folder else ""
        with translate_errors(self.id):
            there = {one.rfilename for one in self._api.model_info(self.id).siblings or ()}
            new: dict[str, Path | bytes] = {f"{prefix}{name}": path for name, path in files.items()}
            new |= {name: data for name, data in (first or {}).items() if name not in there | new.keys()}
            gone = [name for name in there - new.keys() if folder and name.startswith(prefix)]
            self._api.create_commit(
                self.id,
                [
                    *(CommitOperationDelete(name) for name in gone),
                    *(CommitOperationAdd(name, content) for name, content in new.items()),
                ],
                commit_message=message,
            )

    def _card(self) -> bytes:
        """Return the README of the model. The licence is left to its owner."""
        options = _info((self._directory / RUN_FILE).read_bytes()).settings
        base = options.get("worker", {}).get("trl", {}).get("model") or options["run"]["model"] or ""
        known = f"base_model: {base}\n" if public_name(base) == base and "/" in base else ""
        return (
            f"---\n{known}library_name: transformers\ndatasets:\n- {self.id}\ntags:\n- trl\n- grpo\n"
            "- software-engineering\n- swe-core\n---\n\n"
            f"# {self.id.partition('/')[2]}\n\n"
            f"{public_name(base)}, trained by swe-core with TRL on rollouts of an unmodified coding agent. "
            f"The [rollouts](https://huggingface.co/datasets/{self.id}) are a data set of the same name. "
            f"`{FOLDER}` is the last checkpoint, from which the training can be resumed.\n\n"
            "No licence is stated. The owner of this model must choose one that fits the licence of the base "
            "model.\n"
        ).encode()

    def _read(self, name: str) -> bytes:
        with tempfile.TemporaryDirectory(prefix="swe-push-") as folder:
            return Path(self._api.hf_hub_download(self.id, name, local_dir=folder)).read_bytes()

    @contextmanager
    def _boundary(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the training continues, and the next checkpoint is pushed again
            logger.warning("%s is not pushed: %s", what, sentence(error))


def prepared(options: PushOptions, directory: Path) -> CheckpointPush | None:
    """What pushes the checkpoints, asked for before anything is started; None where they go nowhere.

    Raises:
        UsageError: A push with these options cannot succeed.
    """
    if options.to is None:
        return None
    push = CheckpointPush(options, directory)
    try:
        push.open()
    except TryLater as error:
        logger.warning("%s; the training starts, and the next push tries again", sentence(error))
    return push


def _stage(directory: Path, checkpoint: Path, staged: Path) -> None:
    """Copy everything of `checkpoint` to `staged` until it is pushed.

    Meanwhile transformers removes old checkpoints, and the run continues. The journal is copied after the
    rollouts, so that it knows every rollout of the copy.
    """
    state = staged / Path(STATE).name
    state.mkdir(parents=True)
    redactor = push_redactor()
    for name in _TEXTS:
        if (directory / name).is_file():
            text = (directory / name).read_text()
            if name == RUN_FILE:  # `directory` is a path of this machine, and may contain a user's name
                text = _info(text.encode()).model_dump_json(indent=2, exclude={"directory"})
            (state / name).write_bytes(redactor.text(text).encode())
    before = directory / EARLIER_FILE
    if before.is_file():
        told_of = (state / ROLLOUTS_FILE).read_bytes() if (state / ROLLOUTS_FILE).is_file() else b""
        (state / ROLLOUTS_FILE).write_bytes(before.read_bytes() + told_of)
    with (
        closing(sqlite3.connect(directory / JOURNAL)) as source,
        closing(sqlite3.connect(state / JOURNAL)) as copy,
    ):
        source.backup(copy)
    for path in checkpoint.rglob("*"):
        if path.is_file() and path.name not in _LEFT_OUT:
            target = staged / path.relative_to(checkpoint)
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, target)
            except OSError:  # the file system has no hard links
                shutil.copyfile(path, target)


def _info(data: bytes) -> RunInfo:
    return RunInfo.model_validate_json(data)
