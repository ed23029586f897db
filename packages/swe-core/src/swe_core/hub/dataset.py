"""DatasetRepository: a data set on the Hub that runs are pushed to. Everything here blocks."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pydantic import ValidationError

from swe_core.errors import UsageError
from swe_core.hub.card import README, card
from swe_core.hub.client import client, translate_errors
from swe_core.hub.options import PushOptions
from swe_core.hub.pushed_run import FOLDER, SHARDS, PushedRun
from swe_core.system.plural import counted

_KIND = "dataset"


class DatasetRepository:
    """A data set that is pushed to.

    Every push is one commit, with the shard, the state of its run, and the card. Its parent is the commit
    that was last read, so it fails if someone else has pushed since.

    Attributes:
        id: OWNER/NAME.
        url: The page of the data set.

    Args:
        options: `to` names the data set.

    Raises:
        UsageError: `to` is not set, there is no token, or a package is missing.
    """

    def __init__(self, options: PushOptions) -> None:
        if options.to is None:
            raise UsageError("a push needs the name of a data set: give one with --to OWNER/NAME")
        self.id = options.to
        self._api = client(self.id)
        self.url = f"{self._api.endpoint}/datasets/{self.id}"
        self._private = options.private
        self._opened = False
        self._head: str | None = None
        self._runs: dict[str, PushedRun] = {}
        self._card: str | None = None

    def open(self) -> None:
        """Create the data set, or check that it can be pushed to.

        Raises:
            TryLater: The Hub does not answer now.
            UsageError: The token lacks a permission, or the data set is of another kind or public.
        """
        with translate_errors(self.id):
            self._api.create_repo(self.id, repo_type=_KIND, private=self._private, exist_ok=True)
            self._api.auth_check(self.id, repo_type=_KIND, write=True)
        self._refresh()
        self._opened = True

    def run(self, none: PushedRun) -> PushedRun:
        """Return what the data set holds of a run; `none` without any.

        Raises:
            TryLater: The Hub does not answer now.
            UsageError: As in `open`.
        """
        if not self._opened:
            self.open()
        elif self._head is None:
            self._refresh()
        return self._runs.get(none.run, none)

    def commit(self, run: PushedRun, path: str, shard: bytes, rows: int) -> None:
        """Add a shard.

        Args:
            run: The run including the shard.
            path: Path of the shard in the repository.

        Raises:
            TryLater: It is unknown whether the shard was added: call `run` again.
            UsageError: As in `open`.
        """
        from huggingface_hub import CommitOperationAdd

        runs = {**self._runs, run.run: run}
        files = {path: shard, run.path: run.model_dump_json().encode()}
        readme = card(self.id, runs.values(), self._card)
        if readme is not None and readme != self._card:
            files[README] = readme.encode()
        head, self._head = self._head, None  # read again if the commit fails
        with translate_errors(self.id):
            made = self._api.create_commit(
                self.id,
                [CommitOperationAdd(name, data) for name, data in files.items()],
                commit_message=f"Add {counted(rows, 'rollout')} of the run {run.run}",
                repo_type=_KIND,
                parent_commit=head,
            )
        self._head, self._runs, self._card = made.oid, runs, readme if readme is not None else self._card

    def _refresh(self) -> None:
        """Read the state of the data set."""
        with translate_errors(self.id):
            info = self._api.dataset_info(self.id)
            names = [one.rfilename for one in info.siblings or ()]
            if self._private and not info.private:
                raise UsageError(
                    f"the data set {self.id!r} is public: name another, or say that rollouts may be public "
                    "(push.private=false)"
                )
            known = [name for name in names if name.startswith(f"{FOLDER}/") and name.endswith(".json")]
            if not known and any(
                name.startswith(f"{SHARDS}/") or name.endswith(".parquet") for name in names
            ):
                raise UsageError(f"the data set {self.id!r} holds no rollouts of swe-core: give another name")
            wanted = [*known, *([README] if README in names else [])]
            content = {name: self._read(name, info.sha) for name in wanted}
        self._card = content.pop(README).decode(errors="replace") if README in content else None
        try:
            runs = [PushedRun.model_validate_json(data) for data in content.values()]
        except ValidationError:
            raise UsageError(
                f"the data set {self.id!r} was pushed to by another version of swe-core, or its folder "
                f"{FOLDER!r} was changed: push to another one"
            ) from None
        self._runs = {run.run: run for run in runs}
        self._head = info.sha

    def _read(self, name: str, revision: str | None) -> bytes:
        with tempfile.TemporaryDirectory(prefix="swe-push-") as folder:
            path = self._api.hf_hub_download(
                self.id, name, repo_type=_KIND, revision=revision, local_dir=folder
            )
            return Path(path).read_bytes()
