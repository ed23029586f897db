"""TRLLauncher: one command from a model and tasks to a trained model."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import httpx

from swe_core.api.engine import Engine
from swe_core.api.sandbox import SandboxProvider
from swe_core.errors import ConfigError, EngineError, SweError, UsageError, sentence
from swe_core.hub.push import push_run
from swe_core.hub.pushed_run import run_name
from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.components import ResolvedComponent, load_plugins
from swe_core.run.execute import create_directory
from swe_core.run.launcher import Launch, Launcher
from swe_core.run.plan import plan_run
from swe_core.run.settings import Settings
from swe_core.system.event_loop import ending_signals
from swe_core.system.event_loop import run as run_in_loop
from swe_core.system.files import locked
from swe_core.system.redaction import Redactor
from swe_core.system.urls import base_url
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.journal.checkpoints import CHECKPOINTS
from swe_trainer_trl.journal.journal import JOURNAL, Journal
from swe_trainer_trl.server.health import ServerLost, dead, unpause
from swe_trainer_trl.trackers import defaults, named, require, trackers, variables, with_trackers

if TYPE_CHECKING:
    from swe_trainer_trl.server.vllm_server import VLLMServer

logger = logging.getLogger(__name__)

SERVER_LOG = "vllm.log"
"""Name in the run directory."""

_END = 10.0
"""Seconds to wait for the end of a server that has failed."""
_ASK = 30.0
"""Timeout of requests about the server itself, in seconds."""


class TRLLauncher(Launcher):
    """The worker `trl`: training in this process, agents in a second one, the policy's server in a third."""

    def __init__(self, config: TRLConfig) -> None:
        self._config = config

    def launch(self, launch: Launch) -> bool:
        """See `Launcher.launch`. The trained model is saved in `model` in the run directory."""
        try:
            with _signals_interrupt():
                self._launch(launch)
        except KeyboardInterrupt:
            logger.warning("interrupted; resume with --resume %s", launch.directory)
            return True
        return False

    def _launch(self, launch: Launch) -> None:
        config, run, directory = self._config, launch.settings.run, launch.directory
        config = with_trackers(config, launch.settings.track)
        require(trackers(config))
        launch = named(launch, trackers(config))
        track = launch.settings.track
        model = config.model or run.model
        if model is None:
            raise ConfigError("training needs a policy: pass --model with a directory or a name on the Hub")
        plugins = load_plugins(run)
        plan = plan_run(launch.settings, plugins)
        if not isinstance(plan.model_side, ResolvedComponent):
            raise ConfigError(
                f"the agent {plan.agent.name!r} makes no LLM calls that this host answers, so nothing can be "
                "trained: choose another agent, and leave out --mode black-box"
            )
        url = None if run.engine_url is None else _one_server(run.engine_url)
        _require_one_process()
        # Only now what is heavy: torch first, then TRL, whose import asks CUDA for its devices.
        from swe_trainer_trl.server.gpus import GPULayout, devices, layout, visible_gpus

        with ExitStack() as stack:
            if launch.resume:
                _require_journal(directory)
                stack.enter_context(locked(directory))
            gpus = GPULayout((), visible_gpus()[:1])
            if url is None:
                nccl = config.weight_sync == "trl" and config.lora is None
                gpus = layout(visible_gpus(), config.server.gpus, nccl)
            stack.enter_context(devices(gpus.trainer))
            from swe_trainer_trl.hub.push_checkpoints import prepared
            from swe_trainer_trl.server.vllm_server import model_config, vllm_server
            from swe_trainer_trl.trainer.arguments import grpo_arguments, lora_config
            from swe_trainer_trl.trainer.train import ADAPTER, TrainingJob, check, rollout_settings, train

            # `attempts` is 1 by default, and a group of one has no spread.
            attempts = run.attempts if run.attempts > 1 else None
            arguments = grpo_arguments(
                config,
                output_dir=directory / CHECKPOINTS,
                group_size=attempts,
                defaults=defaults(trackers(config), track),
            )
            adapter = lora_config(config)
            described = model_config(model, arguments)
            check(config, adapter, described)
            push = prepared(launch.settings.push, directory)
            settings = rollout_settings(launch.settings, plan.model_side.name, config, arguments)
            if url is not None:
                settings = _with_server(settings, url, run.model or model)
                if launch.resume:
                    unpause(url)  # a trainer that was killed during a weight sync leaves the server paused
                run_in_loop(_check_engine, settings)
                if adapter is not None and config.weight_sync == "trl":
                    require_adapters(url)
                    if not launch.resume:
                        refuse_used(url, ADAPTER)
            if not launch.resume:
                create_directory(plan, plugins, directory, Redactor(), planned=None)
                stack.enter_context(locked(directory))
                Journal(directory / JOURNAL).close()  # from now on the run can be resumed
            run_id = run_name(RunDirectory.open(directory).info)
            stack.enter_context(variables(arguments.report_to, track, directory, run_id))
            server = None
            if url is None:
                rank = adapter.r if adapter is not None and config.weight_sync == "trl" else None
                log = directory / SERVER_LOG
                logger.info("starting vLLM for %s; its log is %s", model, log)
                server = stack.enter_context(
                    vllm_server(model, arguments, config, gpus=gpus, lora_rank=rank, log=log)
                )
                settings = _with_server(settings, server.url, model)
            arguments.vllm_server_base_url = settings.run.engine_url
            with _pushed(launch), _sandboxes_removed(plan.sandbox), _errors_explained(server):
                if server is not None:
                    run_in_loop(_check_engine, settings)
                train(
                    TrainingJob(
                        config=config,
                        directory=directory,
                        tasks=plan.tasks,
                        settings=settings,
                        model=model,
                        model_config=described,
                        arguments=arguments,
                        adapter=adapter,
                        server=server,
                        push=push,
                    )
                )


def _one_server(urls: str) -> str:
    """Return the base URL of the user's server, without `/v1`.

    Raises:
        ConfigError: The URL is invalid, or there are several, which only an evaluation supports.
    """
    if "," in urls:
        raise ConfigError(
            "--engine-url names several servers, and weights go to one: name that alone, or leave it out and "
            "one is started"
        )
    return base_url(urls).removesuffix("/v1")


def _require_one_process() -> None:
    """Refuse `accelerate launch` and torchrun: each of their processes would start its own run.

    Raises:
        ConfigError: This is one of several processes.
    """
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1":
        raise ConfigError(
            f"swe-core run was started as one of {count} processes (WORLD_SIZE), and trains in one: start it "
            "without accelerate or torchrun, or train with TRLRolloutWorker in a script of your own"
        )


def _require_journal(directory: Path) -> None:
    """Refuse to resume a run without a journal, since its finished rollouts would be lost.

    Raises:
        UsageError: The journal does not exist.
    """
    if not (directory / JOURNAL).is_file():
        raise UsageError(
            f"{str(directory)!r} is not a training run that can be resumed: it has no {JOURNAL!r}, which "
            "says what was trained; start a new run with --out"
        )


def _with_server(settings: Settings, url: str, model: str) -> Settings:
    return settings.model_copy(
        update={"run": settings.run.model_copy(update={"engine_url": url, "model": model})}
    )


def require_adapters(url: str) -> None:
    """Refuse a server without support for adapters: TRL would merge them and send all weights instead.

    Args:
        url: The server's base URL, without `/v1`.

    Raises:
        ConfigError: The server takes no adapters, or does not report whether it does.
    """
    try:
        reply = httpx.get(
            f"{url}/server_info", params={"config_format": "json"}, timeout=_ASK, trust_env=False
        ).raise_for_status()
        takes = reply.json()["vllm_config"]["lora_config"] is not None
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the server {url!r} does not say at /server_info whether it takes adapters ({sentence(error)}): "
            "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment"
        ) from None
    if not takes:
        raise ConfigError(
            f"the server {url!r} takes no adapters: start it with --enable-lora, --max-lora-rank and "
            "--max-loras and with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, or leave out "
            "worker.trl.lora"
        )


def refuse_used(url: str, name: str) -> None:
    """Refuse a server that holds adapters of another training: vLLM accepts each adapter name only once.

    Args:
        url: The server's base URL, without `/v1`.
        name: Prefix of the adapters' names.

    Raises:
        ConfigError: The server holds such adapters, or does not report its adapters.
    """
    try:
        reply = httpx.get(f"{url}/v1/models", timeout=_ASK, trust_env=False).raise_for_status()
        held = [card["id"] for card in reply.json()["data"] if card["id"].startswith(f"{name}-v")]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the server {url!r} does not say at /v1/models which adapters it holds ({sentence(error)}): "
            "check that it is vLLM, and wants no key"
        ) from None
    if held:
        raise ConfigError(
            f"the server {url!r} holds adapters of another training ({', '.join(held)}): restart it, or "
            "resume that training (--resume)"
        )


async def _check_engine(settings: Settings) -> None:
    """Run the engine's check of the server before the policy is loaded.

    Raises:
        SweError: The server does not answer, serves another model, or does not fit these settings.
    """
    side = plan_run(settings, load_plugins(settings.run)).model_side
    if isinstance(side, ResolvedComponent):
        async with cast(Engine, side.create()) as engine:
            await engine.check()


@contextmanager
def _errors_explained(server: VLLMServer | None) -> Iterator[None]:
    """Turn an error that ends the training into one sentence. If the server has died, quote its log."""
    try:
        yield
    except Exception as error:  # the boundary to torch, transformers and TRL
        died = _death(server, error) if server and not isinstance(error, ServerLost) else None
        if died is not None:
            raise SweError(f"{died}; resume with --resume") from error
        if isinstance(error, SweError):
            raise
        logger.debug("training failed", exc_info=True)
        raise SweError(f"training failed: {sentence(error)}") from error


def _death(server: VLLMServer, error: Exception) -> str | None:
    """Return why the server ended, as a sentence; None if it is healthy."""
    if not isinstance(error, EngineError):
        return server.died()
    # A failing server may be about to end and log the reason. A dead server may also hang instead.
    died = server.died(_END)
    return server.end() if died is None and dead(server.url) else died


@contextmanager
def _pushed(launch: Launch) -> Iterator[None]:
    """Push the rollouts that the rollouts' process has not pushed yet."""
    try:
        yield
    finally:
        options = launch.settings.push
        if options.to is not None:
            try:
                push_run(RunDirectory.open(launch.directory), options)
            except Exception as error:  # the boundary to the Hub: a failed push does not fail the training
                logger.warning(
                    "some rollouts are not pushed: %s; this pushes them later: swe-core push %s --to %s",
                    sentence(error),
                    launch.directory,
                    options.to,
                )


@contextmanager
def _sandboxes_removed(sandbox: ResolvedComponent) -> Iterator[None]:
    """Remove sandboxes that a killed rollouts' process left behind, so that the next run need not do it."""
    try:
        yield
    finally:
        try:
            run_in_loop(cast(SandboxProvider, sandbox.create()).reap)
        except SweError as error:
            logger.warning("the search for leftover sandboxes failed: %s", sentence(error))


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Handle `ending_signals` like Ctrl-C, so that everything that was started is stopped.

    This includes SIGINT itself, which a process in the background of a shell ignores by default.
    """
    signals = ending_signals()
    before = [signal.signal(number, signal.default_int_handler) for number in signals]
    try:
        yield
    finally:
        for number, handler in zip(signals, before, strict=True):
            signal.signal(number, handler)
