"""`swe-core openenv capture`. Slow imports happen only when the command runs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from swe_core.errors import UsageError


@click.command(short_help="Serve OpenEnv's capture protocol.")
@click.option("--engine-url", default="", metavar="URL", help="Engine of sessions that name none.")
@click.option("--model", default="", metavar="NAME", help="Its model.")
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on; another one than loopback needs an admin key.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8100,
    show_default=True,
    metavar="N",
    help="Port; 0 selects a free one.",
)
@click.option(
    "--admin-key-env",
    metavar="NAME",
    help="Environment variable with the key that the routes of sessions require.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/capture"),
    show_default=True,
    help="Capture directory; a server that starts on it again resumes its sessions.",
)
@click.option(
    "--max-model-calls",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Limit of the calls of sessions that name none; 0 is no limit.",
)
@click.option(
    "--max-output-tokens",
    type=click.IntRange(min=0),
    default=8192,
    show_default=True,
    metavar="N",
    help="Maximum tokens of one reply; 0 is no limit.",
)
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with settings of engines.")
@click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting, such as engine.vllm.tokenizer=DIR. Repeatable.",
)
def capture(
    engine_url: str,
    model: str,
    host: str,
    port: int,
    admin_key_env: str | None,
    out: Path,
    max_model_calls: int,
    max_output_tokens: int,
    config: Path | None,
    sets: tuple[str, ...],
) -> None:
    """Serve OpenEnv's capture protocol: an API key is a session, whose calls are recorded as exact tokens.

    The engine's own key comes from the environment, as the setting api_key_env names it.
    """
    import anyio

    from swe_core.system.event_loop import ending_signals, run, settled
    from swe_openenv.capture.server import CaptureOptions
    from swe_openenv.capture.server import capture as serving

    options = CaptureOptions(
        llm_url=engine_url,
        model=model,
        port=port,
        host=host,
        admin_key=_key(admin_key_env),
        max_model_calls=max_model_calls,
        max_output_tokens=max_output_tokens,
        out=out,
        config=config,
        sets=sets,
    )

    async def serve() -> None:
        with anyio.open_signal_receiver(*ending_signals()) as signals:
            async with serving(options) as url:
                click.echo(f"capture server: {url}, records in {out}")
                with settled():
                    await anext(aiter(signals))

    run(serve)


def _key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "").strip()
    if not key:
        raise UsageError(f"the environment variable {variable!r} has no admin key: set it, or leave it out")
    return key
