"""One wording for what Hugging Face refuses: the real client against the local one, and every status."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from huggingface_hub import HfApi, constants, errors
from huggingface_hub.utils import hf_raise_for_status
from hypothesis import given
from hypothesis import strategies as st

from swe_core.hub.errors import NO_TOKEN, problem_of
from swe_testing.hf import LocalHF

NAME = "tester/thing"


def raised(call: Any) -> Exception:
    """Return what a call of the client raises."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # whatever it is
        call()
    return caught.value


def test_service_status_has_a_kind_and_a_sentence(threaded_hf: LocalHF) -> None:
    for status, kind, said in (
        (400, "refused", "answered 400 ("),
        (401, "token", "does not accept the token ("),
        (402, "payment", "refuses it for the account's limits ("),
        (403, "scope", "the Hugging Face token may not do that ("),
        (404, "missing", "nothing of that name"),
        (409, "changed", "another client changed it meanwhile ("),
        (429, "rate", "limits how often it is asked ("),
        (500, "server", "answered 500 ("),
    ):
        threaded_hf.faults.plan("hub.info", status)
        problem = problem_of(raised(lambda: HfApi().model_info(NAME)))
        assert problem.kind == kind
        assert problem.passes == (kind in ("server", "rate", "changed"))
        sentence = problem.sentence(f"look at {NAME!r}")
        assert sentence.startswith(f"cannot look at {NAME!r}: ")
        assert said in sentence
        assert f"This failure was asked for: {status}" in sentence


def answer(status: int, **headers: str) -> Any:
    """An answer of the service about a repository, as the client's own HTTP library has it."""
    http = importlib.import_module(errors.HfHubHTTPError.__bases__[0].__module__.partition(".")[0])
    request = http.Request("GET", "https://service.invalid/api/models/a/b")
    return http.Response(status, headers=headers, request=request)


def test_expired_token_is_not_a_missing_repository() -> None:
    """The client raises RepositoryNotFoundError for nearly every 401 about a repository."""
    for headers, kind in (
        ({"X-Error-Message": "The token is expired"}, "token"),
        ({"X-Error-Code": "RepoNotFound"}, "missing"),
    ):
        error = raised(lambda headers=headers: hf_raise_for_status(answer(401, **headers)))
        assert isinstance(error, errors.RepositoryNotFoundError)
        assert problem_of(error).kind == kind


def test_taken_name_is_rejected(threaded_hf: LocalHF) -> None:
    api = HfApi()
    api.create_repo(NAME)
    problem = problem_of(raised(lambda: api.create_repo(NAME)))
    assert (problem.kind, problem.passes) == ("taken", False)
    assert "You already created this model repo" in problem.why


def test_unreachable_hub_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    api = HfApi(endpoint="http://127.0.0.1:9", token="hf_x")
    problem = problem_of(raised(lambda: api.whoami()), endpoint=api.endpoint)
    assert (problem.kind, problem.passes) == ("unreachable", True)
    assert "Hugging Face at 'http://127.0.0.1:9' does not answer (" in problem.why
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "at 'http://127.0.0.1:9'" in problem_of(errors.OfflineModeIsEnabled("it is set")).why
    assert "HF_HUB_OFFLINE" in problem_of(errors.OfflineModeIsEnabled("it is set")).remedy


def test_errors_of_the_client_have_a_sentence() -> None:
    assert problem_of(errors.LocalTokenNotFoundError("none")) == NO_TOKEN
    assert problem_of(errors.HFValidationError("too long")).sentence("push") == (
        "cannot push: that is no name of a repository (too long); name it as OWNER/NAME"
    )
    assert problem_of(ValueError()).sentence("push") == "cannot push: ValueError"
    assert problem_of(ValueError("cause " + "x" * 295)).why == "cause " + "x" * 293 + "…"


@given(status=st.integers(400, 599), words=st.text(max_size=2000))
def test_any_answer_is_one_short_sentence(status: int, words: str) -> None:
    error = errors.HfHubHTTPError("x", response=answer(status), server_message=words)
    sentence = problem_of(error, endpoint="https://service.invalid").sentence("look")
    assert sentence.startswith("cannot look: ")
    assert len(sentence.splitlines()) == 1
    assert len(sentence) < 600
