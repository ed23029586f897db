"""The token server of the tests: real vLLM or its stand-in, and what both promise."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from aiohttp import web

from swe_core.system.http_server import serve
from swe_testing.serving.start import MODEL, TokenServer

if TYPE_CHECKING:
    from swe_testing.serving.hf_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.engine]
PROMPT = [40, 41, 42, 7, 300]


@pytest.fixture
def hf_server(tiny_model: Path) -> Server:
    """The stand-in, in this process: tests may pause it."""
    from swe_testing.serving.hf_server import Server

    return Server(str(tiny_model), MODEL, 512)


@pytest.fixture
async def hf_url(hf_server: Server) -> AsyncIterator[str]:
    async with serve(web.AppRunner(hf_server.app(), shutdown_timeout=0, handler_cancellation=True)) as origin:
        yield origin


@pytest.fixture(params=["server", "stand-in"])
def url(request: pytest.FixtureRequest) -> str:
    """Whatever serves this session, and the stand-in: they answer alike."""
    if request.param == "stand-in":
        return str(request.getfixturevalue("hf_url"))
    return str(request.getfixturevalue("token_server").url)


async def complete(url: str, **body: Any) -> dict[str, Any]:
    """One completion; a streamed one is put together, the choice's lists joined."""
    body = {"model": MODEL, "prompt": PROMPT, "return_token_ids": True, "logprobs": 0, **body}
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(f"{url}/v1/completions", json=body)
    if response.status_code != 200:
        return {"status": response.status_code, **response.json()}
    if not body.get("stream"):
        return dict(response.json())
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    choices = [choice for event in events for choice in event["choices"]]
    logprobs = [choice["logprobs"]["token_logprobs"] for choice in choices if choice["logprobs"]]
    whole = {
        "text": "".join(choice["text"] for choice in choices),
        "token_ids": list(itertools.chain(*(choice["token_ids"] for choice in choices))),
        "prompt_token_ids": choices[0]["prompt_token_ids"],
        "finish_reason": choices[-1]["finish_reason"],
        "logprobs": {"token_logprobs": list(itertools.chain(*logprobs))},
    }
    return {"choices": [whole], "usage": events[-1].get("usage")}


def forward(model: Path, ids: list[int], temperature: float) -> Any:
    """Log-probabilities [T - 1] that a plain forward pass gives ids[1:]."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = network(torch.tensor([ids])).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_are_those_of_the_distribution_that_was_sampled(
    url: str, tiny_model: Path, stream: bool
) -> None:
    body: Mapping[str, Any] = {"temperature": 0.7, "max_tokens": 40, "ignore_eos": True, "seed": 3}
    reply = await complete(url, stream=stream, **body)
    choice = reply["choices"][0]
    assert choice["prompt_token_ids"] == PROMPT
    assert len(choice["token_ids"]) == 40
    assert choice["finish_reason"] == "length"
    expected = forward(tiny_model, PROMPT + choice["token_ids"], 0.7)[len(PROMPT) - 1 :]
    assert choice["logprobs"]["token_logprobs"] == pytest.approx(expected.tolist(), abs=1e-4)


async def test_whole_and_streamed_replies_are_the_same(url: str) -> None:
    whole = await complete(url, seed=5, temperature=1, max_tokens=200)
    options = {"stream": True, "stream_options": {"include_usage": True}}
    streamed = await complete(url, seed=5, temperature=1, max_tokens=200, **options)
    for key in ("text", "token_ids", "finish_reason"):
        assert whole["choices"][0][key] == streamed["choices"][0][key]
    assert whole["choices"][0]["finish_reason"] == "stop"  # the tiny model ends its replies
    assert len(whole["choices"][0]["token_ids"]) == whole["usage"]["completion_tokens"]
    assert whole["usage"]["completion_tokens"] == streamed["usage"]["completion_tokens"]


async def test_a_long_prompt_with_a_seed(token_server: TokenServer) -> None:
    """vLLM on CPU does not survive one that it takes in parts, as it does with its default settings."""
    reply = await complete(token_server.url, prompt=PROMPT * 2000, seed=1, max_tokens=2, ignore_eos=True)
    assert reply["usage"] == {**reply["usage"], "prompt_tokens": 10_000, "completion_tokens": 2}


async def test_without_a_seed_each_reply_is_another(url: str) -> None:
    replies = [await complete(url, temperature=1, max_tokens=16, ignore_eos=True) for _ in range(2)]
    assert replies[0]["choices"][0]["token_ids"] != replies[1]["choices"][0]["token_ids"]


async def test_top_k_1_is_greedy_and_certain(url: str) -> None:
    greedy = (await complete(url, temperature=0, max_tokens=8, ignore_eos=True))["choices"][0]
    top = (await complete(url, temperature=1, top_k=1, max_tokens=8, ignore_eos=True))["choices"][0]
    assert top["token_ids"] == greedy["token_ids"]
    assert top["logprobs"]["token_logprobs"] == [0.0] * 8


async def test_a_stop_id_ends_the_reply_and_is_part_of_its_ids(url: str) -> None:
    first = (await complete(url, temperature=0, max_tokens=4, ignore_eos=True))["choices"][0]["token_ids"]
    choice = (await complete(url, temperature=0, max_tokens=4, stop_token_ids=[first[2]]))["choices"][0]
    assert choice["token_ids"] == first[:3]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", first[2])


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "another"}, 404, "The model `another` does not exist."),
        ({"prompt": [5] * 32_768}, 400, "maximum context length is"),
        ({"prompt": [1_000_000]}, 400, "Token id 1000000 is out of vocabulary"),
        ({"prompt": []}, 400, ""),
    ],
)
async def test_what_is_refused(url: str, body: Mapping[str, Any], status: int, says: str) -> None:
    reply = await complete(url, **body)
    assert reply["status"] == reply["error"]["code"] == status
    assert says in reply["error"]["message"]


async def test_models_say_where_the_model_lies(url: str, tiny_model: Path) -> None:
    async with httpx.AsyncClient() as client:
        (card,) = (await client.get(f"{url}/v1/models")).json()["data"]
    assert (card["id"], card["root"]) == (MODEL, str(tiny_model))
    assert card["max_model_len"] >= 512


class Streamed:
    """A streamed completion that a test reads piece by piece."""

    def __init__(self, url: str) -> None:
        self._client = httpx.AsyncClient(timeout=60)
        body = {"model": MODEL, "prompt": PROMPT, "return_token_ids": True, "max_tokens": 400}
        self._request = self._client.build_request(
            "POST", f"{url}/v1/completions", json={**body, "ignore_eos": True, "stream": True}
        )

    async def __aenter__(self) -> Streamed:
        self.response = await self._client.send(self._request, stream=True)
        self.lines = self.response.aiter_lines()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.response.aclose()
        await self._client.aclose()

    async def event(self) -> dict[str, Any] | None:
        """The next event's choice; None once it is over."""
        while not (line := await anext(self.lines)):
            pass
        text = line.removeprefix("data: ")
        return None if text == "[DONE]" else dict(json.loads(text)["choices"][0])


async def post(url: str, path: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=60) as client:
        return dict((await client.post(url + path)).json())


async def test_pause_abort_ends_what_is_in_flight_and_holds_back_what_comes(hf_url: str) -> None:
    async with Streamed(hf_url) as stream:
        assert await stream.event() is not None
        assert await post(hf_url, "/pause?mode=abort") == {"status": "paused"}
        reasons = []
        while (choice := await stream.event()) is not None:
            reasons.append(choice["finish_reason"])
        assert reasons[-1] == "abort"
    async with anyio.create_task_group() as tasks:
        replies: list[dict[str, Any]] = []

        async def ask() -> None:
            replies.append(await complete(hf_url, max_tokens=1))

        tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        assert replies == []
        await post(hf_url, "/resume")
    assert len(replies) == 1


async def test_pause_keep_goes_on_after_resume_with_the_same_ids(hf_url: str) -> None:
    async with Streamed(hf_url) as stream:
        assert await stream.event() is not None
        await post(hf_url, "/pause?mode=keep")
        await post(hf_url, "/resume")
        count = 1
        while (choice := await stream.event()) is not None:
            count += len(choice["token_ids"])
    assert count == 400


async def test_pause_wait_returns_once_all_is_finished(hf_url: str) -> None:
    async with Streamed(hf_url) as stream:
        assert await stream.event() is not None
        await post(hf_url, "/pause?mode=wait")
        reasons = []
        while (choice := await stream.event()) is not None:
            reasons.append(choice["finish_reason"])
        assert reasons[-1] == "length"


async def test_a_client_that_leaves_is_not_sampled_for(hf_url: str, hf_server: Server) -> None:
    async with Streamed(hf_url) as stream:
        assert await stream.event() is not None
        await post(hf_url, "/pause?mode=keep")  # so that it cannot finish by itself
    with anyio.fail_after(120):
        await hf_server.gate.idle.wait()
    assert await post(hf_url, "/reset_prefix_cache") == {"success": True}


async def test_the_server_is_the_sessions(token_server: TokenServer, tiny_model: Path) -> None:
    assert token_server.directory == tiny_model
    assert token_server.kind in ("vllm", "transformers")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_choice_of_one_is_what_the_reply_says(url: str, stream: bool) -> None:
    text = 'a "certain" text: naïve ☃\n'
    forced = {"structured_outputs": {"choice": [text]}, "max_tokens": 200, "temperature": 1.0}
    choice = (await complete(url, stream=stream, **forced))["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, "stop")
    assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])


async def test_a_constraint_that_the_stand_in_does_not_know_is_refused(hf_url: str) -> None:
    assert (await complete(hf_url, structured_outputs={"regex": "a+"}))["status"] == 400


def other_weights(model: Path, directory: Path, sharded: bool) -> Path:
    """The model with its weights doubled, as a trainer saves it: in one file, or in parts with an index."""
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        network.lm_head.weight.mul_(2)
    network.save_pretrained(directory, max_shard_size="200KB" if sharded else "1GB")
    assert (directory / "model.safetensors.index.json").exists() == sharded
    return directory


async def rpc(url: str, method: str, **kwargs: Any) -> tuple[int, dict[str, Any]]:
    async with httpx.AsyncClient(timeout=60) as client:
        response = await client.post(f"{url}/collective_rpc", json={"method": method, "kwargs": kwargs})
    return response.status_code, dict(response.json())


@pytest.mark.parametrize("sharded", [False, True])
async def test_reloaded_weights_are_those_that_are_sampled_from(
    hf_url: str, tiny_model: Path, tmp_path: Path, sharded: bool
) -> None:
    """Of the stand-in alone: the session's server is that of other tests too."""
    new = other_weights(tiny_model, tmp_path, sharded)
    await post(hf_url, "/pause?mode=keep")
    assert await rpc(hf_url, "reload_weights", weights_path=str(new)) == (200, {"results": [None]})
    assert await post(hf_url, "/reset_prefix_cache") == {"success": True}
    await post(hf_url, "/resume")
    choice = (await complete(hf_url, temperature=1, max_tokens=20, ignore_eos=True))["choices"][0]
    ids = PROMPT + choice["token_ids"]
    found = choice["logprobs"]["token_logprobs"]
    assert found == pytest.approx(forward(new, ids, 1.0)[len(PROMPT) - 1 :].tolist(), abs=1e-4)
    assert found != pytest.approx(forward(tiny_model, ids, 1.0)[len(PROMPT) - 1 :].tolist(), abs=1e-2)


async def test_weights_that_cannot_be_taken_change_nothing(
    hf_url: str, tiny_model: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    before = await complete(hf_url, temperature=0, max_tokens=8, ignore_eos=True)
    status, body = await rpc(hf_url, "reload_weights", weights_path=str(tmp_path))
    assert (status, "no weights in" in body["error"]["message"]) == (500, True)
    weights = load_file(tiny_model / "model.safetensors")
    weights = {name: tensor * 2 for name, tensor in weights.items() if name != "lm_head.weight"}
    save_file(weights, tmp_path / "model.safetensors")
    status, body = await rpc(hf_url, "reload_weights", weights_path=str(tmp_path))
    assert (status, "another model" in body["error"]["message"]) == (500, True)
    assert (await rpc(hf_url, "sleep"))[0] == 400
    after = await complete(hf_url, temperature=0, max_tokens=8, ignore_eos=True)
    assert after["choices"][0]["logprobs"] == before["choices"][0]["logprobs"]


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.2}, {"min_p": 0.3}])
async def test_limits_of_sampling_are_in_the_logprobs(url: str, limits: Mapping[str, float]) -> None:
    """With `--logprobs-mode processed_logprobs` what cannot be drawn is not likely at all."""
    names = {"logprobs": 20, "return_tokens_as_token_ids": True}
    reply = await complete(url, temperature=0.9, max_tokens=1, stream=False, **names, **limits)
    logprobs = reply["choices"][0]["logprobs"]
    (top,) = logprobs["top_logprobs"]
    assert top[f"token_id:{reply['choices'][0]['token_ids'][0]}"] == logprobs["token_logprobs"][0]
    likely = {name: math.exp(value) for name, value in top.items() if value > -100}
    assert sum(likely.values()) == pytest.approx(1, abs=1e-4)
    assert 1 < len(likely) < 20
