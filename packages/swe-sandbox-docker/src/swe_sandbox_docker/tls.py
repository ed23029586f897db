"""TLS connections of which one direction can end, as the engine's raw streams need it."""

from __future__ import annotations

import ssl
from contextlib import suppress

import anyio
from anyio.streams.tls import TLSStream

from swe_core.errors import SandboxError
from swe_sandbox_docker.address import TLS_FILES, Address

_CHUNK = 65536


class HalfClosingStream(TLSStream):
    """A TLS connection with `send_eof`, which anyio's lacks: its `unwrap` waits for the other direction."""

    _held: bytes = b""

    async def send_eof(self) -> None:
        """Send the notice that ends this direction (RFC 8446, 6.1); the other one stays open.

        OpenSSL loses data that has arrived and was not read before the notice, so that is read first.
        """
        with suppress(ssl.SSLError):  # says that nothing is left
            while data := self._ssl_object.read(_CHUNK):
                self._held += data
        with suppress(ssl.SSLError):  # says that the other side has not ended its direction
            self._ssl_object.unwrap()
        await self.transport_stream.send(self._write_bio.read())

    async def receive(self, max_bytes: int = _CHUNK) -> bytes:
        """Receive a chunk, also after `send_eof`."""
        if self._held:
            taken, self._held = self._held[:max_bytes], self._held[max_bytes:]
            return taken
        try:
            return await super().receive(max_bytes)
        except ssl.SSLZeroReturnError:  # both directions have ended
            raise anyio.EndOfStream from None
        except ssl.SSLError as error:
            raise anyio.BrokenResourceError from error


def context_of(address: Address) -> ssl.SSLContext | None:
    """Return the TLS settings for an address, None without TLS.

    Raises:
        SandboxError: The files cannot be read, or are no certificates.
    """
    if address.tls is None:
        return None
    authority, certificate, key = (address.tls / name for name in TLS_FILES)
    try:
        context = ssl.create_default_context(cafile=authority)
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise SandboxError(
            f"{', '.join(TLS_FILES)} of {str(address.tls)!r} are no certificates with their key: "
            f"{error.strerror}; make them as Docker's page on protecting its socket says"
        ) from None
    return context
