"""Policy: the version of the weights that answer a request, and the model name that selects them."""

from __future__ import annotations

from dataclasses import dataclass

from swe_core.builtin.http_engine import Transient
from swe_core.errors import EngineRefused


class AdapterUnknown(Transient):
    """The server does not serve the adapter: it may have replaced it by a newer one."""

    def refusal(self, attempts: int = 1) -> EngineRefused:
        """Return the error that is raised after the last attempt."""
        tried = f" (tried {attempts} times)" if attempts > 1 else ""
        return EngineRefused(
            f"{self}{tried}: start the server with --enable-lora, load the adapter of a policy version "
            "before the version is announced, and check engine.vllm.adapter",
            404,
        )


@dataclass(frozen=True, slots=True)
class Policy:
    """One version of the policy.

    Args:
        model: The name under which the servers serve the model.
        adapter: What the names of its LoRA adapters begin with; None where the weights themselves are
            replaced, under the model's one name.
        version: Which version, counted from 0.
    """

    model: str
    adapter: str | None
    version: int = 0

    @property
    def name(self) -> str:
        """Return the model name of a request of this version. Version 0 is the model without an adapter."""
        return self.model if self.adapter is None or self.version == 0 else f"{self.adapter}-v{self.version}"

    def unknown(self, where: str, refusal: EngineRefused, newest: int) -> AdapterUnknown | EngineRefused:
        """Return the error for a server's `refusal` of a request of this version.

        Args:
            where: The server, in words.
            newest: The version that was announced last. Where that is another one, it is asked for at once;
                else its announcement may be on the way, since an adapter is unloaded before it.
        """
        if refusal.status != 404 or self.name == self.model:
            return refusal
        said = f"{where} does not serve the adapter {self.name!r} (404)"
        return AdapterUnknown(said, retry_after=None if newest == self.version else 0.0)
