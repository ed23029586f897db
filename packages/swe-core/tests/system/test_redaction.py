"""Redactor: every known secret is found, whole or split."""

from __future__ import annotations

import io
import json
import logging
import threading
from functools import partial
from random import Random

import anyio
import anyio.lowlevel
import anyio.to_thread
from hypothesis import given
from hypothesis import strategies as st

from swe_core.system import redaction
from swe_core.system.redaction import (
    MARK,
    RedactingFormatter,
    Redactor,
    redact,
    redaction_scope,
    scoped_secrets,
)

# Few letters, so that secrets begin alike, overlap, and stand in texts by chance.
LETTERS = st.text("abé", max_size=20)
SECRETS = st.lists(st.text("abé", min_size=8, max_size=12), max_size=4)


def redactor_of(secrets: list[str]) -> Redactor:
    redactor = Redactor()
    for secret in secrets:
        redactor.add(secret)
    return redactor


@given(SECRETS, st.lists(LETTERS), st.randoms())
def test_redaction_leaves_no_secret(secrets: list[str], texts: list[str], random: Random) -> None:
    pieces = [*texts, *secrets]
    random.shuffle(pieces)
    text = " ".join(pieces)
    redactor = redactor_of(secrets)
    redacted = redactor.text(text)
    assert not any(secret in redacted for secret in secrets)
    if not any(secret in text for secret in secrets):
        assert redacted == text
    raw = redactor.data(text.encode())
    assert not any(secret.encode() in raw for secret in secrets)


@given(SECRETS, LETTERS)
def test_unfinished_is_the_longest_secret_prefix_at_the_end(secrets: list[str], text: str) -> None:
    data = text.encode()
    beginnings = {secret.encode()[:length] for secret in secrets for length in range(len(secret.encode()))}
    longest = max((len(start) for start in beginnings if data.endswith(start)), default=0)
    assert redactor_of(secrets).unfinished(data) == longest


def test_discarded_secret_is_not_redacted() -> None:
    redactor = redactor_of(["swe-core-one", "swe-core-two"])
    redactor.discard("swe-core-one")
    redactor.discard("was-never-known")
    assert redactor.text("swe-core-one swe-core-two") == f"swe-core-one {MARK}"
    redactor.discard("swe-core-two")
    assert redactor.text("swe-core-two") == "swe-core-two"


@given(SECRETS, st.lists(LETTERS), st.randoms())
def test_split_text_is_redacted_as_a_whole(secrets: list[str], texts: list[str], random: Random) -> None:
    pieces = [*texts, *secrets]
    random.shuffle(pieces)
    redactor, said, held = redactor_of(secrets), "", ""
    for piece in pieces:
        now, held = redactor.split(held + piece)
        said += now
        assert redactor.unfinished(held) == len(held)
    said += redactor.text(held)
    assert not any(secret in said for secret in secrets)
    if not any(secret in "".join(pieces) for secret in secrets):
        assert said == "".join(pieces)


def test_secret_that_extends_another_is_replaced_whole() -> None:
    redactor = redactor_of(["sk-canary", "sk-canary-0815"])
    assert redactor.text("sk-canary-0815 sk-canary-1") == f"{MARK} {MARK}-1"
    assert redactor.split("sk-canary-08") == ("", "sk-canary-08")
    assert redactor.split("sk-canary-1") == (f"{MARK}-1", "")


def test_secret_is_found_in_json_escapes() -> None:
    for secret in ('sk-"quoted"-1', "sk-back\\slash-1", "sk-sl/ash-123", "sk-schlüssel-1"):
        redactor = redactor_of([secret])
        for ascii_only in (True, False):
            inside = json.dumps({"command": secret}, ensure_ascii=ascii_only)
            for written in (inside, inside.replace("/", "\\/")):
                assert json.loads(redactor.text(written)) == {"command": MARK}
                outside = json.dumps({"arguments": written}, ensure_ascii=ascii_only).encode()
                assert json.loads(json.loads(redactor.data(outside))["arguments"]) == {"command": MARK}
        redactor.discard(secret)
        assert redactor.text(inside) == inside


def test_redaction_covers_every_text_of_a_value() -> None:
    value = {SECRET: [{"a": f"x {SECRET}"}, (1, SECRET)], "b": None, "c": 12345678}
    redacted = {MARK: [{"a": f"x {MARK}"}, [1, MARK]], "b": None, "c": 12345678}
    assert redactor_of([SECRET, "12345678", "seven77"]).value([value, "seven77"]) == [redacted, "seven77"]


SECRET, OTHER = "sekret-one-1234", "token-two-5678"


def test_secret_is_known_in_all_contexts_of_a_run() -> None:
    """Contexts inside join the one around them, so that a run and its command line are one."""
    with redaction_scope() as outer:
        with redaction_scope() as redactor:
            redact(SECRET)
        assert outer is redactor
        assert outer.text(f"a {SECRET}") == f"a {MARK}"
    with redaction_scope() as later:
        assert later is not outer
        assert later.text(SECRET) == SECRET


def test_redact_outside_a_run_has_no_effect() -> None:
    redact(SECRET)
    redact(SECRET, temporary=True)
    with redaction_scope() as redactor:
        assert redactor.known() == set()


def test_temporary_secret_is_forgotten_with_its_rollout() -> None:
    with redaction_scope() as redactor:
        redact(OTHER, temporary=True)
        with scoped_secrets():
            redact(SECRET, temporary=True)
            redact("for-good-1234")
            assert redactor.known() == {OTHER, SECRET, "for-good-1234"}
        assert redactor.known() == {OTHER, "for-good-1234"}, "of no rollout, it stays"


async def test_redaction_scope_follows_tasks_and_threads() -> None:
    """Two runs in one process are separate, and a rollout forgets its own secrets only."""
    seen: dict[str, set[str]] = {}

    async def rollout(redactor: Redactor, secret: str) -> None:
        with scoped_secrets():
            await anyio.to_thread.run_sync(partial(redact, secret, temporary=True))
            await anyio.lowlevel.checkpoint()
            seen[secret] = redactor.known()

    async def run(name: str) -> None:
        with redaction_scope() as redactor:
            redact(f"{name}-secret")
            async with anyio.create_task_group() as tasks:
                for number in range(3):
                    tasks.start_soon(rollout, redactor, f"{name}-{number}-passing")
            assert redactor.known() == {f"{name}-secret"}

    async with anyio.create_task_group() as runs:
        runs.start_soon(run, "first")
        runs.start_soon(run, "other")
    assert len(seen) == 6
    for secret, known in seen.items():
        assert {secret, f"{secret[:5]}-secret"} <= known
        assert {one[:5] for one in known} == {secret[:5]}


def test_secrets_may_be_added_during_reads() -> None:
    redactor, over = Redactor(), threading.Event()

    def add() -> None:
        for number in range(200):
            redactor.add(f"{number:08}-secret")
            if number >= 50:
                redactor.discard(f"{number - 50:08}-secret")
        over.set()

    threads = [threading.Thread(target=add) for _ in range(2)]
    for thread in threads:
        thread.start()
    while not over.is_set():
        redactor.text("x" * 100)
        redactor.unfinished(b"0")
    for thread in threads:
        thread.join()
    assert redactor.text("00000199-secret") == MARK


CREDENTIALS = (
    "API_KEY apikey apiKey api-key HF_TOKEN PGPASSWORD passwd passwords GITHUB_PAT AWS_SECRET_ACCESS_KEY "
    "client_secret credentials OPENAI_KEY hf_key Authorization"
)
OTHERS = (
    "api_key_env TOKEN_FILE tokenizer completion_tokens eos_token monkey cache_key secretary path test_pat "
    "decoder_start_token think_end_token"
)


def test_names_of_secrets_are_told_from_similar_ones() -> None:
    for names, secret in ((CREDENTIALS, True), (OTHERS, False)):
        for name in names.split():
            told = [redaction.names_credential(one) for one in (name, f"role.{name}")]
            assert told == [secret, secret], name


def test_secret_settings_are_found() -> None:
    settings = {
        "a": {"b": {"api_key": "x", "completion_tokens": 8192, "token": "", "secret": None}, "model": "m"},
        "password": 12345678, "c": ["t"], "servers": [{"api_key": "y"}, {"url": "z"}], "token": ["u"],
        "use_token": True,
    }  # fmt: skip
    assert [*redaction.secret_settings(settings)] == ["a.b.api_key", "password", "servers.api_key", "token"]


def test_log_records_and_tracebacks_are_redacted() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(RedactingFormatter(redactor_of([SECRET]), "%(levelname)s %(message)s"))
    logger = logging.Logger("one")
    logger.addHandler(handler)
    try:
        raise KeyError(SECRET)
    except KeyError:
        logger.exception("with %s", SECRET)
    assert SECRET not in stream.getvalue()
    assert stream.getvalue().startswith(f"ERROR with {MARK}\nTraceback")
    assert f"KeyError: '{MARK}'" in stream.getvalue()


def test_overlapping_secrets_are_redacted() -> None:
    for secrets, text in (
        (("abcdefgh1234", "XXXXXXXXabcdefgh1234YYYYYYYY"), "XXXXXXXXabcdefgh1234YYYYYYYY"),
        (("abcdefgh1234", "1234ZZZZ99"), "abcdefgh1234ZZZZ99"),
    ):
        redactor = redactor_of([*secrets])
        assert redactor.text(f"<{text}>") == f"<{MARK}>"
        assert redactor.data(f"<{text}>".encode()) == f"<{MARK}>".encode()


def test_control_characters_do_not_hide_a_secret() -> None:
    redactor = redactor_of(["sk-live-0123456789"])
    record = logging.LogRecord("n", logging.INFO, "f", 1, "said sk-live\x1b[0m-0123456789", None, None)
    assert "0123456789" not in RedactingFormatter(redactor, "%(message)s").format(record)
