"""Encoder: the same ids as the tokenizer itself gives, in every format."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import create_renderer
from renderers.configs import config_from_name

from swe_core.testing.tokenizer import family_tokens, make_tokenizer
from swe_core.tokens.encoder import Encoder
from swe_core.tokens.probes import PROBES, TOOLS, result, user

from .test_families import MADE, each


@settings(deadline=None)  # the first one trains the tokenizer
@given(st.text(max_size=200), st.booleans())
def test_any_text_has_the_same_ids(text: str, special: bool) -> None:
    tokenizer = make_tokenizer(("<think>", "</think>"))
    encoder = Encoder(tokenizer)
    for _ in range(2):  # the second time it may be kept
        ids = encoder.encode(text, add_special_tokens=special)
        assert ids == tokenizer.encode(text, add_special_tokens=special)
        ids.append(-1)  # is the caller's own
    assert encoder.encode("</think>", add_special_tokens=False) == [
        tokenizer.convert_tokens_to_ids("</think>")
    ]


@pytest.mark.parametrize("family", each(MADE))
def test_formats_give_the_same_ids(family: str) -> None:
    tokenizer = make_tokenizer(family_tokens(family))
    config = config_from_name(family)
    assert config is not None
    plain = create_renderer(tokenizer, type(config)())
    encoded = create_renderer(Encoder(tokenizer), type(config)())
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
