"""Whether a training could start where it is to be deployed, told before anything is created."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, JobHardwareInfo

from swe_core.errors import ConfigError
from swe_core.run.settings import Settings, load_settings
from swe_testing.hf import LocalHF
from swe_trainer_trl.config import ServerOptions
from swe_trainer_trl.space import preflight
from swe_trainer_trl.space.deployment import Request, Training
from swe_trainer_trl.space.hardware import gpus_of, require_gpus
from swe_trainer_trl.space.preflight import check_run

REQUEST = Request(target="Space", repo_id="acme/a-run", hardware="cpu-basic", config=Path("t.toml"))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Ours; the first import of a library may bring its own."""
    return [one.getMessage() for one in caplog.records if one.name.startswith("swe_")]


def listed(name: str, accelerator: dict[str, str] | None) -> JobHardwareInfo:
    words = {"prettyName": name, "cpu": "2 vCPU", "ram": "16 GB", "unitLabel": "minute"}
    prices = {"unitCostMicroUSD": 0, "unitCostUSD": 0.0}
    return JobHardwareInfo(name=name, accelerator=accelerator, **words, **prices)


def accelerator(kind: str, quantity: str) -> dict[str, str]:
    return {"type": kind, "model": "X", "quantity": quantity, "vram": "24 GB", "manufacturer": "Y"}


@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(("cpu-basic", 0), ("t4-small", 1), ("a10g-largex2", 2)),
        *(("zero-a10g", None), ("v5e-1x1", None), ("inf2x6", None)),
    ],
)
def test_number_of_gpus_follows_from_the_hardware_name(name: str, count: int | None) -> None:
    assert gpus_of(name) == count
    assert gpus_of(name, [listed(name, None), listed("other", accelerator("gpu", "3"))]) == count


def test_gpus_reported_by_the_hub_win() -> None:
    for kind, quantity, count in ("gpu", "2", 2), ("neuron", "4", None), ("gpu", "some", None):
        for name in ("l4x1", "new-thing"):
            assert gpus_of(name, [listed(name, accelerator(kind, quantity))]) == count


_NCCL = {"nccl": True, "serves": True}


def gpus(names: str) -> dict[str, Any]:
    return {"server": ServerOptions(gpus=names)}


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("a100-large", {}, "^--hardware 'a100-large' has 1 GPU, and weights go to vLLM through NCCL, .* set "
         "worker.trl.weight_sync to 'disk'; or choose hardware with more GPUs, such as 'a10g-largex2'$"),
        ("a10g-largex2", gpus("2"), r"worker\.trl\.server\.gpus is '2', but must name GPUs"),
        ("l4x4", {"processes": 4}, r"has 4 GPUs, and 4 trainer processes \(worker\.trl\.processes\)"),
        ("cpu-basic", {"serves": False}, "has no GPUs, and weights go to vLLM .*, which needs CUDA"),
    ],
)  # fmt: skip
def test_hardware_on_which_the_run_would_not_begin_is_refused(
    name: str, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        require_gpus(name, Training(**(_NCCL | changes)))


@pytest.mark.parametrize(
    ("name", "changes"),
    [("a10g-largex2", gpus("1")), ("cpu-upgrade", {"nccl": False}), ("l4x1", {"serves": False})],
)
def test_hardware_on_which_the_run_begins_is_taken(
    name: str, changes: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    require_gpus(name, Training(**(_NCCL | changes)))
    require_gpus("cpu-basic", None)
    assert warnings(caplog) == []
    require_gpus("zero-a10g", Training(**(_NCCL | changes)))
    (said,) = warnings(caplog)
    assert said.startswith("how many GPUs --hardware 'zero-a10g' has is not known, so whether the training")


def trained(run: dict[str, Any] | None = None, **trl: Any) -> Settings:
    there: dict[str, Any] = {"run": {"plugins": ("pi", "hf", "trl"), **(run or {})}, "worker": {"trl": trl}}
    return load_settings(command_line={**there, "sandbox": {"hf": {"internet": True}}})


def test_gpu_requirements_follow_from_the_settings(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def found(run: dict[str, Any] | None = None, **trl: Any) -> Training | None:
        return check_run(REQUEST, trained(run, **trl)).training

    assert found() == Training(nccl=True, serves=True)
    assert found(server={"gpus": "1"}) == Training(nccl=True, serves=True, **gpus("1"))
    assert found(processes=2) == Training(nccl=True, serves=True, processes=2)
    assert found(weight_sync="disk") == Training(nccl=False, serves=True)
    assert found({"engine_url": "http://127.0.0.1:1"}) == Training(nccl=True, serves=False)
    assert found(lora={"r": 8}) == Training(nccl=False, serves=True)
    assert found({"worker": "collect"}) is None
    assert warnings(caplog) == []
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    found(lora={"r": 8})
    (said,) = warnings(caplog)
    assert said.startswith("PEFT is not installed here, so worker.trl.lora was not checked")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory of a model."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()


@pytest.mark.parametrize("where", ["run", "trl"])
@pytest.mark.usefixtures("mine")
def test_model_that_is_tied_is_refused_where_weights_go_through_files(where: str) -> None:
    run, trl = ({"model": "mine"}, {}) if where == "run" else ({"model": "other"}, {"model": "mine"})
    for tied in (True, False):
        config = {"model_type": "llama", "tie_word_embeddings": tied}
        Path("mine", "config.json").write_text(json.dumps(config))
        check_run(REQUEST, trained(run, **trl))  # through NCCL they may be
        if tied:
            with pytest.raises(ConfigError, match="is 'disk' for 'mine': the model ties its output head"):
                check_run(REQUEST, trained(run, weight_sync="disk", **trl))
        else:
            check_run(REQUEST, trained(run, weight_sync="disk", **trl))
    Path("mine", "config.json").unlink()
    with pytest.raises(ConfigError, match="the model 'mine' is not a model directory"):
        check_run(REQUEST, trained(run, weight_sync="disk", **trl))


@pytest.mark.usefixtures("mine")
def test_mixture_of_experts_is_refused() -> None:
    Path("mine", "config.json").write_text('{"model_type": "mixtral"}')
    for options in ({}, {"weight_sync": "disk"}, {"lora": {"r": 8}}):
        with pytest.raises(ConfigError, match="the model is a mixture of 8 experts"):
            check_run(REQUEST, trained({"model": "mine"}, **options))


def test_model_on_the_hub_is_asked_for_and_one_that_cannot_be_read_is_said(
    threaded_hf: LocalHF, caplog: pytest.LogCaptureFixture
) -> None:
    settings = trained({"model": "tester/tied"}, weight_sync="disk")
    check_run(REQUEST, settings, ask=False)
    assert threaded_hf.calls.total() == 0
    check_run(REQUEST, settings)
    assert len(warnings(caplog)) == 2
    for said in warnings(caplog):
        assert said.startswith("whether 'tester/tied' can be trained was not checked: the model")
    api = HfApi()
    api.create_repo("tester/tied", private=True)
    config = b'{"model_type": "llama", "tie_word_embeddings": true}'
    api.upload_file(path_or_fileobj=config, path_in_repo="config.json", repo_id="tester/tied")
    with pytest.raises(ConfigError, match="is 'disk' for 'tester/tied': the model ties its output head"):
        check_run(REQUEST, settings)
