"""Variants of TRL's loss, by `[worker.trl.loss]` (`swe_trainer_trl.config.LossOptions`).

TRL's asynchronous trainer makes one forward pass of a row and one update. So two policies are known of each
trained id: the current policy p, and the sampler's q, whose log-probabilities were recorded. The difference
between them holds both the staleness of the row and the mismatch between vLLM and the trainer. With the ratio
r = p / q, the advantage A and sg(x) for x held constant, the loss of an id is:

    grpo                     -min(r A, clip(r, 1 - epsilon, 1 + epsilon_high) A)
    ... and delta            -min(min(r, delta) A, clip(r, 1 - epsilon, 1 + epsilon_high) A)
    ... by sequence          the same, with r = exp(mean of log p - log q over the trained ids of the row)
    cispo                    -sg(min(r, epsilon_high)) A log p; by sequence as above
    importance sampling      -sg(w) A p / sg(p), with the weight w = truncated or masked r; by sequence with
                             r = the product over the trained ids of the row

The first is that of TRL's AsyncGRPOTrainer 1.16, and PPO's (arXiv 1707.06347). `delta` is INTELLECT-2's
(arXiv 2505.07291), the sequence's ratio GSPO's (arXiv 2507.18071), `cispo` MiniMax-M1's (arXiv 2506.13585)
without its lower limit, as in ScaleRL (arXiv 2510.13786). TRL's GRPOTrainer 1.16 has the same formulas.

Importance sampling is what TRL's GRPOTrainer does at the first update of a batch: there its old policy, to
which it takes the clipped ratio, is the current one, so this ratio is 1 and clips nothing, and the loss is
weighted by (old policy) / (sampler). The truncated weight is TIS (Yao et al., "Your Efficient RL Framework
Secretly Brings You Off-Policy RL Training", 2025), a mask by token IcePop (Ring-1T, arXiv 2510.18855), a mask
by sequence MIS (Liu et al., "When Speed Kills Stability", 2025).

Each loss is proportional to A for A of one sign, and its limits depend on no more than the sign. So a factor
on A is a factor on the loss, as `swe_trainer_trl.normalization` requires. The KL term has no advantage, so
its weights come with the micro-batch (`swe_trainer_trl.trainer.micro_batches.SHARES`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from swe_trainer_trl.config import LossOptions


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """The loss of each of the M trained ids of a micro-batch.

    Args:
        loss: float32 [M].
        ratio: By which the KL term is multiplied for an unbiased gradient, float32 [M].
        low, high: Ids whose ratio is clipped from below or above, so that they have no gradient, bool [M].
        weights: Of the policy gradient, float32 [M]; None if a clipped ratio takes their place.
        truncated: Ids whose weight is not their ratio, bool [M]; None without weights.
    """

    loss: torch.Tensor
    ratio: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor
    weights: torch.Tensor | None = None
    truncated: torch.Tensor | None = None


class Loss:
    """The loss of trained ids.

    Args:
        options: The variant.
        epsilon, epsilon_high: TRL's arguments. With "cispo" the second is the limit of the ratio itself.
    """

    def __init__(self, options: LossOptions, epsilon: float, epsilon_high: float) -> None:
        self.options = options
        self._low, self._high = 1 - epsilon, 1 + epsilon_high
        self._largest = epsilon_high

    def terms(
        self, logprobs: torch.Tensor, sampled: torch.Tensor, advantages: torch.Tensor, rows: torch.Tensor
    ) -> Terms:
        """Return the loss of each trained id.

        Args:
            logprobs: The policy's log-probabilities, float32 [M], with their graph.
            sampled: The sampler's, float32 [M].
            advantages: float32 [M].
            rows: Index of the row of each id, int64 [M].
        """
        log_ratio = logprobs - sampled
        if self.options.vllm_importance_sampling_correction:
            ratio = self._sampling_ratio(log_ratio.detach(), rows)
            weights, truncated = self._limited(ratio)
            weighted = weights * torch.exp(log_ratio - log_ratio.detach())
            return Terms(-weighted * advantages, weighted, *_none(ratio), weights, truncated)
        if self.options.importance_sampling_level == "sequence":
            log_ratio = mean_of_rows(log_ratio, rows)[rows]
        ratio = torch.exp(log_ratio)
        if self.options.loss_type == "cispo":
            weights = ratio.detach().clamp(max=self._largest)
            truncated = ratio.detach() > self._largest
            return Terms(-weights * advantages * logprobs, ratio, *_none(ratio), weights, truncated)
        limited = ratio if self.options.delta is None else ratio.clamp(max=self.options.delta)
        clipped = ratio.clamp(self._low, self._high)
        loss = -torch.min(limited * advantages, clipped * advantages)
        return Terms(loss, ratio, *self._clipped(ratio.detach(), advantages))

    def clipped(
        self, log_ratio: torch.Tensor, advantages: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor | None:
        """Return which ids have no gradient because their ratio is clipped.

        Args:
            log_ratio: float32 [M].
            advantages, rows: See `terms`.

        Returns:
            bool [M]; None if the variant clips no ratio, or clips a negative advantage on two sides.
        """
        options = self.options
        if options.vllm_importance_sampling_correction or options.loss_type == "cispo" or options.delta:
            return None
        if options.importance_sampling_level == "sequence":
            log_ratio = mean_of_rows(log_ratio, rows)[rows]
        low, high = self._clipped(torch.exp(log_ratio), advantages)
        return low | high

    def _clipped(self, ratio: torch.Tensor, advantages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        high = (ratio > self._high) & (advantages > 0)
        if self.options.delta is not None:
            high |= (ratio > self.options.delta) & (advantages < 0)
        return (ratio < self._low) & (advantages < 0), high

    def _sampling_ratio(self, log_ratio: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        by_row = self.options.vllm_importance_sampling_mode.startswith("sequence")
        return torch.exp(_sum(log_ratio, rows)[rows] if by_row else log_ratio)

    def _limited(self, ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the weights of ratios, and which differ from their ratio."""
        low = self.options.vllm_importance_sampling_clip_min
        high = self.options.vllm_importance_sampling_clip_max
        outside = (ratio < low) | (ratio > high)
        if self.options.vllm_importance_sampling_mode.endswith("mask"):
            return ratio.masked_fill(outside, 0.0), outside
        return ratio.clamp(low, high), outside


def divergence(logprobs: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Return the KL divergence of the policy from the first one for each id, by Schulman's estimator k3.

    http://joschu.net/blog/kl-approx.html, as in TRL's GRPOTrainer. It is never negative.

    Args:
        logprobs: The policy's log-probabilities, float32 [M].
        first: Those of the first policy, float32 [M].
    """
    log_ratio = first - logprobs
    return torch.exp(log_ratio) - log_ratio - 1


def mean_of_rows(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean over the ids of each row, float32.

    Args:
        values: [M].
        rows: Index of the row of each id, int64 [M].
    """
    values = values.float()
    return _sum(values, rows) / _sum(torch.ones_like(values), rows)


def _none(ratio: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    return nothing, nothing


def _sum(values: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the sum over the ids of each row."""
    return values.new_zeros(int(rows.max()) + 1).index_add(0, rows, values)
