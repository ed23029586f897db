"""The page of tokens in a real browser."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest
from playwright.sync_api import Page, expect

from swe_core.api.chain import Chain
from swe_core.api.records import Ledger
from swe_core.rollout.run_directory import RunDirectory
from swe_core.rollout.training_records import VOCABULARY_FILE, read_trained
from swe_core.view.site import Site
from swe_core.view.static_site import write_site
from swe_testing.records import make_run
from swe_testing.sample_runs import WordTokenizer, sample_training

from .odd_rollout import NAME, add_odd

Shown = Callable[[Site], str]
DRIFT, TITLE, UNDELIVERED = "moto-7365-g0-1", "moto-7365-g0-2", "moto-7365-g0-3"


def forked(training: Path) -> tuple[Chain, Chain, int]:
    """The rows of the rollout that drifts, and the first place where they differ."""
    first, second = RunDirectory.open(training).chains(DRIFT)
    shorter = min(len(first), len(second))
    return first, second, int((first.input_ids[:shorter] != second.input_ids[:shorter]).argmax())


def ledger_of(training: Path, rollout: str) -> Ledger:
    (found,) = (one.ledger for one in RunDirectory.open(training).rollouts() if one.id == rollout)
    assert found is not None
    return found


def open_tokens(page: Page, url: str, rollout: str = DRIFT, query: str = "") -> None:
    page.goto(f"{url}/run/train/rollout/{rollout}/tokens/{query}")
    expect(page.locator("#token-about")).not_to_be_empty()


def panel(page: Page) -> dict[str, str]:
    """What the panel says of the token at the cursor."""
    names, values = page.locator("#token-panel dt"), page.locator("#token-panel dd")
    return dict(zip(names.all_inner_texts(), values.all_inner_texts(), strict=True))


def colours(page: Page, canvas: str) -> int:
    """How many colours a canvas has."""
    return int(
        page.evaluate(
            """(id) => {
              const canvas = document.getElementById(id);
              const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
              return new Set(new Uint32Array(data.buffer)).size;
            }""",
            canvas,
        )
    )


def test_row_and_its_map_are_drawn(shown: Shown, page: Page, training: Path) -> None:
    _, row, _ = forked(training)
    open_tokens(page, shown(Site([training])), query="?row=1")
    trained = int(row.completion_mask.sum())
    expect(page.locator("#token-about")).to_contain_text(
        f"{len(row)} tokens: {len(row) - trained} context, {trained} trainable · a fork (retokenised)"
    )
    page.evaluate("() => new Promise(requestAnimationFrame)")
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert colours(page, "token-canvas") > 20
    assert colours(page, "token-map") > 4


def test_about_says_how_stale_the_row_was(shown: Shown, page: Page, training: Path) -> None:
    _, row, _ = forked(training)
    (record,) = (one for one in read_trained(training, DRIFT) if one.row == 1)
    ages = sorted({record.version - version for version in row.versions[row.completion_mask].tolist()})
    said = f"{ages[0]} policy update" if len(ages) == 1 else f"{ages[0]} to {ages[-1]} policy updates"
    open_tokens(page, shown(Site([training])), query="?row=1")
    about = page.locator("#token-about")
    expect(about).to_contain_text(f"Trained in step 1: advantage -1, weight 1, staleness {said}")
    expect(about).to_contain_text(f"{record.clipped} of {record.tokens} ids clipped")


def test_row_of_a_skipped_group_says_why_no_step_trained_it(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])), "moto-7300-g1-0")
    expect(page.locator("#token-about")).to_contain_text("its group was skipped (no_spread)")


def test_keys_jump_and_the_url_follows(shown: Shown, page: Page, training: Path) -> None:
    _, row, drift = forked(training)
    open_tokens(page, shown(Site([training])), query="?row=1")
    page.keyboard.press("n")
    least = panel(page)["log-probability"]
    page.keyboard.press("n")
    assert float(least.split(",")[0]) < float(panel(page)["log-probability"].split(",")[0])
    page.keyboard.press("p")
    assert panel(page)["log-probability"] == least
    page.keyboard.press("s")
    assert panel(page)["kind"] == "trainable"
    page.keyboard.press("d")
    assert panel(page)["position"] == f"{drift} of {len(row)}"
    page.wait_for_url(f"**/tokens/?row=1&at={drift}")


def test_first_drifted_token_is_found_from_any_row(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])))
    page.get_by_role("button", name="first drifted token").click()
    page.wait_for_url(f"**/tokens/?row=1&at={forked(training)[2]}")
    page.get_by_role("link", name="Why did it fork?").click()
    page.wait_for_url("**/chains/?turn=2&with=1")


def test_jump_that_leads_nowhere_is_disabled(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])), TITLE)
    expect(page.get_by_role("button", name="first drifted token")).to_be_disabled()
    expect(page.get_by_role("button", name="trained span")).to_be_enabled()


def test_range_has_a_link_and_its_text(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])), query="?at=4&to=6")
    expect(page.locator("#token-text")).to_have_value(" are a coding")
    expect(page.locator("#token-range summary")).to_have_text("3 tokens selected")
    page.locator("#token-stream").focus()
    page.keyboard.press("Shift+ArrowRight")
    page.wait_for_url("**/tokens/?at=4&to=5")


def test_click_and_arrows_move_the_cursor(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])))
    page.locator("#token-canvas").click(position={"x": 160, "y": 30})
    row = forked(training)[0]
    assert panel(page)["position"] == f"0 of {len(row)}"
    assert panel(page)["token id"] == f"{row.input_ids[0]}, special"
    expect(page.locator(".token-shown")).to_have_text("<|im_start|>")
    page.keyboard.press("ArrowRight")
    assert panel(page)["kind"] == "context: the prompt of turn 0"
    page.keyboard.press("ArrowDown")
    assert panel(page)["kind"] == "context: the prompt of turn 0, message 0 (system)"
    page.keyboard.press("End")
    expect(page.locator(".token-shown")).to_have_text("⏎")


def test_hover_tells_the_token(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])))
    page.locator("#token-canvas").hover(position={"x": 160, "y": 30})
    expect(page.locator("#token-tip")).to_contain_text(" · kind context: the prompt of turn 0")


def test_search_finds_text_across_tokens(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])))
    page.keyboard.press("/")
    page.keyboard.type("coding agent. use")
    expect(page.locator("#token-hits")).to_have_text("1 place")
    page.keyboard.press("Enter")
    expect(page.locator("#token-hits")).to_have_text("1 of 1")
    expect(page.locator("#token-text")).to_have_value(" coding agent. Use")
    page.keyboard.press("Control+a")
    page.keyboard.type("日本")
    page.wait_for_url(lambda url: "%" in url)
    page.reload()
    expect(page.locator("#filter")).to_have_value("日本")


def test_character_of_several_tokens_stands_at_its_end(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])))
    page.locator("#filter").fill("日")
    page.locator("#filter").press("Enter")
    expect(page.locator(".token-shown")).to_have_text("日")
    assert panel(page)["bytes"] == "a5"
    page.locator("#token-stream").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".token-shown")).to_have_text("⋯")
    assert panel(page)["bytes"] == "97"
    assert panel(page)["text"].startswith("begins 日, which ends at ")


def test_ledger_leads_to_dropped_tokens(shown: Shown, page: Page, training: Path) -> None:
    ledger = ledger_of(training, TITLE)
    open_tokens(page, shown(Site([training])), TITLE)
    expect(page.locator("#token-ledger")).to_have_text(
        f"{ledger.sampled} tokens sampled = {ledger.trainable} trainable + 4 dropped (title)"
    )
    page.get_by_role("button", name="4 dropped (title)").click()
    page.wait_for_url("**/tokens/?row=d0&at=15&to=18")
    assert panel(page)["kind"].startswith("dropped (title): an auxiliary call (title)")
    expect(page.locator("#token-text")).to_have_value("Fix the offset<|im_end|>")
    page.locator("#token-dropped a").click()
    assert panel(page)["position"] == "15 of 19"


def test_undelivered_reply_is_dropped_with_its_reason(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])), UNDELIVERED)
    expect(page.locator("#token-dropped li")).to_contain_text("undelivered: the reply was complete, but")


def test_rollout_without_a_verdict_is_dropped_whole(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])), "pydantic-8511-g2-2")
    expect(page.locator("#token-ledger")).to_contain_text("= 0 trainable")
    expect(page.locator("#token-ledger")).to_contain_text("dropped (stale)")


def test_colour_and_row_live_in_the_url(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])))
    page.locator("#token-color").select_option("ratio")
    expect(page.locator("#token-legend")).to_contain_text("0.8–0.95")
    page.wait_for_url("**/tokens/?color=ratio")
    page.locator("#token-row").select_option("1")
    page.wait_for_url("**/tokens/?color=ratio&row=1")
    page.reload()
    expect(page.locator("#token-row")).to_have_value("1")
    expect(page.locator("#token-color")).to_have_value("ratio")


def test_panel_compares_trainer_and_sampler(shown: Shown, page: Page, training: Path) -> None:
    open_tokens(page, shown(Site([training])))
    page.keyboard.press("s")
    found = panel(page)
    assert found["trainer's"].endswith("in step 1")
    assert found["ratio"].split(",")[1].startswith(" trainer to sampler")
    assert found["policy version"] == "0; 1 update old when trained"
    page.get_by_role("link", name="turn 0").click()
    page.wait_for_url("**/rollout/moto-7365-g0-1/#turn-0")


def test_decoder_agrees_with_the_browsers(shown: Shown, page: Page, training: Path) -> None:
    """Any bytes, cut anywhere. Each broken byte is one replacement, where the browser joins some."""
    open_tokens(page, shown(Site([training])))
    wrong = page.evaluate(
        r"""() => {
          let seed = 1;
          const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
          const [from, length] = [[0, 0x80, 0x800, 0x10000], [128, 0x700, 0xd000, 0x100000]];
          const code = (one) => from[one] + random(length[one]);
          const joined = (text) => text.replace(/\ufffd+/g, "\ufffd");
          for (let round = 0; round < 3000; round++) {
            const bytes = [];
            for (let n = random(12); n > 0; n--) {
              const character = String.fromCodePoint(code(random(4)));
              if (random(4)) bytes.push(...new TextEncoder().encode(character));
              else bytes.push(random(256));
            }
            const tokens = [];
            for (let at = 0; at < bytes.length; ) {
              tokens.push(String.fromCharCode(...bytes.slice(at, (at += 1 + random(3)))));
            }
            const vocabulary = { ids: tokens.map((_, at) => at), tokens, special: {} };
            const found = TokenText.load({ turns: [], vocabulary }).decode(Int32Array.from(vocabulary.ids));
            const wanted = new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
            if (joined(found.text.join("")) !== joined(wanted)) return [bytes, found.text, wanted];
          }
          return null;
        }"""
    )
    assert wrong is None


def test_hostile_tokens_are_spelt(shown: Shown, page: Page, tmp_path: Path) -> None:
    """Directions, escapes, bytes that are no text, names that look like markup."""
    made = sample_training(tmp_path / "train")
    file = made.path / VOCABULARY_FILE
    vocabulary = orjson.loads(gzip.decompress(file.read_bytes()))
    tokens = vocabulary["tokens"]
    first = tokens.index("You")
    hostile = [
        "\u202eYou".encode(),
        b"\x1b[31m\x00\t",
        b"\xff\xc0 ",
        "\u0301".encode(),
        b"<img src=x>",
        b"x" * 100_000,
    ]
    tokens[first : first + len(hostile)] = [one.decode("latin-1") for one in hostile]
    vocabulary["special"][str(tokens.index("system"))] = "<script>alert(1)</script>"
    file.write_bytes(gzip.compress(orjson.dumps(vocabulary)))
    open_tokens(page, shown(Site([made.path])))
    page.locator("#token-stream").focus()
    spelt = []
    for _ in range(4 + len(hostile)):
        page.keyboard.press("ArrowRight")
        spelt.append(page.locator(".token-shown").inner_text())
    assert "<script>alert(1)</script>" in spelt
    assert {"<U+202E>You", "␛[31m␀⇥", r"\xff\xc0␣", "◌\u0301", "<img src=x>"} <= set(spelt)
    assert max(map(len, spelt)) <= 81
    assert page.locator("#token-panel img, #token-panel script").count() == 0


def test_reply_that_another_row_trains_is_context_with_a_link(
    shown: Shown, page: Page, tmp_path: Path
) -> None:
    made = make_run(tmp_path / "train")
    add_odd(made, WordTokenizer())
    open_tokens(page, shown(Site([made.path])), NAME, "?row=1")
    expect(page.locator("#token-row option")).to_have_count(4)
    text = page.locator("#filter")
    text.fill("I read the test.")
    text.press("Enter")
    assert panel(page)["kind"] == "context here; another row trains it"
    page.get_by_role("link", name="row 0").click()
    page.wait_for_url(re.compile(r"/tokens/\?(row=0&)?at="))  # the page leaves row 0 out soon after
    assert panel(page)["kind"] == "trainable"


def test_dropped_tokens_in_the_middle_of_a_row_are_named(shown: Shown, page: Page, tmp_path: Path) -> None:
    made = make_run(tmp_path / "train")
    record = add_odd(made, WordTokenizer())
    open_tokens(page, shown(Site([made.path])), NAME)
    assert record.ledger is not None
    dropped = record.ledger.dropped
    assert dropped == {"forced": 6, "no_logprobs": 1}
    page.get_by_role("button", name="6 dropped (forced)").click()
    expect(page.locator("#token-text")).to_have_value("So I change it.<|im_end|>")
    assert panel(page)["kind"].startswith("dropped (forced): the engine was made to give this reply")
    page.get_by_role("button", name="1 dropped (no_logprobs)").click()
    expect(page.locator("#token-text")).to_have_value(" now")
    assert "log-probability" not in panel(page)
    page.keyboard.press("v")
    assert panel(page)["policy version"] == "1"


def test_run_without_token_strings_shows_ids(shown: Shown, page: Page, tmp_path: Path) -> None:
    made = sample_training(tmp_path / "train")
    (made.path / VOCABULARY_FILE).unlink()
    row = forked(made.path)[0]
    open_tokens(page, shown(Site([made.path])), query="?at=0&to=1")
    expect(page.locator("#token-text")).to_have_value(f"{row.input_ids[0]} {row.input_ids[1]} ")
    expect(page.locator("#token-about")).to_contain_text(f"{len(row)} tokens")


def test_static_copy_opens_a_range(page: Page, training: Path, tmp_path: Path) -> None:
    write_site(Site([training], live=False), tmp_path / "site")
    file = tmp_path / "site" / "run" / "train" / "rollout" / DRIFT / "tokens" / "index.html"
    page.goto(f"{file.as_uri()}?row=1&at=3&to=6")
    expect(page.locator("#token-text")).to_have_value("You are a coding")
    page.get_by_role("link", name="Why did it fork?").click()
    expect(page.locator("#chains-shown h2")).to_have_text("Turn 1 and turn 2: the first drifted token")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_drawing_follows_the_colour_scheme(shown: Shown, page: Page, training: Path, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    open_tokens(page, shown(Site([training])))
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # one of its literals
    wanted = "> 128" if scheme == "light" else "< 128"
    page.wait_for_function(
        f"""() => {{
          const context = document.getElementById("token-canvas").getContext("2d");
          return context.getImageData(4, 4, 1, 1).data[0] {wanted};
        }}"""
    )


def test_number_of_the_ledger_leads_to_its_tokens(
    shown: Callable[[Site], str], page: Page, training: Path
) -> None:
    page.goto(f"{shown(Site([training]))}/run/train/rollout/moto-7365-g0-3/tokens/?drop=undelivered")
    expect(page.locator("#token-panel")).to_contain_text("undelivered")
