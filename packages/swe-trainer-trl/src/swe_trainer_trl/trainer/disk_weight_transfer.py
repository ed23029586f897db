"""DiskWeightTransfer: new weights for a vLLM server through files that it reads, which needs no CUDA."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from swe_core.errors import ConfigError, EngineError, EngineUnavailable, SweError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

_SHARD_BYTES = 2 * 10**9
_TIMEOUT = 1800.0
"""Seconds that the server has for each of its parts of a sync, as in TRL's own transfer."""
_CONNECT_TIMEOUT = 10.0


class DiskWeightTransfer:
    """TRL's `WeightTransferProtocol`: each sync writes a checkpoint and has the server load it.

    Requests that are being sampled are held from `pause` to `resume` and then go on: what they have is read
    again by the new weights, so that each token's log-probability is that of the weights that sampled it,
    after all the tokens before it.

    Args:
        url: The server's base URL, without `/v1`. It must run with `VLLM_SERVER_DEV_MODE=1`.
        folder: Where checkpoints go; the server must see it under the same path. Only the last one stays, so
            it needs room for two.
        config: The model's.
        shard_bytes: A file of the checkpoint has no more, unless one tensor has; that much is copied into
            memory at a time.
        timeout: Seconds for each request.

    Raises:
        ConfigError: The model's embeddings are tied.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        config: PreTrainedConfig,
        *,
        shard_bytes: int = _SHARD_BYTES,
        timeout: float = _TIMEOUT,
    ) -> None:
        refuse_tied(config)
        self._url = url
        self._folder = folder.absolute()
        self._config = config
        self._shard_bytes = shard_bytes
        self._timeout = httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT)
        self._syncs = 0

    def init_weight_transfer(self) -> None:
        """Make the folder, and remove what an earlier run left there.

        Raises:
            SweError: It cannot be made.
        """
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_all_but(None)

    def pause(self) -> None:
        """Hold the server's requests.

        Raises:
            EngineError: The server did not do it.
        """
        with self._resumed_on_failure():
            self._post("/pause", mode="keep")

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Let the server sample from these weights, which it has under the same names.

        Raises:
            SweError: They cannot be written.
            EngineError: The server did not load them.
        """
        with self._resumed_on_failure():
            checkpoint = self._write(iterator)
            load = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
            self._post("/collective_rpc", load)
            # vLLM does not promise that a pause which keeps requests drops their cache, though 0.31 does it;
            # without the parameter this call fails where requests hold some, and the old cache stays.
            reply = self._post("/reset_prefix_cache", reset_running_requests="true")
            if reply.content and not reply.json()["success"]:  # older servers say nothing
                raise EngineError(
                    f"the server {self._url!r} did not drop what it computed with the old weights: start it "
                    "without a KV connector"
                )
        self._remove_all_but(checkpoint)

    def resume(self) -> None:
        """Let requests go on.

        Raises:
            EngineError: The server did not do it.
        """
        self._post("/resume")

    def destroy(self) -> None:
        """Remove the last checkpoint: the server has read it."""
        self._remove_all_but(None)

    def _write(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> Path:
        """A new directory with the weights, which appears when all of them are in it."""
        self._syncs += 1
        done = self._folder / f"weights-{self._syncs}"
        part = self._folder / f"weights-{self._syncs}.part"
        try:
            with self._writing():
                part.mkdir()
                _save_shards(iterator, part, self._shard_bytes)
                self._config.save_pretrained(part)
                part.rename(done)
        except Exception:  # whatever it was: half a checkpoint must not stay
            shutil.rmtree(part, ignore_errors=True)
            raise
        return done

    def _remove_all_but(self, kept: Path | None) -> None:
        for directory in self._folder.glob("weights-*"):
            if directory != kept:
                shutil.rmtree(directory, ignore_errors=True)

    def _post(self, path: str, body: object = None, **query: str) -> httpx.Response:
        try:
            reply = httpx.post(
                f"{self._url}{path}",
                params=query,
                json=body,
                timeout=self._timeout,
                trust_env=False,
            )
        except httpx.TransportError as error:
            raise EngineUnavailable(
                f"the server {self._url!r} did not answer POST {path} ({type(error).__name__}): see the "
                "server's log for why it stopped"
            ) from None
        if reply.status_code == httpx.codes.NOT_FOUND:
            raise EngineError(
                f"the server {self._url!r} has no {path}: start vLLM with VLLM_SERVER_DEV_MODE=1 in its "
                "environment"
            )
        if not reply.is_success:
            said = " ".join(reply.text.split())[:300]
            raise EngineError(
                f"the server {self._url!r} failed at POST {path} (status {reply.status_code}, {said!r}): see "
                "the server's log"
            )
        return reply

    @contextlib.contextmanager
    def _resumed_on_failure(self) -> Iterator[None]:
        """The trainer ends with the error and never resumes, so whoever else asks the server would wait."""
        try:
            yield
        except Exception:  # whatever it was
            with contextlib.suppress(SweError):
                self.resume()
            raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        from safetensors import SafetensorError

        try:
            yield
        except (OSError, SafetensorError) as error:  # the latter is what safetensors makes of an OSError
            raise SweError(
                f"the weights cannot be written to {str(self._folder)!r} ({error}): make room there, or set "
                "another run directory"
            ) from error


def refuse_tied(config: PreTrainedConfig) -> None:
    """Refuse a model whose weights cannot go through files.

    Raises:
        ConfigError: Its embeddings are tied.
    """
    # A configuration lacks the attribute where its model has no head to tie.
    if any(getattr(part, "tie_word_embeddings", False) for part in (config, config.get_text_config())):
        raise ConfigError(
            "the model ties its output head to its input embeddings, and vLLM keeps a packed copy of "
            "such a head, which loading weights from disk does not change: set worker.trl.weight_sync "
            "to 'trl', or train a copy of the model saved with tie_word_embeddings false"
        )


def _save_shards(iterator: Iterator[tuple[str, torch.Tensor]], directory: Path, limit: int) -> None:
    """Write weights into files of at most `limit` bytes and an index, as transformers does."""
    from safetensors.torch import save_file

    places: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    total = 0

    def save() -> None:
        file = f"model-{len(set(places.values())) + 1:05}.safetensors"
        save_file(shard, directory / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, file))
        shard.clear()

    size = 0
    for name, tensor in iterator:
        if shard and size + tensor.nbytes > limit:
            save()
            size = 0
        shard[name] = tensor.detach().cpu().contiguous()
        size += tensor.nbytes
        total += tensor.nbytes
    save()
    index = {"metadata": {"total_size": total}, "weight_map": places}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
