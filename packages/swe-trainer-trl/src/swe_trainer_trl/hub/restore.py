"""Restore of a training run from the last checkpoint on the Hub (docs/internals/hub.md)."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import click
import orjson

from swe_core.errors import SweError, UsageError, sentence
from swe_core.hub.client import client, translate_errors
from swe_core.hub.errors import problem_of
from swe_core.rollout.run_directory import FOLDERS, ROLLOUTS_FILE, RUN_FILE
from swe_core.rollout.training_records import EARLIER_FILE, EVALUATIONS_FILE, GROUPS_FILE
from swe_trainer_trl.journal.checkpoints import CHECKPOINTS, METRICS_FILE

FOLDER = "last-checkpoint"
"""Folder of the checkpoint in the repository. The name is that of transformers, for use by other programs."""
STATE = f"{FOLDER}/swe-core"
"""Folder of the files of the run directory."""

_EVALUATION = re.compile(r"-(eval\d+(?:\.\d+)?)-\d+(?:-\d+)?$")
"""What follows the task in the id of a rollout of an evaluation."""


@click.command("restore", short_help="Restore a training run from the Hub.")
@click.argument("repo_id", metavar="OWNER/NAME")
@click.argument("directory", metavar="RUN", type=click.Path(path_type=Path))
def restore_command(repo_id: str, directory: Path) -> None:
    """Create the run directory RUN from the last checkpoint that a training run pushed to OWNER/NAME.

    `swe-core run --resume RUN` resumes it.

    Exit code: 1 when OWNER/NAME has no checkpoint.
    """
    step = restore(repo_id, directory)
    if step is None:
        click.echo(f"nothing to restore: no checkpoint was pushed to {repo_id}", err=True)
        raise click.exceptions.Exit(1)
    click.echo(f"restored step {step}; resume it with: swe-core run --resume {directory}")


def restore(repo_id: str, directory: Path) -> int | None:
    """Create a run directory from the last pushed checkpoint. `swe-core run --resume` resumes it.

    Args:
        repo_id: OWNER/NAME of the repository.
        directory: The run directory, which must not exist or be empty. It is created atomically.

    Returns:
        The step of the checkpoint; None if there is no checkpoint or no such repository.

    Raises:
        TryLater: The Hub is not available now.
        UsageError: The token may not read the repository, or `directory` is not empty.
        SweError: The checkpoint cannot be resumed, or `directory` cannot be written.
    """
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(
            f"{str(directory)!r} is not empty: name a directory to restore into that is not there"
        )
    from huggingface_hub.errors import RepositoryNotFoundError

    api = client(repo_id, "restore from")
    new = directory.with_name(f".{directory.name}.restored")
    shutil.rmtree(new, ignore_errors=True)
    try:
        with translate_errors(repo_id, "restore from"):
            try:
                info = api.model_info(repo_id)
            except RepositoryNotFoundError as error:
                if problem_of(error).kind != "missing":  # the client raises it for other refusals, too
                    raise
                return None
            if f"{STATE}/{RUN_FILE}" not in {one.rfilename for one in info.siblings or ()}:
                return None
            api.snapshot_download(
                repo_id, revision=info.sha, allow_patterns=f"{FOLDER}/*", local_dir=new / "from"
            )
        step = _arrange(new, new / "from" / FOLDER)
        if directory.exists():
            directory.rmdir()
        directory.parent.mkdir(parents=True, exist_ok=True)
        new.replace(directory)
    except OSError as error:
        raise SweError(
            f"the checkpoint of {repo_id!r} cannot be written to {str(directory)!r}: "
            f"{error.strerror or error}"
        ) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return step


def _arrange(run: Path, checkpoint: Path) -> int:
    """Turn the downloaded files into a run directory. Return the step."""
    from swe_trainer_trl.journal.journal import JOURNAL, Journal  # lazy: imports numpy

    state = checkpoint / Path(STATE).name
    try:
        step = int(orjson.loads((checkpoint / "trainer_state.json").read_bytes())["global_step"])
        optional = (METRICS_FILE, GROUPS_FILE, EVALUATIONS_FILE)
        for name in (RUN_FILE, *optional, JOURNAL):
            if name not in optional or (state / name).is_file():
                (state / name).replace(run / name)
    except (OSError, ValueError, KeyError) as error:
        raise SweError(
            f"what was pushed as {FOLDER!r} is incomplete ({sentence(error)}) and cannot be resumed"
        ) from error
    lines = (state / ROLLOUTS_FILE).read_bytes().splitlines() if (state / ROLLOUTS_FILE).is_file() else []
    journal = Journal(run / JOURNAL)
    try:
        begun = journal.groups_begun()
        members = {
            f"-g{group.id}-": {member.rollout_id for member in group.members}
            for group in journal.unfinished()
        }
        evaluations = {evaluation.name for evaluation in journal.ended_evaluations()}
    finally:
        journal.close()
    kept = [line for line in lines if _counted(orjson.loads(line)["id"], begun, members, evaluations)]
    (run / EARLIER_FILE).write_bytes(b"".join(line + b"\n" for line in kept))
    (run / ROLLOUTS_FILE).touch()
    (run / FOLDERS).mkdir()
    shutil.rmtree(state)
    (run / CHECKPOINTS).mkdir()
    checkpoint.replace(run / CHECKPOINTS / f"checkpoint-{step}")
    shutil.rmtree(run / "from")
    return step


def _counted(rollout_id: str, begun: int, members: dict[str, set[str]], evaluations: set[str]) -> bool:
    """Return whether the journal contains a rollout. A rollout that finished during the copy is not in the
    journal: it runs again, and would count twice. So does one of an evaluation that was open."""
    if found := _EVALUATION.search(rollout_id):
        return found[1] in evaluations
    for group, known in members.items():
        if group in rollout_id:
            return rollout_id in known
    number = rollout_id.rpartition("-g")[2].partition("-")[0]
    return number.isdecimal() and int(number) < begun
