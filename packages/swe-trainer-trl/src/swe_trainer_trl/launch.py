"""TRLLauncher: one command from a model and tasks to a trained model."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from swe_core.api.engine import Engine
from swe_core.api.sandbox import SandboxProvider
from swe_core.api.task import Task
from swe_core.errors import ConfigError, EngineError, SweError, UsageError, sentence
from swe_core.hub.push import push_run
from swe_core.hub.pushed_run import run_name
from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.components import PluginSet, ResolvedComponent, load_plugins
from swe_core.run.execute import create_directory, shaping_notes
from swe_core.run.launcher import Launch, Launcher
from swe_core.run.plan import Plan, plan_run
from swe_core.run.resume import check_fixed, remember
from swe_core.run.settings import RunOptions, Settings
from swe_core.run.task_selection import selection
from swe_core.system.event_loop import run as run_in_loop
from swe_core.system.files import locked
from swe_core.system.redaction import Redactor, redaction_scope
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.console import LibraryMessages
from swe_trainer_trl.interrupts import Interrupts
from swe_trainer_trl.journal.checkpoints import CHECKPOINTS
from swe_trainer_trl.journal.journal import JOURNAL, Journal
from swe_trainer_trl.rollouts.held_out import held_out
from swe_trainer_trl.server.health import ServerLost, dead, unpause
from swe_trainer_trl.server.parallel import in_parallel
from swe_trainer_trl.server.served import refuse_unequal, refuse_used, require_adapters
from swe_trainer_trl.server.urls import server_urls
from swe_trainer_trl.trackers import DEFAULTS, tracked_name, variables

if TYPE_CHECKING:
    from swe_trainer_trl.server.vllm_server import VLLMServer

logger = logging.getLogger(__name__)

SERVER_LOG = "vllm.log"
"""Name in the run directory; further servers have a number, such as `vllm-2.log`."""

_END = 10.0
"""Seconds to wait for the end of a server that has failed."""


class TRLLauncher(Launcher):
    """The worker `trl`: training in this process, agents in a second one, the policy's server in a third."""

    def __init__(self, config: TRLConfig) -> None:
        self._config = config

    def launch(self, launch: Launch) -> bool:
        """See `Launcher.launch`. The trained model is saved in `model` in the run directory."""
        with Interrupts() as interrupts:
            try:
                self._launch(launch, interrupts)
            except KeyboardInterrupt:
                pass
            except Exception as error:  # an interrupt comes out of libraries as an error of any kind
                if not interrupts.count:
                    raise
                logger.warning("the interrupt met an error: %s", sentence(error))
            else:
                return False
        if (launch.directory / JOURNAL).exists():
            logger.warning("interrupted; resume with --resume %s", launch.directory)
        return True

    def preview(self, launch: Launch, say: Callable[[str], None]) -> None:
        """See `Launcher.preview`: the layout of the GPUs, and the memory of each."""
        config, run = self._config, launch.settings.run
        model, urls = _policy(config, run), server_urls(run.engine_url or "")
        plan, plugins, _ = _planned(launch)
        held_out(plan, config, lambda settings: selection(settings, plugins))
        if launch.resume:
            _require_journal(launch.directory)
            check_fixed(RunDirectory.open(launch.directory), plan, _fixed(plan))
        from swe_trainer_trl.preview import preview

        url = next(iter(urls), None)
        preview(config, launch.settings, model, url, tasks=len(plan.tasks), say=say)

    def _launch(self, launch: Launch, interrupts: Interrupts) -> None:
        config, run, directory = self._config, launch.settings.run, launch.directory
        if config.hardware is not None:
            raise ConfigError(
                "worker.trl.hardware (--hardware) is what --dry-run plans for, and a training uses the GPUs "
                "of this machine: leave it out"
            )
        model, urls = _policy(config, run), server_urls(run.engine_url or "")
        plan, plugins, engine = _planned(launch)
        evaluated = held_out(plan, config, lambda settings: selection(settings, plugins))
        _require_one_process()
        with ExitStack() as stack:
            packages = {str(module.__name__).partition(".")[0] for module in plugins.manager.get_plugins()}
            libraries = stack.enter_context(LibraryMessages(packages, stack.enter_context(redaction_scope())))
            if launch.resume:
                _require_journal(directory)
                stack.enter_context(locked(directory))
                check_fixed(RunDirectory.open(directory), plan, _fixed(plan))
            # Only now what is heavy: torch first, then TRL, whose import asks CUDA for its devices.
            from swe_trainer_trl.planning.cards import of_this_machine
            from swe_trainer_trl.planning.plan_text import step_text
            from swe_trainer_trl.planning.training_plan import plan_training
            from swe_trainer_trl.server.gpus import devices, visible_gpus

            url, longest = next(iter(urls), None), launch.settings.budget.context
            needs = plan_training(config, model, of_this_machine(visible_gpus()), url=url, longest=longest)
            gpus = needs.layout
            config = config.model_copy(update={"processes": needs.processes, "sharding": needs.sharding})
            stack.enter_context(devices(gpus.trainers))
            from swe_trainer_trl.hub.push_checkpoints import prepared
            from swe_trainer_trl.server.vllm_server import model_config, vllm_servers
            from swe_trainer_trl.trainer.arguments import grpo_arguments, lora_config
            from swe_trainer_trl.trainer.train import TrainingJob, check, rollout_settings, train

            libraries.imported()
            interrupts.check()
            # `attempts` is 1 by default, and a group of one has no spread.
            attempts = run.attempts if run.attempts > 1 else None
            arguments = grpo_arguments(
                config, output_dir=directory / CHECKPOINTS, group_size=attempts, defaults=DEFAULTS
            )
            adapter = lora_config(config)
            described = model_config(model, arguments)
            check(config, adapter, described)
            needs.enforce(config.memory_check)
            if needs.processes > 1:
                logger.info("a step has %s", step_text(needs))
            for name, why in gpus.idle.items():
                logger.info("GPU %s is idle: %s", name, why)
            push = prepared(launch.settings.push, directory)
            settings = rollout_settings(launch.settings, engine, config, arguments)
            key = _key(plan.model_side)
            if urls:
                settings = _with_servers(settings, urls, run.model or model)
                if launch.resume:  # a trainer that was killed during a weight sync leaves the servers paused
                    in_parallel([partial(unpause, url) for url in urls])
                run_in_loop(_check_engine, settings)
                _check_servers(urls, settings, config, key, new=not launch.resume)
            if not launch.resume:
                notes = shaping_notes(plugins)
                create_directory(plan, plugins, directory, Redactor(), planned=None, notes=notes)
                stack.enter_context(locked(directory))
                Journal(directory / JOURNAL).close()  # from now on the run can be resumed
            else:
                remember(RunDirectory.open(directory), plan.settings)
            libraries.write_to(directory)
            _hold_out(directory, evaluated)
            run_id = run_name(RunDirectory.open(directory).info)
            arguments.run_name = arguments.run_name or tracked_name(directory, run_id)
            stack.enter_context(variables(directory, run_id))
            servers: Sequence[VLLMServer] = ()
            if not urls:
                rank = adapter.r if adapter is not None and config.weight_sync == "trl" else None
                logs = _server_logs(directory, len(gpus.servers))
                logger.info("starting vLLM for %s; its log is %s", model, " and ".join(map(str, logs)))
                servers = stack.enter_context(
                    vllm_servers(model, arguments, config, gpus=gpus, lora_rank=rank, logs=logs)
                )
                settings = _with_servers(settings, [server.url for server in servers], model)
            with _pushed(launch), _sandboxes_removed(plan.sandbox), _errors_explained(servers):
                if servers:
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
                        group_size=attempts,
                        defaults=DEFAULTS,
                        processes=config.processes or 1,
                        servers={server.url: server for server in servers} or dict.fromkeys(urls),
                        key=key,
                        push=push,
                        held_out=evaluated,
                    )
                )


def _fixed(plan: Plan) -> list[str]:
    """Return the settings that no resume may change: the rollouts and weights of before would not fit."""
    return [
        *("run.agent", "run.grader", "run.mode", "run.model", "worker.trl.model", "worker.trl.lora"),
        *("worker.trl.preset", "worker.trl.shuffle", "worker.trl.grpo.seed"),
        *(f"agent.{plan.agent.name}", f"grader.{plan.grader.name}"),
    ]


def _policy(config: TRLConfig, run: RunOptions) -> str:
    model = config.model or run.model
    if model is None:
        raise ConfigError("training needs a policy: pass --model with a directory or a name on the Hub")
    return model


def _planned(launch: Launch) -> tuple[Plan, PluginSet, str]:
    """Plan the rollouts.

    Returns:
        The plan, the plugins, and the name of the engine.

    Raises:
        UsageError: A choice is wrong, or no call of the agent is answered by this host.
    """
    plugins = load_plugins(launch.settings.run)
    plan = plan_run(launch.settings, plugins)
    if not isinstance(plan.model_side, ResolvedComponent):
        raise ConfigError(
            f"the agent {plan.agent.name!r} makes no LLM calls that this host answers, so nothing can be "
            "trained: choose another agent, and leave out --mode black-box"
        )
    return plan, plugins, plan.model_side.name


def _require_one_process() -> None:
    """Refuse `accelerate launch` and torchrun: each of their processes would start its own run.

    Raises:
        ConfigError: This is one of several processes.
    """
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1":
        raise ConfigError(
            f"swe-core run was started as one of {count} processes (WORLD_SIZE), and starts its trainer "
            "processes itself: start it without accelerate or torchrun, and set worker.trl.processes"
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


def _hold_out(directory: Path, held_out: Sequence[Task]) -> None:
    """Keep the held-out tasks in the journal.

    Raises:
        UsageError: The training that is resumed has others.
    """
    if held_out:
        with closing(Journal(directory / JOURNAL)) as journal:
            journal.hold_out({task.instance_id: task.digest for task in held_out})


def _with_servers(settings: Settings, urls: Sequence[str], model: str) -> Settings:
    run = settings.run.model_copy(update={"engine_url": ",".join(urls), "model": model})
    return settings.model_copy(update={"run": run})


def _server_logs(directory: Path, count: int) -> Sequence[Path]:
    """Return the file for the output of each server: `SERVER_LOG`, then the same with a number."""
    first = directory / SERVER_LOG
    return [first, *(first.with_stem(f"{first.stem}-{number}") for number in range(2, count + 1))]


def _key(engine: object) -> str | None:
    """Return the key of the servers, from the variable that the engine's settings name."""
    variable = getattr(getattr(engine, "config", None), "api_key_env", None)
    return (os.environ.get(variable, "").strip() or None) if variable else None


def _check_servers(
    urls: Sequence[str], settings: Settings, config: TRLConfig, key: str | None, *, new: bool
) -> None:
    """Check the user's servers for a training.

    Args:
        new: Whether the training is not resumed. A resumed one may find its own adapters.

    Raises:
        ConfigError: A server takes no adapters or holds others, or the servers differ.
    """
    from swe_trainer_trl.trainer.train import ADAPTER

    if config.lora is not None and config.weight_sync == "trl":
        for url in urls:
            require_adapters(url)
            if new:
                refuse_used(url, ADAPTER)
    if len(urls) > 1:
        refuse_unequal(urls, settings.run.model or "", key)


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
def _errors_explained(servers: Sequence[VLLMServer]) -> Iterator[None]:
    """Turn an error that ends the training into one sentence. If all servers have died, quote a log."""
    try:
        yield
    except Exception as error:  # the boundary to torch, transformers and TRL
        died = None if isinstance(error, ServerLost) else _death(servers, error)
        if died is not None:
            raise SweError(f"{died}; resume with --resume") from error
        if isinstance(error, SweError):
            raise
        logger.debug("training failed", exc_info=True)
        raise SweError(f"training failed: {sentence(error)}") from error


def _death(servers: Sequence[VLLMServer], error: Exception) -> str | None:
    """Return why the last server ended, as a sentence; None if one is healthy, or there is none."""
    died = None
    for server in servers:
        died = _death_of(server, error)
        if died is None:
            return None
    return died


def _death_of(server: VLLMServer, error: Exception) -> str | None:
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
