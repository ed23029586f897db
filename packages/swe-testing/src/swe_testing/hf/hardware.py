"""Some flavors of hardware for jobs and Spaces, as the API describes them."""

from __future__ import annotations

from collections.abc import Mapping


def _flavor(
    name: str, pretty: str, cpu: int, ram: int, disk: int, micro: int, accelerator: Mapping[str, str] | None
) -> dict[str, object]:
    return {
        "name": name,
        "prettyName": pretty,
        "cpu": f"{cpu} vCPU",
        "ram": f"{ram} GB",
        "ephemeralStorage": f"{disk} GB",
        "accelerator": accelerator,
        "unitCostMicroUSD": micro,
        "unitCostUSD": micro / 1e6,
        "unitLabel": "minute",
    }


def _gpu(model: str, quantity: int, vram: int) -> dict[str, str]:
    return {
        "type": "gpu",
        "model": model,
        "quantity": str(quantity),
        "vram": f"{vram} GB",
        "manufacturer": "Nvidia",
    }


HARDWARE = {
    str(flavor["name"]): flavor
    for flavor in (
        _flavor("cpu-basic", "CPU Basic", 2, 16, 20, 167, None),
        _flavor("cpu-upgrade", "CPU Upgrade", 8, 32, 50, 500, None),
        _flavor("cpu-performance", "CPU Performance", 32, 256, 100, 31667, None),
        _flavor("cpu-xl", "CPU XL", 16, 124, 1000, 16667, None),
        _flavor("t4-small", "Nvidia T4 - small", 4, 15, 50, 6667, _gpu("T4", 1, 16)),
        _flavor("l4x1", "1x Nvidia L4", 8, 30, 400, 13333, _gpu("L4", 1, 24)),
        _flavor("l4x4", "4x Nvidia L4", 48, 186, 3200, 63333, _gpu("L4", 4, 96)),
        _flavor("a10g-small", "Nvidia A10G - small", 4, 15, 110, 16667, _gpu("A10G", 1, 24)),
        _flavor("a10g-large", "Nvidia A10G - large", 12, 46, 200, 25000, _gpu("A10G", 1, 24)),
        _flavor("a10g-largex2", "2x Nvidia A10G - large", 24, 92, 1000, 50000, _gpu("A10G", 2, 48)),
        _flavor("a100-large", "Nvidia A100 - large", 12, 142, 1000, 41667, _gpu("A100", 1, 80)),
        _flavor("h200", "1x Nvidia H200", 23, 256, 3000, 83333, _gpu("H200", 1, 141)),
    )
}
"""Name → description. The sizes and prices of the real ones change."""
