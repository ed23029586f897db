"""`swe-core view`: open runs in a browser, or write their pages as a static site."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from swe_core.cli.options import run_arguments
from swe_core.errors import UsageError

if TYPE_CHECKING:
    from swe_core.view.site import Site


@click.command()
@run_arguments
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8118, show_default=True, help="0 selects a free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    metavar="ADDRESS",
    show_default=True,
    help="Address to listen on. For any but loopback, the URL has a key that readers need.",
)
@click.option("--open", "browser", is_flag=True, help="Open the page in your browser.")
@click.option(
    "--export", "out", type=click.Path(path_type=Path), metavar="DIR", help="Write a static site instead."
)
def view(directories: tuple[Path, ...], port: int, host: str, browser: bool, out: Path | None) -> None:
    """Open each RUN in a browser: rollouts, tokens, chains, groups. The default is all runs in ./runs.

    The pages only read, and follow a run that goes on. For a run on another machine, forward the port:
    ssh -L 8118:127.0.0.1:8118 HOST.
    """
    from swe_core.view.site import Site

    paths = directories or (Path("runs"),)
    if out is not None:
        from swe_core.view.static_site import write_site

        pages = write_site(Site(paths, live=False), out)
        click.echo(f"Wrote {pages:,} {'page' if pages == 1 else 'pages'} to {out}. Open {out / 'index.html'}")
        return
    from swe_core.system.event_loop import run

    gc.set_threshold(100_000, 50, 100)  # what is read of runs stays, and has no cycles
    run(_serve, Site(paths), host, port, browser)


async def _serve(site: Site, host: str, port: int, browser: bool) -> None:
    """Serve `site` until a signal ends this process."""
    import secrets
    import webbrowser

    import anyio
    import anyio.to_thread
    from aiohttp import web

    from swe_core.system.event_loop import ending_signals
    from swe_core.system.http_server import serve
    from swe_core.view.server import application, is_loopback

    key = None if is_loopback(host) else secrets.token_urlsafe(24)
    runner = web.AppRunner(application(site, key), access_log=None, shutdown_timeout=1)
    try:
        async with serve(runner, port, host) as url:
            address = f"{url}/{f'?key={key}' if key else ''}"
            click.echo(f"Serving at {address} (Ctrl-C ends it)")
            if browser:
                webbrowser.open(address)
            async with anyio.create_task_group() as group:
                group.start_soon(partial(anyio.to_thread.run_sync, site.read_ahead, abandon_on_cancel=True))
                with anyio.open_signal_receiver(*ending_signals()) as signals:
                    async for _ in signals:
                        group.cancel_scope.cancel()
    except OSError as error:
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; give another --port or --host"
        ) from None
