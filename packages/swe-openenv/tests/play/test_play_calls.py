"""The text that goes through a shell tool, and the answer in whatever comes back."""

from __future__ import annotations

import json
import shlex
import subprocess

import hypothesis.strategies as st
import pytest
from hypothesis import given

from swe_openenv.play.calls import SAMPLE, Answer, Call, Garbled, News, command_file, encoded


def printed(call: Call, shell: str = "sh") -> str:
    """What the call prints."""
    done = subprocess.run([*shell.split(), "-c", call.command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def body(call: Call, fields: str) -> str:
    """An answer of the call with these fields."""
    return f"{call.first}{call.second}<{fields}>{call.second}{call.first}"


@pytest.fixture
def probe() -> Call:
    return Call(["100", "", "probe", "-" * 50])


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox sh"])
def test_answer_of_real_shells(probe: Call, shell: str) -> None:
    answer = probe.answer(printed(probe, shell))
    assert answer.padding == 50
    assert answer.news[""] == News([("stdout", 0, bytes(100))])


@pytest.mark.parametrize("shell", ["sh", "bash", "busybox sh"])
def test_check_needs_only_the_shell_that_runs(shell: str) -> None:
    call = Call(["0", "", "check"])

    def checked(before: str) -> Answer:
        done = subprocess.run(
            [*shell.split(), "-c", f"{before}\n{call.in_place}\necho usable"], capture_output=True, text=True
        )
        assert done.stdout.endswith("usable\n")
        return call.answer(done.stdout)

    assert (checked("").missing, checked("").sample) == ([], SAMPLE)
    assert checked("base64() { echo odd; }").sample == "odd"
    if shell != "busybox sh":  # which has them built in
        assert {"sh", "base64", "tar"} <= {*checked("PATH=/nonexistent").missing}


def test_command_needs_no_shell_to_be_split(probe: Call) -> None:
    done = subprocess.run(shlex.split(probe.command), capture_output=True, text=True, check=True)
    assert probe.answer(done.stdout).padding == 50


@pytest.mark.parametrize(
    "wrap",
    [
        lambda said: said,
        lambda said: {"stdout": said, "exit_code": 0},
        lambda said: {"content": [{"type": "text", "text": json.dumps({"output": said})}], "data": None},
        lambda said: f"banner\r\n{said}\r\nexit code 0",
        lambda said: "\r\n".join(said[start : start + 80] for start in range(0, len(said), 80)),
    ],
)
def test_answer_in_replies_of_many_shapes(probe: Call, wrap: object) -> None:
    """Also of tools that repeat the command."""
    said = f"$ {probe.command}\n{printed(probe)}"
    assert callable(wrap)
    assert probe.answer(wrap(said)).padding == 50


def test_answers_of_other_calls_are_none(probe: Call) -> None:
    """What code inside printed before, or guesses, has other marks."""
    other = Call(probe.arguments)
    with pytest.raises(Garbled, match="does not hold the output"):
        probe.answer(printed(other))
    forged = body(other, f"m,x;x,0;o,0,5,{encoded(b'false')};")
    answer = probe.answer(f"{forged}{body(probe, 'm,x;x,1;')}{forged}")
    assert answer.news["x"] == News(code=1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("m,a;o,0,3,YWI=;", "2 of 3 bytes"),
        ("m,a;o,0,3,YWJ;", "changed on the way"),
        ("m,a;o,-1,0,;", "o,-1,0,"),
        ("m,a;x,1e3;", "x,1e3"),
        ("m,a;x,256;", "x,256"),
        ("m,a;[truncated];", "truncated"),
        ("m,a;x,9999999999999999;", "x,9999"),
        ("b,ä;", "changed on the way"),
    ],
)
def test_changed_answers_are_refused(probe: Call, fields: str, why: str) -> None:
    with pytest.raises(Garbled, match=why):
        probe.answer(body(probe, fields))


def test_cut_answer_is_named(probe: Call) -> None:
    with pytest.raises(Garbled, match="cut off"):
        probe.answer(printed(probe)[:60])


@given(st.text())
def test_replies_of_any_text_are_refused(text: str) -> None:
    with pytest.raises(Garbled):
        Call(["1", "", "probe", ""]).answer(text)


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), max_size=3))
def test_programs_get_their_arguments(arguments: list[str]) -> None:
    """A shell reads the file, and nothing in it but the program's own words."""
    script = command_file(["printf", "%s\\0", *arguments], "/", {"ODD": "a'b\n$HOME"}).decode()
    done = subprocess.run(["sh", "-c", f"d=/nonexistent\n{script}"], capture_output=True, check=True)
    assert done.stdout == "".join(f"{each}\0" for each in arguments or [""]).encode()
