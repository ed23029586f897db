"""Checks of a run before its deployment, so that errors do not show up on paid hardware."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from swe_core.api.sandbox import SandboxProvider
from swe_core.errors import ConfigError, sentence
from swe_core.run.components import ResolvedComponent, default_component, load_plugins, resolve_component
from swe_core.run.plan import check_sandbox_supported
from swe_core.run.settings import Settings
from swe_core.run.task_selection import selection
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.space.deployment import Needs, RepoKind, Request, Training
from swe_trainer_trl.trackers import trackers

logger = logging.getLogger(__name__)


def check_run(request: Request, settings: Settings, *, ask: bool = True) -> Needs:
    """Check what can be checked on this machine.

    The checks cover sandboxes that the target cannot open, unreadable rows, training settings that TRL does
    not have, and a model whose weights cannot be sent to vLLM.

    Args:
        request: The request for the deployment.
        settings: Settings of the run.
        ask: Whether the model's configuration may be read from the Hub.

    Returns:
        Requirements that only the Hub can check, before anything is created.

    Raises:
        UsageError: A check failed.
        PluginError: A plugin that the settings name cannot be loaded, or several fill one role.
    """
    # SWE_PLUGINS is not part of a deployment, so the run has no allow-list.
    plugins = load_plugins(settings.run, {})
    worker = resolve_component(settings, plugins, "worker", settings.run.worker)
    default = default_component("sandbox", worker)
    sandbox = resolve_component(settings, plugins, "sandbox", settings.run.sandbox, default=default)
    _check_sandbox(request, settings, sandbox)
    # The run reads a data set of the Hub with its own token.
    if settings.run.tasks is not None and Path(settings.run.tasks).exists():
        selection(settings, plugins).tasks()
    kinds: tuple[RepoKind, ...] = ("dataset",)
    training = None
    if isinstance(worker.config, TRLConfig):
        kinds += ("model",)
        training = _check_training(worker.config, settings, ask)
        _warn_of_trackers(request, trackers(worker.config))
    to = settings.push.to
    return Needs(
        pushes=() if to is None else tuple((kind, to) for kind in kinds),
        flavor=sandbox.config.model_dump()["flavor"] if sandbox.name == "hf" else None,
        training=training,
    )


def _warn_of_trackers(request: Request, tracked: Sequence[str]) -> None:
    """Say which trackers the deployment does not install. The base image may have them."""
    asked = {re.split(r"[^\w.-]", line.strip().lower(), maxsplit=1)[0] for line in request.requirements}
    for name in tracked:
        if name not in asked:
            logger.warning("the deployment does not install the tracker %r: add --requirement %s", name, name)


def _check_training(config: TRLConfig, settings: Settings, ask: bool) -> Training:
    from swe_trainer_trl.trainer.arguments import checked_grpo, lora_config

    arguments = checked_grpo(config)
    if config.lora is None or find_spec("peft") is not None:
        lora_config(config)
    else:  # the deployment installs PEFT, so this machine need not have it
        logger.warning("PEFT is not installed here, so worker.trl.lora was not checked: pip install peft")
    model = config.model or settings.run.model
    if model is not None:
        _check_model(model, config, arguments, ask)
    return Training(
        nccl=config.weight_sync == "trl" and config.lora is None,
        serves=settings.run.engine_url is None,
        server=config.server,
        processes=config.processes,
    )


def _check_model(model: str, config: TRLConfig, arguments: Mapping[str, Any], ask: bool) -> None:
    """Refuse a mixture of experts, and with files tied embeddings, as the run would.

    A model on the Hub that cannot be read is only logged: it may be open to the run's token alone.
    """
    from swe_trainer_trl.server.vllm_server import read_model_config
    from swe_trainer_trl.trainer.disk_weight_transfer import refuse_tied
    from swe_trainer_trl.trainer.experts import refuse_experts

    given = arguments.get("model_init_kwargs")
    initial = given if isinstance(given, Mapping) else {}
    try:
        described = read_model_config(
            model,
            revision=initial.get("revision"),
            trust_remote_code=initial.get("trust_remote_code", arguments.get("trust_remote_code", False)),
            local_files_only=not ask,
        )
    except ConfigError as error:
        if Path(model).exists():
            raise
        logger.warning("whether %r can be trained was not checked: %s", model, sentence(error))
        return
    refuse_experts(described)
    if config.weight_sync != "disk":
        return
    try:
        refuse_tied(described)
    except ConfigError as error:
        raise ConfigError(f"worker.trl.weight_sync is 'disk' for {model!r}: {sentence(error)}") from None


def _check_sandbox(request: Request, settings: Settings, sandbox: ResolvedComponent) -> None:
    named = repr(request.config.name)
    if sandbox.name == "docker":
        raise ConfigError(
            f"{named} asks for the sandbox 'docker', and a {request.target} has no container engine: use "
            "remote sandboxes, such as those of the plugin 'hf'"
        )
    if sandbox.name == "local" and not sandbox.config.model_dump()["unisolated"]:
        raise ConfigError(
            f"{named} asks for the sandbox 'local', and a {request.target} cannot isolate it: add the plugin "
            "'hf' to run.plugins, or accept it without isolation by sandbox.local.unisolated = true"
        )
    check_sandbox_supported(cast(SandboxProvider, sandbox.create()), settings)
