"""Names of built-in plugins, and of the project's own plugin distributions."""

from __future__ import annotations

from collections.abc import Mapping

BUILTINS: Mapping[str, str] = {
    "local": "swe_core.builtin.local",
    "agents": "swe_core.builtin.agents",
    "mini": "swe_core.builtin.mini",
    "openai": "swe_core.builtin.openai",
    "vllm": "swe_core.builtin.vllm",
    "replay": "swe_core.builtin.replay",
    "swe": "swe_core.builtin.swe",
    "rows": "swe_core.builtin.rows",
    "demo": "swe_core.builtin.demo",
    "collect": "swe_core.builtin.collect",
    "executors": "swe_core.builtin.executors",
}
"""Plugin name → module."""

DEFAULTS: Mapping[str, str] = {
    "agent": "mini",
    "sandbox": "local",
    "grader": "swe",
    "engine": "openai",
    "tasks": "rows",
    "worker": "collect",
    "executor": "local",
}
"""Role → default component. For `tasks`, the component that reads files and data sets."""

KNOWN_DISTRIBUTIONS: Mapping[str, str] = {
    "pi": "swe-agents-pi",
    "docker": "swe-sandbox-docker",
    "hf": "swe-sandbox-hf",
    "ray": "swe-executor-ray",
    "openenv": "swe-openenv",
    "trl": "swe-trainer-trl",
    **dict.fromkeys(
        (
            *("codex", "claude-code", "opencode", "qwen-code", "gemini-cli", "kimi-code"),
            *("mini-swe-agent", "aider", "openhands", "acp"),
        ),
        "swe-agents",
    ),
}
"""Plugin name → the distribution to install."""

REMOVED: Mapping[str, str] = {
    "capture": "run swe-core capture",
    "openenv-play": "write a task source, a sandbox and a grader as plugins",
    "k8s": "run --sandbox docker or hf",
    "new": "copy examples/agent, sandbox, grader, engine or tasks of the repository, a package each",
    **dict.fromkeys(
        ("--track", "track"), "use -p examples/tracker.py, or in a training worker.trl.grpo.report_to"
    ),
    "processes": "run --executor ray, which starts a private cluster on this host",
}
"""Plugin, component, command, option or table that is gone → what to use instead, the end of a sentence."""

KNOWN_COMMANDS: Mapping[str, tuple[str, str]] = {
    "job": ("trl", "Train as a Hugging Face Job."),
    "openenv": ("openenv", "Serve rollouts in OpenEnv's protocols."),
    "restore": ("trl", "Restore a training run from the Hub."),
    "space": ("trl", "Train on a Hugging Face Space."),
}
"""Command of `swe-core` → the plugin that adds it and the first sentence of its help, for all commands of
`KNOWN_DISTRIBUTIONS`. `swe-core --help` loads no plugin of these."""

DEFAULT_TASKS = "demo"
"""Task source of a command that names none."""

RECORDED_ENGINE = "replay"
"""Default engine where the tasks have recorded replies."""
