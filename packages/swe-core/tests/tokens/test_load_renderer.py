"""load_renderer: which Renderer a model gets."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from swe_core.errors import ConfigError
from swe_core.tokens.probe_messages import TOOLS, reply, user
from swe_core.tokens.renderer import THINKING, Renderer
from swe_testing.tokenizer import family_tokens, make_tokenizer


def load_renderer(tokenizer: str, **options: Any) -> Renderer:
    """The function under test. Its module imports transformers, which collection should not wait for."""
    from swe_core.tokens import load_renderer

    return load_renderer.load_renderer(tokenizer, **options)


def shipped(name: str) -> str:
    return (files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def model(directory: Path, template: str | None, *more: str) -> str:
    """A directory with a tokenizer that has Qwen3's special tokens, and these."""
    special = [*family_tokens("qwen3"), *more]
    make_tokenizer(special, chat_template=template, eos_token="<|im_end|>").save_pretrained(directory)
    return str(directory)


def known_as(family: str, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from renderers.base import MODEL_RENDERER_MAP

    monkeypatch.setitem(MODEL_RENDERER_MAP, directory, family)


CASES = json.loads((Path(__file__).parent / "renderers.json").read_text())
"""Models, and the Renderers that they get: `template` is one of TRL's, `of` the family whose special tokens
the tokenizer has too, `known` the one that the model's name stands for. A past call `shows` a text."""
EACH = [
    pytest.param(case, id=name, marks=pytest.mark.slow if name.startswith("more") else ())
    for name, case in CASES.items()
]


@pytest.mark.parametrize("case", EACH)
def test_renderer_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: dict[str, Any]) -> None:
    template, known = case.get("template"), case.get("known")
    more = [*family_tokens(case.get("of", "qwen3")), *family_tokens(known or "qwen3")]
    directory = model(tmp_path, template and shipped(template), *more)
    if known:
        known_as(known, directory, monkeypatch)
    thinking = {"enable_thinking": case["thinking"]} if "thinking" in case else {}
    made = load_renderer(directory, template_kwargs=thinking, renderer=case.get("renderer", "auto"))
    assert [made.name, made.how] == case["gets"]
    if not known:
        assert [*made.differs] == [THINKING if one == "thinking" else one for one in case.get("differs", ())]
    past = reply("", None, ("call00001", "bash", '{"all": true, "limit": null}'))
    assert case.get("shows", "") in made.text(made.render([user("Hello."), past, user("Go on.")], None))


def test_untrusted_bridge_gives_way_to_proven_template(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("swe_core.tokens.family_renderer.FamilyRenderer._bridge_agrees", lambda self: False)
    for template, name in (("qwen3_training", "template (proven)"), ("qwen3", "template (extended)")):
        directory = model(tmp_path / template, shipped(template))
        known_as("qwen3", directory, monkeypatch)
        assert load_renderer(directory).name == name


def test_known_family_that_prints_otherwise_gives_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's own template is extended as well, and prints what the model was trained on."""
    changed = shipped("qwen3").replace("<tool_response>\\n", "<tool_response>")
    assert changed != shipped("qwen3")
    directory = model(tmp_path / "results", changed)
    for known in (False, True):
        if known:
            known_as("qwen3", directory, monkeypatch)
        made = load_renderer(directory)
        assert (made.name, made.how, made.differs) == ("template (extended)", "template", (THINKING,))
    opened = shipped("qwen3").replace(
        "'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"
    )
    assert opened != shipped("qwen3")
    directory = model(tmp_path / "prompt", opened)
    known_as("qwen3", directory, monkeypatch)
    assert load_renderer(directory).name == "template (extended)"


def test_thinking_kept_by_the_template_is_no_difference(tmp_path: Path) -> None:
    directory = model(tmp_path, shipped("qwen3_6"), *family_tokens("qwen3.6"))
    for keeps in (True, False):  # False: each prompt after a new user message is rendered afresh
        made = load_renderer(directory, renderer="qwen3.6", template_kwargs={"preserve_thinking": keeps})
        assert made.differs == ()


def test_recognition_downloads_no_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format of gpt-oss would load its own vocabulary over the network."""
    from swe_core.tokens import comparison

    tried = []
    made = comparison.FamilyRenderer
    monkeypatch.setattr(
        comparison, "FamilyRenderer", lambda t, name, *more: tried.append(name) or made(t, name, *more)
    )
    load_renderer(model(tmp_path, shipped("gptoss"), "<|start|>", "<|message|>", "<|end|>", "<|return|>"))
    assert "qwen3" in tried
    assert "gpt-oss" not in tried


def test_template_without_its_family_is_extended(tmp_path: Path) -> None:
    made = load_renderer(model(tmp_path, shipped("qwen3")), renderer="template")
    assert (made.name, made.how) == ("template (extended)", "template")
    sampled = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call><|im_end|>'
    ids = made.tokenizer.encode(sampled)
    assert made.parse(ids, made.render([user("Hello.")], TOOLS), TOOLS).calls == (("bash", "{}", None),)


def test_template_is_read_from_a_file(tmp_path: Path) -> None:
    directory = model(tmp_path / "model", shipped("qwen3"))
    file = tmp_path / "chat.jinja"
    file.write_text(shipped("qwen3_training"))
    assert load_renderer(directory, renderer="template", chat_template=file).name == "template (proven)"


def test_what_cannot_be_loaded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    bare, absent = model(tmp_path / "bare", None), (tmp_path / "no", "no-owner/no-model", tmp_path)
    for name, options, says in (
        *((str(name), {}, f"'{name}' cannot be loaded: pass a directory .* Hub") for name in absent),
        (str(tmp_path), {"renderer": "gptoss"}, r"'gptoss' is not known: .*gpt-oss"),
        (
            bare,
            {"renderer": "qwen3", "tool_parser": "qwen3_code"},
            r"'qwen3_code' is not known: .*qwen3_coder",
        ),
        (bare, {}, "has no chat template: pass a file"),
        (bare, {"chat_template": tmp_path / "no.jinja"}, r"no\.jinja"),
    ):
        with pytest.raises(ConfigError, match=says):
            load_renderer(name, **options)


def test_tokenization_spaces_are_not_cleaned_up(tmp_path: Path) -> None:
    """Streamed text must not change: "do" and " n't" stay apart."""
    saved = make_tokenizer(family_tokens("qwen3"), eos_token="<|im_end|>")
    saved.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    stated = {**json.loads(file.read_text()), "clean_up_tokenization_spaces": True, forced: True}
    file.write_text(json.dumps(stated))
    made = load_renderer(str(tmp_path), renderer="qwen3")
    assert made.text(saved.encode("I do n't , really .")) == "I do n't , really ."
