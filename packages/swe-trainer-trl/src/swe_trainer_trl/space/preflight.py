"""What a run would find out only where it is deployed, on hardware that is paid for by then."""

from __future__ import annotations

import logging
from collections.abc import Mapping
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

logger = logging.getLogger(__name__)


def check_run(request: Request, settings: Settings, *, ask: bool = True) -> Needs:
    """Refuse what can be told here: sandboxes that cannot be opened there, rows that cannot be read, settings
    of the training that TRL does not have, a model whose weights cannot go to vLLM.

    Args:
        settings: Those of the run.
        ask: Whether the Hub may be asked for the model's configuration.

    Returns:
        What only the Hub can tell, to be asked before anything is created.

    Raises:
        UsageError: Something of it is wrong.
        PluginError: A plugin that the settings name cannot be loaded, or several fill one role.
    """
    # SWE_PLUGINS does not travel, so there is no allow-list there.
    plugins = load_plugins(settings.run, {})
    worker = resolve_component(settings, plugins, "worker", settings.run.worker)
    default = default_component("sandbox", worker)
    sandbox = resolve_component(settings, plugins, "sandbox", settings.run.sandbox, default=default)
    _check_sandbox(request, settings, sandbox)
    # A data set of the Hub is read there, with the token that it has there.
    if Path(settings.run.tasks).exists():
        selection(settings, plugins).tasks()
    kinds: tuple[RepoKind, ...] = ("dataset",)
    training = None
    if isinstance(worker.config, TRLConfig):
        kinds += ("model",)
        training = _check_training(worker.config, settings, ask)
    to = settings.push.to
    return Needs(
        pushes=() if to is None else tuple((kind, to) for kind in kinds),
        flavor=sandbox.config.model_dump()["flavor"] if sandbox.name == "hf" else None,
        training=training,
    )


def _check_training(config: TRLConfig, settings: Settings, ask: bool) -> Training:
    from swe_trainer_trl.trainer.arguments import checked_grpo, lora_config

    arguments = checked_grpo(config)
    if config.lora is None or find_spec("peft") is not None:
        lora_config(config)
    else:  # it is installed there, and need not be here
        logger.warning("PEFT is not installed here, so worker.trl.lora was not checked: pip install peft")
    model = config.model or settings.run.model
    if config.weight_sync == "disk" and model is not None:
        _check_tied(model, arguments, ask)
    return Training(
        nccl=config.weight_sync == "trl" and config.lora is None,
        serves=settings.run.engine_url is None,
        gpus=config.server.gpus,
    )


def _check_tied(model: str, arguments: Mapping[str, Any], ask: bool) -> None:
    """Refuse a model that the run would refuse for its tied embeddings, as far as it can be read here: one on
    the Hub may be open to the run's token alone."""
    from swe_trainer_trl.server.vllm_server import read_model_config
    from swe_trainer_trl.trainer.disk_weight_transfer import refuse_tied

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
        logger.warning("whether the embeddings of %r are tied was not checked: %s", model, sentence(error))
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
            "sandboxes that are elsewhere, such as the plugin 'hf'"
        )
    if sandbox.name == "local" and not sandbox.config.model_dump()["unisolated"]:
        raise ConfigError(
            f"{named} asks for the sandbox 'local', and a {request.target} cannot isolate it: add the plugin "
            "'hf' to run.plugins, or accept it without isolation by sandbox.local.unisolated = true"
        )
    check_sandbox_supported(cast(SandboxProvider, sandbox.create()), settings)
