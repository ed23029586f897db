"""Requests to the Hub for deployments, with the errors of `huggingface_hub` as single sentences."""

from __future__ import annotations

import difflib
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from huggingface_hub import HfApi, JobHardwareInfo, Volume, get_token
from huggingface_hub.errors import HFValidationError, HTTPError, RepositoryNotFoundError

from swe_core.errors import ConfigError, SweError, UsageError, sentence
from swe_core.hub.errors import NO_TOKEN, Advice, Kind, problem_of
from swe_trainer_trl.space.deployment import LOGIN, RANDOM, Deployment, Needs, RepoKind, write
from swe_trainer_trl.space.hardware import require_gpus
from swe_trainer_trl.space.keys import KeyStore
from swe_trainer_trl.space.leaks import refuse_leaks
from swe_trainer_trl.space.manifest import KEY_HEADER, TOKEN
from swe_trainer_trl.space.state import State

_MOUNT = "/deploy"
"""Directory of the deployment's files in a Job."""
_ASK = 10.0
"""Timeout of a request to a Space in seconds."""
_WRONG: frozenset[Kind] = frozenset({"no token", "token", "scope", "missing", "taken", "name"})
"""Problems that the user can solve with another argument or another token."""
_ADVICE: Advice = {
    "scope": "it needs the permission to write to repositories of that owner, and for a job to start jobs",
    "taken": "choose another --repo-id, or delete what is there first",
}
_PUSH_ADVICE: Advice = {
    "scope": "give the token of the run write access to its contents, or name another by push.to",
    "token": "the run is given the login of this machine, or what --secret HF_TOKEN=VARIABLE names",
}
_KINDS: Mapping[RepoKind, str] = {"dataset": "data set", "model": "model"}
_UNSETTLED: frozenset[Kind] = frozenset({"server", "unreachable"})
"""Problems after which it is unknown whether a request was executed."""


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a Space.

    Args:
        stage: The Hub's name of its stage, such as "RUNNING".
        hardware: Its current or requested hardware.
        state: Its own report; None if there is none.
        silent: Why there is no report, as half a sentence.
    """

    stage: str
    hardware: str
    state: State | None = None
    silent: str = ""


class Hub:
    """Creates and manages deployments.

    Args:
        api: The client, whose token every call uses.
        keys: The keys of the Spaces that were deployed from this machine.
    """

    def __init__(self, api: HfApi | None = None, keys: KeyStore | None = None) -> None:
        self._api = api or HfApi()
        self._keys = keys or KeyStore()

    def secret_values(self, deployment: Deployment, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the values of a deployment's secrets, without missing ones. Random values are new."""
        values = {}
        for secret in deployment.secrets:
            if secret.origin == RANDOM:
                values[secret.name] = secrets.token_urlsafe(32)
            else:
                value = self._token() if secret.origin == LOGIN else environment.get(secret.origin)
                if value:
                    values[secret.name] = value
        return values

    def deploy(self, deployment: Deployment, environment: Mapping[str, str]) -> str:
        """Create the Space and upload its files. A Space that cannot be completed is deleted.

        Returns:
            The URL of the Space.

        Raises:
            UsageError: A secret has no value, the name is taken, the hardware does not exist, or the run
                could not start on it.
            SweError: The Hub refuses the request or cannot be reached, or secrets are missing on the Space.
        """
        values = self._ready(deployment, environment)
        with self._translate_errors(_doing(deployment)):
            _require_deployable(deployment, self._api.list_spaces_hardware())
        undo = f"`swe-core space delete {deployment.repo_id}`"
        with _perhaps_made(undo), self._translate_errors(_doing(deployment)):
            url = self._api.create_repo(
                deployment.repo_id,
                repo_type="space",
                space_sdk="docker",
                private=deployment.private,
                space_hardware=deployment.hardware,  # any that the Hub has
                space_secrets=[{"key": name, "value": value} for name, value in values.items()],
                space_variables=[
                    {"key": name, "value": value} for name, value in deployment.variables.items()
                ],
            )
        with self._undone(deployment.repo_id, "space"):
            self._require_secrets(deployment.repo_id, values)
            for secret in deployment.secrets:
                if secret.origin == RANDOM:
                    self._keys.keep(deployment.repo_id, values[secret.name])
            self._upload(deployment, "space")
        return str(url)

    def run_job(
        self, deployment: Deployment, environment: Mapping[str, str], timeout: str
    ) -> tuple[str, str]:
        """Upload the files of a Job to its own data set, and start the Job.

        Args:
            deployment: The deployment.
            environment: Environment of this process, with the values of secrets.
            timeout: Maximum duration in the Hub's form, such as "6h".

        Returns:
            The id and the URL of the Job.

        Raises:
            UsageError: See `deploy`.
            SweError: See `deploy`.
        """
        values = self._ready(deployment, environment)
        with self._translate_errors(_doing(deployment)):
            _require_deployable(deployment, self._api.list_jobs_hardware())
        with _perhaps_made("the data set's settings on the Hub"), self._translate_errors(_doing(deployment)):
            self._api.create_repo(deployment.repo_id, repo_type="dataset", private=deployment.private)
        with self._undone(deployment.repo_id, "dataset"):
            self._upload(deployment, "dataset")
            with self._translate_errors(_doing(deployment)):
                job = self._api.run_job(
                    image=deployment.image,
                    command=["sh", f"{_MOUNT}/start.sh"],
                    env=dict(deployment.variables),
                    secrets=values,
                    flavor=deployment.hardware,
                    timeout=timeout,
                    volumes=[Volume(type="dataset", source=deployment.repo_id, mount_path=_MOUNT)],
                    namespace=deployment.repo_id.partition("/")[0],
                )
        return job.id, job.url

    def status(self, repo_id: str) -> Status:
        """Return the status of a Space, with its own report if it runs and its key is stored here.

        Raises:
            SweError: The Space does not exist, or the Hub is not available.
        """
        with self._translate_errors(f"look at the Space {repo_id!r}"):
            runtime = self._api.get_space_runtime(repo_id)
            host = self._api.space_info(repo_id).host
        known = Status(str(runtime.stage), str(runtime.hardware or runtime.requested_hardware))
        if known.stage != "RUNNING" or host is None:
            return known
        key = self._keys.find(repo_id)
        if key is None:
            return Status(known.stage, known.hardware, silent="it was not deployed from this machine")
        headers = {KEY_HEADER: key, "Authorization": f"Bearer {self._token()}"}
        try:
            reply = httpx.get(f"{host}/state", headers=headers, timeout=_ASK).raise_for_status()
            return Status(known.stage, known.hardware, State.model_validate_json(reply.content))
        except (httpx.HTTPError, ValueError) as error:
            return Status(known.stage, known.hardware, silent=f"it does not answer ({sentence(error)[:200]})")

    def logs(self, repo_id: str, *, build: bool, follow: bool) -> Iterator[str]:
        """Yield the lines of a Space's log, or of its build log.

        Raises:
            SweError: The Space does not exist, or the Hub is not available.
        """
        with self._translate_errors(f"read the logs of the Space {repo_id!r}"):
            yield from self._api.fetch_space_logs(repo_id, build=build, follow=follow)

    def pause(self, repo_id: str) -> None:
        """Pause a Space, so that it costs nothing until it is restarted.

        Raises:
            SweError: See `logs`.
        """
        with self._translate_errors(f"pause the Space {repo_id!r}"):
            self._api.pause_space(repo_id)

    def restart(self, repo_id: str) -> None:
        """Restart a Space, paused or not.

        Raises:
            SweError: See `logs`.
        """
        with self._translate_errors(f"restart the Space {repo_id!r}"):
            self._api.restart_space(repo_id)

    def delete(self, repo_id: str) -> None:
        """Delete a Space and its files.

        Raises:
            SweError: See `logs`.
        """
        with self._translate_errors(f"delete the Space {repo_id!r}"):
            self._api.delete_repo(repo_id, repo_type="space")
        self._keys.forget(repo_id)

    def _token(self) -> str:
        token = self._api.token
        return token if isinstance(token, str) else get_token() or ""

    def _ready(self, deployment: Deployment, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the values of all secrets, after checks that no file shows them and the token can write."""
        values = self.secret_values(deployment, environment)
        for secret in deployment.secrets:
            if secret.name not in values:
                if secret.origin == LOGIN:
                    raise UsageError(NO_TOKEN.sentence(_doing(deployment)))
                raise UsageError(
                    f"the secret {secret.name!r} has no value: set the variable {secret.origin!r} here, or "
                    "leave --secret out"
                )
        refuse_leaks(deployment, values, environment)
        with self._translate_errors(_doing(deployment)):
            account = self._api.whoami()
        if account.get("auth", {}).get("accessToken", {}).get("role") == "read":
            raise UsageError(
                "the token of the Hub that is in use can only read: log in with one that may write "
                "(`hf auth login`, or HF_TOKEN)"
            )
        self._require(deployment.needs, values[TOKEN])
        return values

    def _require(self, needs: Needs, token: str) -> None:
        """Check the run's permissions on the Hub with the token that the run will use."""
        for kind, repo_id in needs.pushes:
            with self._translate_errors(f"let the run push to the {_KINDS[kind]} {repo_id!r}", _PUSH_ADVICE):
                try:
                    self._api.auth_check(repo_id, repo_type=kind, token=token, write=True)
                except RepositoryNotFoundError as error:
                    if problem_of(error).kind != "missing":  # the run creates a missing repository
                        raise
        if needs.flavor is not None:
            with self._translate_errors("ask for the hardware of Jobs"):
                offered = self._api.list_jobs_hardware(token=token)
            _require_hardware("sandbox.hf.flavor", needs.flavor, offered)

    def _require_secrets(self, repo_id: str, values: Mapping[str, str]) -> None:
        """Ensure that every secret is set, before the files are uploaded and the run can start."""
        for last in (False, True):
            with self._translate_errors(f"set the secrets of the Space {repo_id!r}"):
                missing = sorted(values.keys() - self._api.get_space_secrets(repo_id).keys())
                if not missing:
                    return
                if not last:
                    for name in missing:
                        self._api.add_space_secret(repo_id, name, values[name])
        raise SweError(
            f"the Hub does not have the secrets {', '.join(map(repr, missing))} that were set for the Space "
            f"{repo_id!r}: try again later"
        )

    def _upload(self, deployment: Deployment, kind: str) -> None:
        with tempfile.TemporaryDirectory(prefix="swe-space-") as folder:
            write(deployment, Path(folder))
            with self._translate_errors(_doing(deployment)):
                self._api.upload_folder(
                    repo_id=deployment.repo_id,
                    folder_path=folder,
                    repo_type=kind,
                    commit_message="Deploy a run of swe-core",
                )

    @contextmanager
    def _translate_errors(self, doing: str, advice: Advice = _ADVICE) -> Iterator[None]:
        """Translate errors of the Hub and its client into errors of swe-core.

        Args:
            doing: See `Problem.sentence`.
            advice: Advice by kind of problem.
        """
        try:
            yield
        except (HTTPError, HFValidationError, OSError) as error:  # they include the Hub's own errors
            problem = problem_of(error, endpoint=self._api.endpoint)
            kind: type[SweError] = UsageError if problem.kind in _WRONG else SweError
            if problem.kind in _UNSETTLED:
                kind = Unsettled
            raise kind(problem.sentence(doing, advice)) from error

    @contextmanager
    def _undone(self, repo_id: str, kind: str) -> Iterator[None]:
        """Delete the new repository if the block fails, so that its name is free again."""
        try:
            yield
        except BaseException as error:  # also Ctrl-C: the new repository has the secrets
            self._keys.forget(repo_id)
            try:
                self._api.delete_repo(repo_id, repo_type=kind)
            except Exception as second:  # the boundary to the library; the first error matters
                raise SweError(
                    f"{sentence(error)}; and what was created could not be deleted again "
                    f"({sentence(second)[:200]}): delete {repo_id!r} on the Hub"
                ) from error
            raise


class Unsettled(SweError):
    """It is unknown whether the Hub executed a request."""


def _require_hardware(setting: str, wanted: str, known: Iterable[object]) -> None:
    names = [str(vars(one)["name"]) for one in known]
    if wanted not in names:
        close = difflib.get_close_matches(wanted, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
        raise ConfigError(f"{setting} {wanted!r}: the Hub has none of that name; {hint}")


def _require_deployable(deployment: Deployment, known: Sequence[JobHardwareInfo]) -> None:
    """Refuse hardware that does not exist, or on which the run could not start."""
    _require_hardware("--hardware", deployment.hardware, known)
    require_gpus(deployment.hardware, deployment.needs.training, known)


def _doing(deployment: Deployment) -> str:
    return f"{'run the Job' if deployment.target == 'Job' else 'deploy the Space'} {deployment.repo_id!r}"


@contextmanager
def _perhaps_made(undo: str) -> Iterator[None]:
    """Add to the error of an unconfirmed creation that the repository may exist.

    The repository is not deleted, since it may have existed before.

    Args:
        undo: What the user can delete it with.
    """
    try:
        yield
    except Unsettled as error:
        raise SweError(
            f"{sentence(error)}; it may have been created all the same: look, and delete it by {undo} before "
            "you try again"
        ) from error
