"""Jobs and sandboxes of the local HF whose image is a Docker Engine's."""

from __future__ import annotations

import subprocess

import httpx
import pytest

from swe_testing.hf import LocalHF

hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.docker


def containers(hf: LocalHF) -> list[str]:
    """The names of the containers that this local HF has: other tests have theirs in the same engine."""
    argv = ["docker", "ps", "--all", "--filter", "name=swe-hf-", "--format", "{{.Names}}"]
    names = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in names if name.removeprefix("swe-hf-") in hf.jobs.jobs]


def test_sandbox_in_a_container(threaded_hf: LocalHF, docker_image: str) -> None:
    with hub.Sandbox.create(image=docker_image, env={"A": "one"}, start_timeout=120) as sandbox:
        assert containers(threaded_hf) == [f"swe-hf-{sandbox.id}"]
        assert sandbox.run("echo $A; pwd").stdout == "one\n/testbed\n"
        sandbox.run("echo changed >/usr/changed")
        assert sandbox.files.read("/usr/changed") == b"changed\n"
        sandbox.run("kill -9 -1", check=False)
        sandbox.run(["python3", "-m", "http.server", "8000", "--bind", "127.0.0.1"], background=True)
        address = sandbox.proxy_url_for(8000, scheme="http://")
        while httpx.get(address, headers=sandbox.proxy_headers).status_code != 200:
            pass
        assert sandbox.run("cat /proc/net/route").stdout.count("\n") == 1  # its head: no network
    assert containers(threaded_hf) == []


@pytest.mark.slow
def test_job_in_a_container(threaded_hf: LocalHF, docker_image: str) -> None:
    options = {"image": docker_image, "secrets": {"KEY": "hidden-value"}}
    job = hub.run_job(command=["sh", "-c", "echo $KEY; exit 5"], **options)
    assert list(hub.fetch_job_logs(job_id=job.id, follow=True)) == ["hidden-value"]
    assert "exit code: 5" in hub.inspect_job(job_id=job.id).status.message
    lasting = hub.run_job(command=["sh", "-c", "echo ready; sleep 60"], **options)
    while not threaded_hf.jobs.jobs[lasting.id].log[1:]:
        pass
    about = subprocess.run(["docker", "inspect", f"swe-hf-{lasting.id}"], capture_output=True, check=True)
    assert b"hidden-value" not in about.stdout
    hub.cancel_job(job_id=lasting.id)
    assert containers(threaded_hf) == []
