"""load_renderer: which Renderer a model gets."""

from __future__ import annotations

import json
import sys
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


def without_trl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swe_core.tokens.load_renderer.find_spec", lambda name: None)


def known_as(family: str, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from renderers.base import MODEL_RENDERER_MAP

    monkeypatch.setitem(MODEL_RENDERER_MAP, directory, family)


@pytest.mark.parametrize(
    ("options", "closed"),
    [({}, False), ({"enable_thinking": True}, False), ({"enable_thinking": False}, True)],
)
def test_qwen3_copy_is_recognised_by_its_ids(tmp_path: Path, options: dict[str, bool], closed: bool) -> None:
    made = load_renderer(model(tmp_path, shipped("qwen3")), template_kwargs=options)
    assert (made.name, made.how, made.streams) == ("renderers/qwen3", "bridge", True)
    assert ("<think>" in made.text(made.render([user("Hello.")], None))) is closed


@pytest.mark.parametrize(
    ("template", "renderer"), [("qwen3_training", "template (proven)"), ("qwen3", "renderers/qwen3")]
)
def test_untrusted_bridge_gives_way_to_proven_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, template: str, renderer: str
) -> None:
    without_trl(monkeypatch)
    monkeypatch.setattr("swe_core.tokens.family_renderer.FamilyRenderer._bridge_agrees", lambda self: False)
    directory = model(tmp_path, shipped(template))
    known_as("qwen3", directory, monkeypatch)
    assert load_renderer(directory).name == renderer


def said(made: Renderer) -> str:
    """A past call as it is printed."""
    call = ("call00001", "bash", '{"all": true, "limit": null}')
    return made.text(made.render([user("Hello."), reply("", None, call), user("Go on.")], None))


@pytest.mark.parametrize("options", [{}, {"enable_thinking": True}, {"enable_thinking": False}], ids=str)
@pytest.mark.parametrize(
    ("template", "name", "true"),
    [("qwen3_5_think", "renderers/qwen3.5", "True"), ("qwen3_6", "renderers/qwen3.6", "true")],
)
def test_families_with_other_value_formats_are_distinguished(
    tmp_path: Path, template: str, name: str, true: str, options: dict[str, bool]
) -> None:
    directory = model(tmp_path, shipped(template), *family_tokens("qwen3.6"))
    made = load_renderer(directory, template_kwargs=options)
    assert (made.name, made.how, made.differs) == (name, "bridge", (THINKING,))
    assert f"<parameter=all>\n{true}\n</parameter>" in said(made)


@pytest.mark.parametrize("template", ["qwen3_5_think_training", "qwen3_5_nothink_training"])
def test_family_with_other_value_format_is_not_chosen(tmp_path: Path, template: str) -> None:
    """Qwen3.8's format prints all else of these two as they do with thinking off."""
    directory = model(tmp_path, shipped(template), *family_tokens("qwen3.8"))
    made = load_renderer(directory, template_kwargs={"enable_thinking": False})
    assert (made.name, made.how, made.differs) == ("template (proven)", "template", ())
    assert "<parameter=all>\nTrue\n</parameter>" in said(made)


@pytest.mark.parametrize(
    ("known", "template", "found"),
    [
        ("qwen3.5", "qwen3_6", "qwen3.6"),
        ("qwen3", "qwen3_instruct_2507", "qwen3-vl"),  # the name that `renderers` 0.1.12 knows it by
        ("nemotron-3.5", "nemotron_3_ultra", "nemotron-3.5"),  # which prints all as nemotron-3-ultra does
    ],
)
def test_family_known_by_name_is_compared_with_the_template(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str, template: str, found: str
) -> None:
    directory = model(tmp_path, shipped(template), *family_tokens(known), *family_tokens(found))
    known_as(known, directory, monkeypatch)
    assert load_renderer(directory).name == f"renderers/{found}"


def test_known_family_is_kept_if_its_first_prompt_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The renderer lists the differences."""
    changed = shipped("qwen3").replace("<tool_response>\\n", "<tool_response>")
    directory = model(tmp_path / "results", changed)
    known_as("qwen3", directory, monkeypatch)
    without_trl(monkeypatch)
    made = load_renderer(directory)
    assert made.name == "renderers/qwen3"
    assert "tools" in made.differs
    assert "chat" not in made.differs
    opened = shipped("qwen3").replace(
        "'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"
    )
    assert opened != shipped("qwen3")
    directory = model(tmp_path / "prompt", opened)
    known_as("qwen3", directory, monkeypatch)
    assert load_renderer(directory).name == "template"


@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}], ids=str)
def test_requested_family_lists_its_differences(tmp_path: Path, options: dict[str, bool]) -> None:
    directory = model(tmp_path, shipped("qwen3_6"), *family_tokens("qwen3.6"))
    made = load_renderer(directory, renderer="qwen3.5", template_kwargs=options)
    assert (made.name, made.differs) == ("renderers/qwen3.5", ("booleans and nulls in calls", THINKING))


def test_thinking_kept_by_the_template_is_no_difference(tmp_path: Path) -> None:
    directory = model(tmp_path, shipped("qwen3_6"), *family_tokens("qwen3.6"))
    for keeps in (True, False):  # False: each prompt after a new user message is rendered afresh
        made = load_renderer(directory, template_kwargs={"preserve_thinking": keeps})
        assert (made.name, made.differs) == ("renderers/qwen3.6", ())


def test_model_is_known_by_its_exact_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model(tmp_path, None)
    known_as("qwen3", directory, monkeypatch)
    assert load_renderer(directory).name == "renderers/qwen3"


def test_recognition_downloads_no_vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format of gpt-oss would load its own vocabulary over the network."""
    from swe_core.tokens import comparison

    tried = []
    made = comparison.FamilyRenderer
    monkeypatch.setattr(
        comparison, "FamilyRenderer", lambda t, name, kwargs: tried.append(name) or made(t, name, kwargs)
    )
    load_renderer(model(tmp_path, shipped("gptoss"), "<|start|>", "<|message|>", "<|end|>", "<|return|>"))
    assert "qwen3" in tried
    assert "gpt-oss" not in tried


def test_changed_template_is_not_the_family(tmp_path: Path) -> None:
    changed = shipped("qwen3").replace("<tool_response>\\n", "<tool_response>")
    assert changed != shipped("qwen3")
    made = load_renderer(model(tmp_path, changed))
    assert (made.name, made.how) == ("template", "full")


def test_prefix_preserving_template_is_proven(tmp_path: Path) -> None:
    made = load_renderer(model(tmp_path, shipped("qwen3_training")))
    assert (made.name, made.how) == ("template (proven)", "template")


def test_trl_training_template_replaces_unproven_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = model(tmp_path, shipped("qwen3"))
    made = load_renderer(directory, renderer="template")
    assert (made.name, made.how) == ("training template (proven)", "template")
    assert calls_are_found(made)
    without_trl(monkeypatch)
    made = load_renderer(directory, renderer="template")
    assert (made.name, made.how) == ("template", "full")
    assert not calls_are_found(made)


def test_named_parser_replaces_that_of_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_trl(monkeypatch)
    made = load_renderer(model(tmp_path, shipped("qwen3")), renderer="template", tool_parser="qwen3")
    assert calls_are_found(made)


def calls_are_found(made: Renderer) -> bool:
    sampled = '<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call><|im_end|>'
    ids = make_tokenizer(family_tokens("qwen3")).encode(sampled)
    found = made.parse(ids, made.render([user("Hello.")], TOOLS), TOOLS)
    return found.calls == (("bash", "{}", None),)


def test_trl_is_not_imported_needlessly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl.chat_template_utils", None)
    assert load_renderer(model(tmp_path, shipped("qwen3"))).how == "bridge"


def test_template_is_read_from_a_file(tmp_path: Path) -> None:
    directory = model(tmp_path / "model", shipped("qwen3"))
    file = tmp_path / "chat.jinja"
    file.write_text(shipped("qwen3_training"))
    assert load_renderer(directory, chat_template=file).name == "template (proven)"
    with pytest.raises(ConfigError, match=r"no\.jinja"):
        load_renderer(directory, chat_template=tmp_path / "no.jinja")


def test_family_is_chosen_by_name(tmp_path: Path) -> None:
    assert load_renderer(model(tmp_path, None), renderer="qwen3").name == "renderers/qwen3"


@pytest.mark.parametrize(
    ("renderer", "near"), [("qwen-3", "qwen3"), ("GLM4.5", "glm-4.5"), ("gptoss", "gpt-oss")]
)
def test_unknown_family_suggests_close_names(tmp_path: Path, renderer: str, near: str) -> None:
    with pytest.raises(ConfigError, match=rf"'{renderer}' is not known: .*{near}"):
        load_renderer(str(tmp_path), renderer=renderer)


def test_missing_tokenizer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for name in (str(tmp_path / "nothing"), "no-such-owner/no-such-model", str(tmp_path)):
        with pytest.raises(ConfigError, match=f"'{name}' cannot be loaded: pass a directory .* Hub"):
            load_renderer(name)


def test_tokenizer_without_template_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no chat template: pass a file"):
        load_renderer(model(tmp_path, None))


def test_tokenization_spaces_are_not_cleaned_up(tmp_path: Path) -> None:
    """Streamed text must not change: "do" and " n't" stay apart."""
    special = family_tokens("qwen3")
    saved = make_tokenizer(special, chat_template=shipped("qwen3"), eos_token="<|im_end|>")
    saved.save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    forced = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    file.write_text(
        json.dumps({**json.loads(file.read_text()), "clean_up_tokenization_spaces": True, forced: True})
    )
    made = load_renderer(str(tmp_path))
    assert made.text(saved.encode("I do n't , really .")) == "I do n't , really ."
