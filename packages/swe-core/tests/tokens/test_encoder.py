"""Encoder: the ids of the tokenizer in every format, and no more than the limit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import create_renderer
from renderers.configs import config_from_name

from swe_core.errors import ContextOverflow
from swe_core.tokens.counting import at_most
from swe_core.tokens.encoder import Encoder
from swe_core.tokens.family_renderer import FamilyRenderer
from swe_core.tokens.guard import Guard
from swe_core.tokens.probe_messages import PROBES, TOOLS, result, user
from swe_core.tokens.renderer import Renderer
from swe_core.tokens.template_renderer import TemplateRenderer
from swe_testing.tokenizer import family_tokens, make_tokenizer

from .test_family_renderer import MADE, each


@settings(deadline=None)  # the first one trains the tokenizer
@given(st.text(max_size=200), st.booleans())
def test_encoder_gives_the_ids_of_the_tokenizer(text: str, special: bool) -> None:
    tokenizer = make_tokenizer(("<think>", "</think>"))
    encoder = Encoder(tokenizer, Guard(tokenizer))
    for _ in range(2):  # the second time it may be kept
        ids = encoder.encode(text, add_special_tokens=special)
        assert ids == tokenizer.encode(text, add_special_tokens=special)
        ids.append(-1)  # is the caller's own
    (end,) = encoder.encode("</think>", add_special_tokens=False)
    assert end == tokenizer.convert_tokens_to_ids("</think>")


@pytest.mark.parametrize("family", each(MADE))
def test_encoder_gives_the_same_ids_in_every_format(family: str) -> None:
    tokenizer = make_tokenizer(family_tokens(family))
    config = config_from_name(family)
    assert config is not None
    plain = create_renderer(tokenizer, type(config)())
    encoded = create_renderer(Encoder(tokenizer, Guard(tokenizer)), type(config)())
    for messages in PROBES.values():
        try:
            expected = plain.render_ids(list(messages), tools=list(TOOLS), add_generation_prompt=True)
        except Exception as refusal:  # whatever a template raises
            with pytest.raises(type(refusal)):
                encoded.render_ids(list(messages), tools=list(TOOLS), add_generation_prompt=True)
            continue
        assert encoded.render_ids(list(messages), tools=list(TOOLS), add_generation_prompt=True) == expected
        completion = [*tokenizer.encode("Well."), *plain.get_stop_token_ids()[:1]]
        for new in ([user("Go on.")], [result("functions.bash:0", "one line")]):
            bridges = [
                one.bridge_to_next_turn(expected, completion, new, tools=list(TOOLS))
                for one in (plain, encoded)
            ]
            before, after = (None if bridge is None else bridge.token_ids for bridge in bridges)
            assert before == after


class Watched(Encoder):
    """Notes how long the texts are that are tokenised."""

    def __init__(self) -> None:
        made = make_tokenizer(("<think>", "</think>"))
        super().__init__(made, Guard(made))
        self.sizes: list[int] = []

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        self.sizes.append(len(text))
        return super()._encode(text, add_special_tokens)


def test_text_beyond_the_limit_is_not_tokenised_whole() -> None:
    encoder = Watched()
    with pytest.raises(ContextOverflow, match=r"is 1000 tokens.* tokens or more") as caught, at_most(1000):
        encoder.encode("wörd " * 1_000_000)
    assert caught.value.prompt_tokens > 1000
    assert sum(encoder.sizes) < 200_000
    encoder.encode("wörd " * 20_000)  # without a limit
    assert encoder.sizes[-1] == 100_000
    encoder = Watched()
    with pytest.raises(ContextOverflow), at_most(1000):  # all texts together
        list(map(encoder.encode, ["wörd " * 500] * 20))
    assert len(encoder.sizes) < 20


@pytest.mark.parametrize("text", ["wörd " * 5_000, " " * 70_000, "x" * 20_000, "\n" * 5_000, "🎉" * 3_000])
def test_text_within_the_limit_has_all_its_ids(text: str) -> None:
    encoder = Watched()
    ids = encoder.encode(text)
    for limit in (len(ids), len(ids) - 1):  # which of the two fits is not for the count to say
        with at_most(limit):
            assert encoder.encode(text) == ids


@pytest.mark.parametrize("family", ["qwen3", "hy3", "template"])
def test_format_stops_at_the_limit(family: str) -> None:
    """With places, without, and where the model's own template is all that is known."""
    renderer: Renderer
    if family == "template":
        source = "{% for m in messages %}<think>{{ m.content }}</think>{% endfor %}"
        renderer = TemplateRenderer(make_tokenizer(("<think>", "</think>")), source)
    else:
        renderer = FamilyRenderer(make_tokenizer(family_tokens(family)), family)
    renderer.render([user("word " * 10_000)], None)
    with pytest.raises(ContextOverflow), at_most(1000):
        renderer.render([user("word " * 10_000)], None)
