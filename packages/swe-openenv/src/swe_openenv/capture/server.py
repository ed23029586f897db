"""The capture server: an async context manager, and `CaptureServer`, the same in a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from swe_core.errors import ConfigError
from swe_core.interception.server import InterceptionServer
from swe_core.run.components import load_plugins, resolve_component
from swe_core.run.settings import load_settings
from swe_core.system.descriptors import raise_descriptor_limit
from swe_core.system.http_server import LOOPBACK
from swe_core.system.redaction import redaction_scope
from swe_openenv.capture.engines import Choice, Engines, plain
from swe_openenv.capture.routes import Routes
from swe_openenv.capture.sessions import Sessions
from swe_openenv.capture.store import Store

OUT = Path("runs/capture")


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What a capture server is started with.

    Args:
        llm_url: The engine of sessions that name none; "" for none.
        model: Its model.
        port: 0 selects a free one.
        host: Address to listen on.
        admin_key: What the routes of sessions require; None requires nothing, on loopback only.
        max_model_calls: Limit of the calls of sessions that name none; 0 is no limit.
        max_output_tokens: Maximum tokens of one reply; 0 is no limit.
        out: The capture directory. A server that starts on it again resumes its sessions.
        config: TOML file with settings of engines, `[engine.vllm]` and `[engine.openai]`.
        sets: `engine.NAME.KEY=VALUE` above the file.
    """

    llm_url: str = ""
    model: str = ""
    port: int = 8100
    host: str = LOOPBACK
    admin_key: str | None = None
    max_model_calls: int = 0
    max_output_tokens: int = 8192
    out: Path = OUT
    config: Path | None = None
    sets: Sequence[str] = ()


@asynccontextmanager
async def capture(options: CaptureOptions) -> AsyncIterator[str]:
    """Serve until the context is left, and yield the server's URL.

    Raises:
        UsageError: An option, a setting or the directory is wrong.
    """
    _check(options)
    raise_descriptor_limit()  # each session holds a file
    engine = None
    if options.llm_url:
        cap = options.max_output_tokens or None
        engine = Choice(plain(options.llm_url), options.model, output_cap=cap)
    with redaction_scope() as redactor, Store.opened(options.out, redactor) as store:
        if options.admin_key:
            redactor.add(options.admin_key)
        settings = load_settings(options.config, options.sets)
        resolve = partial(resolve_component, settings, load_plugins(settings.run), "engine")
        async with Engines(resolve, engine.url if engine else "") as engines:
            sessions = Sessions(
                store, engines, engine, options.max_model_calls, options.max_output_tokens or None
            )
            routes = Routes(sessions, engines, engine, options.admin_key or None)
            await sessions.load()
            if engine is not None:
                await engines.probe(engine)
            server = InterceptionServer(
                port=options.port, host=options.host, redactor=redactor, routes=routes.all(), keyed=True
            )
            async with server:
                await sessions.begin(server)
                try:
                    yield server.url
                finally:
                    # First, so that agents retry at the next server: an answer would end them.
                    server.hang_up()
                    await sessions.end()


class CaptureServer:
    """The capture server in a thread, as OpenEnv's class of this name.

    Args:
        llm_url: The engine of sessions that name none; "" for none.
        model: Its model.
        port: Port; 0 selects a free one.
        host: Address to listen on; another one than loopback needs `admin_key`.
        admin_key: What the routes of sessions require.
        max_model_calls: Limit of the calls of sessions that name none; 0 is no limit.
        max_output_tokens: Maximum tokens of one reply; 0 is no limit.
        out: The capture directory. A server that starts on it again resumes its sessions.
        sets: Settings of engines, such as `engine.vllm.tokenizer=DIR`.
    """

    def __init__(
        self,
        *,
        llm_url: str,
        model: str,
        port: int = 8100,
        host: str = LOOPBACK,
        admin_key: str | None = None,
        max_model_calls: int = 0,
        max_output_tokens: int = 8192,
        out: str | Path = OUT,
        sets: Sequence[str] = (),
    ) -> None:
        self._options = CaptureOptions(
            llm_url=llm_url,
            model=model,
            port=port,
            host=host,
            admin_key=admin_key,
            max_model_calls=max_model_calls,
            max_output_tokens=max_output_tokens,
            out=Path(out),
            sets=sets,
        )
        self._stack = ExitStack()
        self.url = ""

    def start(self) -> None:
        """Start the server; it listens when this returns.

        Raises:
            UsageError: An option, a setting or the directory is wrong, or the port is taken.
        """
        with ExitStack() as stack:
            portal = stack.enter_context(
                start_blocking_portal(backend_options={"use_uvloop": find_spec("uvloop") is not None})
            )
            self.url = stack.enter_context(portal.wrap_async_context_manager(capture(self._options)))
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """End the server; its sessions stay on disk."""
        self._stack.close()


def _check(options: CaptureOptions) -> None:
    if options.llm_url and not options.model:
        raise ConfigError("the capture server does not know its engine's model: pass --model NAME")
    if options.max_model_calls < 0 or options.max_output_tokens < 0:
        raise ConfigError("max_model_calls and max_output_tokens are 0 or more: 0 is no limit")
    if not options.admin_key and not _is_loopback(options.host):
        raise ConfigError(
            f"a capture server on {options.host!r} would let anybody there read rollouts and use the engine: "
            "give it an admin key (--admin-key-env NAME), or let it listen on 127.0.0.1"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
