"""DiskWeightTransfer: sends weights to vLLM servers through files, without CUDA."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from swe_core.errors import ConfigError, EngineError, EngineUnavailable, SweError
from swe_trainer_trl.server.health import dead
from swe_trainer_trl.server.parallel import in_parallel

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig

_SHARD_BYTES = 2 * 10**9
_TIMEOUT = 1800.0
"""Timeout of each request of a sync in seconds, as in TRL's own transfer."""
_CONNECT_TIMEOUT = 10.0


class DiskWeightTransfer:
    """TRL's `WeightTransferProtocol` through files: each sync writes a checkpoint, and every server loads it.

    A server holds running requests from `pause` to `resume`. Then it prefills their tokens again with the
    new weights, so each token's log-probability is that of the weights that sampled it, given all the tokens
    before it.

    After an error the servers are resumed, because the trainer ends and would leave other clients waiting.
    There is one exception: if one of several servers fails, all stay paused, since the others may have
    weights that are not announced yet. The caller sends the weights again, or resumes the servers
    (`not_left_paused`).

    Args:
        urls: The server's base URL, without `/v1`, or a function that returns those of all servers, which is
            called for each request. A server must run with `VLLM_SERVER_DEV_MODE=1`.
        folder: Directory of the checkpoints, which each server must see under the same path. Only the last
            checkpoint is kept, so the disk needs room for two.
        config: Configuration of the model.
        shard_bytes: Largest size of a checkpoint file in bytes, unless a single tensor is larger. At most
            that much is copied into memory at a time.
        timeout: Timeout of each request in seconds.

    Raises:
        ConfigError: The model's embeddings are tied.
    """

    def __init__(
        self,
        urls: str | Callable[[], Sequence[str]],
        folder: Path,
        config: PreTrainedConfig,
        *,
        shard_bytes: int = _SHARD_BYTES,
        timeout: float = _TIMEOUT,
    ) -> None:
        refuse_tied(config)
        self._urls = (lambda: [urls]) if isinstance(urls, str) else urls
        self._folder = folder.absolute()
        self._config = config
        self._shard_bytes = shard_bytes
        self._timeout = httpx.Timeout(timeout, connect=_CONNECT_TIMEOUT)
        self._syncs = 0

    def init_weight_transfer(self) -> None:
        """Create the folder, and remove the checkpoints of an earlier run.

        Raises:
            SweError: The folder cannot be created.
        """
        with self._writing():
            self._folder.mkdir(parents=True, exist_ok=True)
        self._remove_all_but(None)

    def pause(self) -> None:
        """Hold the servers' requests.

        Raises:
            EngineError: The request failed.
        """
        with self._resumed_on_failure():
            self._post("/pause", mode="keep")

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Write the weights and have each server load them.

        Args:
            iterator: Name and tensor of each weight, under the servers' names.

        Raises:
            SweError: The weights cannot be written.
            EngineError: A server did not load the weights.
        """
        with self._resumed_on_failure():
            checkpoint = self._write(iterator)
            load = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint)}}
            self._post("/collective_rpc", load)
            # vLLM 0.31 drops the cache of requests that a pause keeps, but does not document it. Without the
            # parameter, this call fails while requests hold cache blocks, and the old cache stays.
            for url, reply in self._post("/reset_prefix_cache", reset_running_requests="true").items():
                if reply.content and not reply.json()["success"]:  # older servers send an empty reply
                    raise EngineError(
                        f"the server {url!r} did not drop what it computed with the old weights: start it "
                        "without a KV connector"
                    )
        self._remove_all_but(checkpoint)

    def resume(self) -> None:
        """Resume the servers' requests. One of several may be dead: the sync is complete without it.

        Raises:
            EngineError: The request failed.
        """
        urls = self._urls()

        def resume(url: str) -> None:
            try:
                self._post_one(url, "/resume", None, {})
            except EngineUnavailable:
                if len(urls) == 1 or dead(url) is None:
                    raise

        in_parallel([partial(resume, url) for url in urls])

    def destroy(self) -> None:
        """Remove the last checkpoint, which the servers have read."""
        self._remove_all_but(None)

    def _write(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> Path:
        """Write the weights to a new directory, and return it. The directory appears when it is complete."""
        self._syncs += 1
        done = self._folder / f"weights-{self._syncs}"
        part = self._folder / f"weights-{self._syncs}.part"
        try:
            with self._writing():
                part.mkdir()
                _save_shards(iterator, part, self._shard_bytes)
                self._config.save_pretrained(part)
                part.rename(done)
        except Exception:  # an incomplete checkpoint must not stay
            shutil.rmtree(part, ignore_errors=True)
            raise
        return done

    def _remove_all_but(self, kept: Path | None) -> None:
        for directory in self._folder.glob("weights-*"):
            if directory != kept:
                shutil.rmtree(directory, ignore_errors=True)

    def _post(self, path: str, body: object = None, **query: str) -> dict[str, httpx.Response]:
        """Send a request to all servers at once; return the reply of each."""
        urls = self._urls()
        replies = in_parallel([partial(self._post_one, url, path, body, query) for url in urls])
        return dict(zip(urls, replies, strict=True))

    def _post_one(self, url: str, path: str, body: object, query: dict[str, str]) -> httpx.Response:
        try:
            reply = httpx.post(
                f"{url}{path}",
                params=query,
                json=body,
                timeout=self._timeout,
                trust_env=False,
            )
        except httpx.TransportError as error:
            raise EngineUnavailable(
                f"the server {url!r} did not answer POST {path} ({type(error).__name__}): see the "
                "server's log for why it stopped"
            ) from None
        if reply.status_code == httpx.codes.NOT_FOUND:
            raise EngineError(
                f"the server {url!r} has no {path}: start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment"
            )
        if not reply.is_success:
            said = " ".join(reply.text.split())[:300]
            raise EngineError(
                f"the server {url!r} failed at POST {path} (status {reply.status_code}, {said!r}): see "
                "the server's log"
            )
        return reply

    @contextlib.contextmanager
    def _resumed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of any kind: no server must stay paused
            if not isinstance(error, EngineError) or len(self._urls()) == 1:
                with contextlib.suppress(SweError):
                    self.resume()
            raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        from safetensors import SafetensorError

        try:
            yield
        except (OSError, SafetensorError) as error:  # safetensors turns an OSError into the latter
            raise SweError(
                f"the weights cannot be written to {str(self._folder)!r} ({error}): make room there, or set "
                "another run directory"
            ) from error


def refuse_tied(config: PreTrainedConfig) -> None:
    """Refuse a model whose weights cannot be sent through files.

    Raises:
        ConfigError: The model's embeddings are tied.
    """
    # The attribute is missing if the model has no head to tie.
    if any(getattr(part, "tie_word_embeddings", False) for part in (config, config.get_text_config())):
        raise ConfigError(
            "the model ties its output head to its input embeddings, and vLLM keeps a packed copy of "
            "such a head, which loading weights from disk does not change: set worker.trl.weight_sync "
            "to 'trl', or train a copy of the model saved with tie_word_embeddings false"
        )


def _save_shards(iterator: Iterator[tuple[str, torch.Tensor]], directory: Path, limit: int) -> None:
    """Write weights into files of at most `limit` bytes and an index, in transformers' layout."""
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
