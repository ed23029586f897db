"""The web server of the pages: read-only, on loopback or with a key."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web
from aiohttp.typedefs import Middleware

from swe_core.errors import UsageError
from swe_core.view.render import ASSETS, Links, Page, render
from swe_core.view.routes import page_at, parts_of
from swe_core.view.site import NotShown, Site

COOKIE = "swe-core-view"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Content-Security-Policy: no script but ours, no request to another host."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def application(site: Site, key: str | None = None) -> web.Application:
    """Return the web application.

    Args:
        key: What a reader must have in the URL (`?key=`) once, and then in a cookie. None asks for none, and
            answers requests to loopback names only, so that no other website can read the pages.
    """
    guard: Middleware = _local_only if key is None else _with_key(key)
    app = web.Application(middlewares=[_protected, guard])
    app.router.add_get("/assets/{name}", _asset)
    app.router.add_get("/{path:.*}", _pages(site))
    return app


def _pages(site: Site) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if not path.endswith("/"):
            asked = request.rel_url.raw_query_string
            raise web.HTTPFound(f"./{path.rpartition('/')[2]}/{f'?{asked}' if asked else ''}")
        parts = parts_of(path)
        known = request.query.get("version")
        status, text = await asyncio.to_thread(_answer, site, parts, dict(request.query), known)
        return web.Response(status=status, text=text, content_type="text/html" if text else None)

    return answer


def _answer(site: Site, parts: tuple[str, ...], query: dict[str, str], known: str | None) -> tuple[int, str]:
    """Return the status and the HTML of a page; no text where the reader has this version of it."""
    links = Links(len(parts))
    with site.lock:
        try:
            site.refresh()
            page = page_at(site, parts, query)
            if known is not None and known == page.version:
                return 204, ""
            return 200, render(page, links, live=site.live).encode(errors="replace").decode()
        except NotShown as error:
            return 404, render(Page("message.html", {"text": str(error)}), links, live=False)
        except UsageError as error:
            text = f"{str(error)[:1].upper()}{str(error)[1:]}."
            return 500, render(Page("message.html", {"text": text}), links, live=False)
        except (OSError, ValueError, TypeError) as error:  # files of others may hold anything
            text = (
                f"This page cannot be made from the files of the run: {str(error) or type(error).__name__}."
            )
            text = text.encode(errors="replace").decode()
            return 500, render(Page("message.html", {"text": text}), links, live=False)


async def _asset(request: web.Request) -> web.StreamResponse:
    name = request.match_info["name"]
    if name not in ASSETS:
        raise web.HTTPNotFound
    body = (files("swe_core.view") / "assets" / name).read_bytes()
    return web.Response(body=body, content_type=_TYPES[name.rpartition(".")[2]], charset="utf-8")


@web.middleware
async def _protected(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update(_HEADERS)
        raise
    response.headers.update(_HEADERS)
    return response


@web.middleware
async def _local_only(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refuse other names than those of loopback: a website may have its own name resolve to loopback."""
    if not is_loopback(request.url.host or ""):
        raise web.HTTPForbidden(text="swe-core view: open http://127.0.0.1 or http://localhost instead.")
    return await handler(request)


def _bytes(text: str) -> bytes:
    """Return what a client sent, which may be no UTF-8."""
    return text.encode(errors="surrogatepass")


def _with_key(key: str) -> Middleware:
    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.query.get("key")
        if given is not None and hmac.compare_digest(_bytes(given), key.encode()):
            url = request.rel_url.without_query_params("key")
            redirect = web.HTTPFound(url)
            redirect.set_cookie(COOKIE, key, httponly=True, samesite="Strict")
            raise redirect
        if not hmac.compare_digest(_bytes(request.cookies.get(COOKIE, "")), key.encode()):
            raise web.HTTPForbidden(text="swe-core view: open the whole URL that the command printed.")
        return await handler(request)

    return check


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is of this machine alone."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
