"""Jobs of the local HF, by the real client: what runs, what is refused, what is reported."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from swe_core.builtin.local.bwrap import find_bwrap, why_not
from swe_testing.hf import LocalHF

hub = pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.skipif(why_not(find_bwrap()) is not None, reason="no user namespaces here")

IMAGE = "python:3.12"


def run(*command: str, **options: object) -> str:
    """The id of a new job."""
    return str(hub.run_job(image=IMAGE, command=list(command), **options).id)


def wait(id: str) -> tuple[list[str], object]:
    """A job's whole log, and its status once it has ended."""
    log = list(hub.fetch_job_logs(job_id=id, follow=True))
    return log, hub.inspect_job(job_id=id).status


def first_line(id: str) -> str:
    """What a job, which runs on, printed first."""
    with closing(hub.fetch_job_logs(job_id=id, follow=True)) as log:
        return str(next(log))


def refused(status: int, **options: object) -> str:
    """The message with which a job is refused."""
    with pytest.raises(hub.errors.HfHubHTTPError) as caught:
        hub.run_job(**{"image": IMAGE, "command": ["true"], **options})
    assert caught.value.response.status_code == status
    return str(caught.value)


def test_job_runs_its_command_with_environment_and_secrets(threaded_hf: LocalHF) -> None:
    code = "import os; print(os.environ['A'], os.environ['B']); print('second')"
    log, status = wait(run("python3", "-c", code, env={"A": "one"}, secrets={"B": "two"}))
    assert log == ["one two", "second"]
    assert (status.stage, status.message) == ("COMPLETED", None)


def test_job_that_fails_says_so(threaded_hf: LocalHF) -> None:
    log, status = wait(run("sh", "-c", "echo no >&2; exit 4"))
    assert log == ["no"]
    assert status.stage == "ERROR"
    assert "exit code: 4" in status.message


def test_api_tells_the_names_of_secrets_only(threaded_hf: LocalHF) -> None:
    id = run("true", secrets={"KEY": "hidden-value"})
    headers = {"Authorization": f"Bearer {threaded_hf.token}"}
    for path in (f"/api/jobs/tester/{id}", "/api/jobs/tester"):
        assert "hidden-value" not in httpx.get(threaded_hf.origin + path, headers=headers).text
    assert list(hub.inspect_job(job_id=id).secrets) == ["KEY"]


def test_no_secret_in_arguments_or_files_of_this_machine(threaded_hf: LocalHF) -> None:
    id = run("sh", "-c", "echo ready; sleep 60", secrets={"KEY": "hidden-value"})
    assert first_line(id) == "ready"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        assert b"hidden-value" not in arguments
    for file in threaded_hf.home.rglob("*"):
        assert not file.is_file() or b"hidden-value" not in file.read_bytes()
    hub.cancel_job(job_id=id)


def test_cancelled_job_is_gone_with_all_it_started(threaded_hf: LocalHF) -> None:
    mark = f"60.{os.getpid()}{sys.hash_info.width}"
    id = run("sh", "-c", f"sleep {mark} & sleep {mark} & sleep 0.1; echo ready; wait")
    assert first_line(id) == "ready"
    while not _running(mark):  # its children were forked, and begin
        time.sleep(0.02)
    hub.cancel_job(job_id=id)
    assert hub.inspect_job(job_id=id).status.stage == "CANCELED"
    assert not _running(mark)
    hub.cancel_job(job_id=id)  # again: nothing to do


def test_server_that_closes_leaves_no_job_behind(threaded_hf: LocalHF, hf_portal: object) -> None:
    mark = f"61.{os.getpid()}{sys.hash_info.width}"
    id = run("sh", "-c", f"echo ready; sleep {mark}")
    assert first_line(id) == "ready"
    hf_portal.call(threaded_hf.jobs.aclose)
    assert not _running(mark)
    assert not list(threaded_hf.jobs.home.iterdir())


def test_job_ends_at_its_time_out(threaded_hf: LocalHF) -> None:
    _, status = wait(run("sleep", "60", timeout=1))
    assert (status.stage, status.message) == ("ERROR", "Job timeout")


def test_jobs_are_listed_by_label_and_stage(threaded_hf: LocalHF) -> None:
    first = run("sleep", "60", labels={"kind": "a"})
    second = run("true", labels={"kind": "b"})
    wait(second)
    assert {job.id for job in hub.list_jobs()} == {first, second}
    assert [job.id for job in hub.list_jobs(labels={"kind": "a"})] == [first]
    assert [job.id for job in hub.list_jobs(status="COMPLETED")] == [second]
    assert list(hub.list_jobs(labels={"kind": "a"}, status="COMPLETED")) == []
    hub.cancel_job(job_id=first)


def test_hardware(threaded_hf: LocalHF) -> None:
    flavors = {flavor.name: flavor for flavor in hub.HfApi().list_jobs_hardware()}
    assert flavors["cpu-basic"].ram == "16 GB"
    assert flavors["a100-large"].accelerator.model == "A100"


def test_impossible_settings_are_refused(threaded_hf: LocalHF) -> None:
    assert "cpu-huge" in refused(400, flavor="cpu-huge")
    assert "stranger" in refused(403, namespace="stranger")
    assert not threaded_hf.jobs.jobs


def test_token_that_lacks_the_scope_is_refused(threaded_hf: LocalHF) -> None:
    reader = threaded_hf.add_token({"job.read"})
    assert "job.write" in refused(403, token=reader)
    assert list(hub.list_jobs(token=reader, namespace="tester")) == []
    access = hub.whoami(token=reader)["auth"]["accessToken"]
    assert access["role"] == "fineGrained"


def test_token_that_is_unknown_or_revoked_is_refused(threaded_hf: LocalHF) -> None:
    refused(401, token="hf_nobody", namespace="tester")
    token = threaded_hf.add_token()
    assert list(hub.list_jobs(token=token, namespace="tester")) == []
    threaded_hf.accounts.revoke(token)
    refused(401, token=token, namespace="tester")


def test_quota_is_refused_and_free_again(threaded_hf: LocalHF) -> None:
    threaded_hf.faults.quota = 1
    first = run("sleep", "60")
    refused(402)
    hub.cancel_job(job_id=first)
    wait(run("true"))


def test_unknown_image_is_an_error_of_the_job(threaded_hf: LocalHF) -> None:
    id = hub.run_job(image="no-such/image:1", command=["true"]).id
    log, status = wait(id)
    assert log == []
    assert status.stage == "ERROR"
    assert "no-such/image:1" in status.message


def test_organisation_is_a_namespace_too(threaded_hf: LocalHF) -> None:
    id = hub.run_job(image=IMAGE, command=["true"], namespace="testers").id
    assert [job.id for job in hub.list_jobs(namespace="testers")] == [id]
    assert list(hub.list_jobs()) == []
    with pytest.raises(hub.errors.HfHubHTTPError):
        hub.inspect_job(job_id=id, namespace="tester")


def _running(mark: str) -> bool:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False
