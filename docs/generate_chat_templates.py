"""Write docs/internals/chat-templates.md: how each chat template of TRL treats the past of a conversation.

python docs/generate_chat_templates.py
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from swe_core.api.messages import Message, text_of
from swe_core.errors import RequestRefused
from swe_core.tokens.comparison import Comparison
from swe_core.tokens.family_renderer import FAMILIES
from swe_core.tokens.probe_messages import PROBES, TOOLS, reply, result, user
from swe_core.tokens.renderer import TAIL, Renderer
from swe_core.tokens.template_renderer import ChatTemplate, TemplateRenderer
from swe_testing.tokenizer import family_tokens, make_tokenizer

PAGE = Path(__file__).parent / "internals" / "chat-templates.md"
OUTCOMES = ("bridged", "extended", "kept", "forks", "refused")
VERSIONS = "Versions: " + ", ".join(
    f"{name} {version(name)}" for name in ("trl", "renderers", "transformers")
)
_MARKS = {"bridged": "B", "extended": "E", "kept": "K", "forks": "**F**", "refused": "R"}
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<turn|>", "<|END_OF_TURN_TOKEN|>", "</s>")
_ATOMIC = re.compile(
    r"<[|｜][^<>'\"{}\s]+[|｜]>|<\|\w+>|<\w+\|>|\[gMASK\]|<sop>|<bos>|</?s>|<end_of_utterance>|<image>"
    r"|</?(?:think|tool_call|tool_response|arg_key|arg_value|start_of_turn|end_of_turn)>"
)

CONVERSATIONS: dict[str, list[Message]] = {
    **PROBES,
    "content as a list of parts": [
        user(text_of([{"type": "text", "text": "Fix "}, {"type": "text", "text": "the bug."}])),
        reply(
            text_of([{"type": "text", "text": "I look."}]), None, ("call00001", "bash", '{"command": "ls"}')
        ),
        result("call00001", text_of([{"type": "text", "text": "one line"}])),
        reply("Done."),
        user(text_of(["Thank", " you."])),
    ],
    "a long session": [
        user("Fix the bug."),
        *(
            message
            for n in range(10, 16)
            for message in (
                reply(f"Step {n}.", f"Thought {n}.", (f"call000{n}", "bash", f'{{"command": "step {n}"}}')),
                result(f"call000{n}", f"line {n}\n" * 60),
            )
        ),
    ],
}


@dataclass(frozen=True)
class Row:
    """What one template does.

    Args:
        template: Its file's name without the ending.
        thinking: False where `enable_thinking` is turned off.
        renderer: The name of the Renderer that is chosen for it.
        differs: Where its prompts are not the template's.
        outcomes: By conversation.
        words: What it says where it refuses, by conversation.
    """

    template: str
    thinking: bool
    renderer: str
    differs: tuple[str, ...]
    outcomes: dict[str, str]
    words: dict[str, str]


def templates() -> Iterator[tuple[str, str]]:
    """Name and source of every chat template that TRL ships."""
    for path in sorted(files("trl").joinpath("chat_templates").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".jinja"):
            yield path.name.removesuffix(".jinja"), path.read_text(encoding="utf-8")


def tokenizer_for(source: str) -> PreTrainedTokenizerFast:
    """A tokenizer in which each special token of the template is one, and of the families that share most."""
    special = list(dict.fromkeys(_ATOMIC.findall(source)))
    for family in sorted(FAMILIES - {"gpt-oss"}):
        tokens = family_tokens(family)
        if len(set(tokens[3:]) & set(special)) > len(tokens[3:]) / 2:
            special += [token for token in tokens if token not in special]
    end = next((token for token in _ENDS if token in source), "<|endoftext|>")
    start = "<bos>" if "<｜begin▁of▁sentence｜>" not in special else "<｜begin▁of▁sentence｜>"
    special = list(dict.fromkeys([*special, end, start, "<|endoftext|>"]))
    return make_tokenizer(
        special, chat_template=source, eos_token=end, bos_token=start, pad_token="<|endoftext|>"
    )


def rows() -> Iterator[Row]:
    """Every template; those that can turn thinking off a second time, with thinking off."""
    for name, source in templates():
        tokenizer = tokenizer_for(source)
        yield _row(name, source, tokenizer, {})
        if "enable_thinking" in source:
            yield _row(name, source, tokenizer, {"enable_thinking": False})


def _row(name: str, source: str, tokenizer: PreTrainedTokenizerFast, kwargs: dict[str, Any]) -> Row:
    template = ChatTemplate(tokenizer, source, kwargs)
    comparison = Comparison(tokenizer, source, kwargs)
    renderer = comparison.recognise() or TemplateRenderer(tokenizer, source, template_kwargs=kwargs)
    outcomes: dict[str, str] = {}
    words: dict[str, str] = {}
    for title, conversation in CONVERSATIONS.items():
        try:
            outcomes[title] = outcome(template, renderer, conversation)
        except RequestRefused as error:
            outcomes[title] = "refused"
            words[title] = str(error).partition(": ")[2]
    return Row(name, not kwargs, renderer.name, comparison.differences(renderer), outcomes, words)


def outcome(template: ChatTemplate, renderer: Renderer, conversation: Sequence[Message]) -> str:
    """What becomes of the past in this conversation: one of `OUTCOMES` but "refused".

    Raises:
        RequestRefused: The template refuses it.
        ValueError: A prompt was extended by what the template does not say after this reply.
    """
    turns = [n for n, message in enumerate(conversation) if message["role"] == "assistant"]
    starts = [*turns, len(conversation)]
    prompts = [template.text(conversation[:turn], TOOLS) for turn in starts]
    kept, extended = True, True
    for n, turn in enumerate(turns):
        before, after = prompts[n], prompts[n + 1]
        sampled = _sampled(template, renderer, before, conversation[: turn + 1])
        tail = template.ids(before)[-TAIL:]
        more = renderer.extend(tail, sampled, conversation[turn + 1 : starts[n + 1]], TOOLS)
        extended = extended and more is not None
        reprints = not after.startswith(before + template.tokenizer.decode(sampled[:-1]))
        if more is not None and not after.endswith(renderer.text(more)) and not reprints:
            raise ValueError(
                f"{renderer.name} continues with {renderer.text(more)!r}, the template with {after!r}"
            )
        bare = template.without_cue(conversation[:turn], TOOLS)
        kept = kept and bare is not None and after.startswith(bare)
    if extended:
        return "bridged" if renderer.how == "bridge" else "extended"
    return "kept" if kept else "forks"


def _sampled(
    template: ChatTemplate, renderer: Renderer, prompt: str, conversation: Sequence[Message]
) -> list[int]:
    """The last reply as the model would sample it: as the template prints it, with the thinking closed that
    the prompt opened, and with a stop token."""
    printed = template.text(conversation, TOOLS, prompt=False)
    text = printed[
        next((n for n, (a, b) in enumerate(zip(printed, prompt, strict=False)) if a != b), len(prompt)) :
    ]
    if prompt.rstrip().endswith("<think>") and "</think>" not in text:
        text = f"\n</think>\n\n{text}"
    ids = template.ids(text)
    stop = next((n for n, id_ in enumerate(ids) if id_ in renderer.stop_ids), None)
    return [*ids, min(renderer.stop_ids)] if stop is None else ids[: stop + 1]


def page(table: Sequence[Row]) -> str:
    """The page as Markdown."""
    count = Counter(outcome for row in table for outcome in row.outcomes.values())
    titles = list(CONVERSATIONS)
    lines = [
        "# Chat templates",
        "",
        "`docs/generate_chat_templates.py` generates this page, and a test compares it with the code.",
        "",
        VERSIONS,
        "",
        "The generator runs every chat template of TRL through conversations of several turns with tools.",
        "Each template gets a tokenizer with its special tokens. The outcome says how the template treats",
        "the past of a conversation when a new message arrives.",
        "",
        "| | outcome | what it means for training | cells |",
        "|---|---|---|---|",
        "| B | bridged | the package `renderers` recognises the format by its ids; the prompt is the "
        f"ids so far and the new messages | {count['bridged']} |",
        "| E | extended | the template is proven to preserve prefixes; the prompt is the ids so far and the "
        f"new messages | {count['extended']} |",
        "| K | kept | the whole conversation is rendered again and the past stays the same; the row "
        f"continues if replies tokenise to the sampled ids | {count['kept']} |",
        "| **F** | forks | the whole conversation is rendered again and the past changes; a new row begins "
        f"| {count['forks']} |",
        f"| R | refused | the template refuses the conversation; its message is below | {count['refused']} |",
        "",
        "If a template is not proven but its variant with the suffix `_training` is, and TRL is installed,",
        "the variant takes its place.",
        "",
        "The column `differs` names differences from the template's own prompts. `thinking`: the prompt",
        "keeps the sampled thinking of earlier replies (with thinking off, its empty markers), and the",
        "template drops it after the next user message.",
        "",
        "| template | renderer | differs | " + " | ".join(str(n) for n in range(1, len(titles) + 1)) + " |",
        "|---|---|---|" + "---|" * len(titles),
    ]
    for row in table:
        name = row.template if row.thinking else f"{row.template}, thinking off"
        marks = " | ".join(_MARKS[row.outcomes[title]] for title in titles)
        lines.append(f"| {name} | {row.renderer} | {', '.join(row.differs)} | {marks} |")
    lines += ["", "The conversations:", ""]
    lines += [f"{n}. {title}" for n, title in enumerate(titles, 1)]
    lines += ["", "## Messages of templates that refuse", ""]
    for row in table:
        if row.words:
            name = row.template if row.thinking else f"{row.template}, thinking off"
            said = Counter(row.words.values())
            lines.append(f"- {name}: " + "; ".join(f"“{words}” ({n}×)" for words, n in said.items()))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(list(rows())), encoding="utf-8")
