"""The viewer: how long pages take, and how much memory the server has.

    python benchmarks/view.py [--quick]

A run of 10,000 rollouts and a rollout of 100 turns and 75,000 tokens are made, served by `swe-core view` in a
process of its own, and opened in the Chromium of the system, whose window is open already. Times begin with
the navigation.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from swe_testing.sample_runs import sample_long, sample_many

ROUNDS = 3 if "--quick" in sys.argv else 7
CHROMIUM = "/usr/bin/chromium"
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_DRAWN = "performance.getEntriesByName('tokens-drawn')[0]?.startTime"
_FRAMES = """
(selector) => new Promise((done) => {
  const box = document.querySelector(selector), times = [];
  let last = performance.now();
  function frame(now) {
    times.push(now - last);
    last = now;
    box.scrollTop += 400;
    if (times.length < 120) requestAnimationFrame(frame);
    else done(times.slice(1));
  }
  requestAnimationFrame(frame);
})
"""


def memory_of(pid: int) -> float:
    """Return the highest resident memory of a process so far, MB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def opened(page: Page, url: str, ready: str, rounds: int = ROUNDS) -> float:
    """Return the median of milliseconds from navigation until the page is painted or its tokens are drawn."""
    times = []
    for _ in range(rounds):
        page.goto(url)
        page.wait_for_selector(ready)
        page.wait_for_function(_PAINT)
        times.append(float(page.evaluate(f"{_DRAWN} ?? {_PAINT}")))
    return statistics.median(times)


def frames(page: Page, box: str) -> list[float]:
    """Return milliseconds between frames while the token canvas of an open page scrolls."""
    found: list[float] = page.evaluate(_FRAMES, box)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder)
        sample_many(runs / "many")
        sample_long(runs / "long")
        # Port 0: the command prints the address that it has.
        command = [str(Path(sys.executable).with_name("swe-core")), "view", str(runs), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            url = (server.stdout.readline() if server.stdout else "").split()[2].rstrip("/")
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1300, "height": 900})
                page.goto("about:blank")
                cold = opened(page, f"{url}/run/many/", ".row", rounds=1)
                many = opened(page, f"{url}/run/many/", ".row")
                tokens = f"{url}/run/long/rollout/long-0/tokens/"
                opened(page, tokens, "#token-stream", rounds=1)  # the server imports numpy
                row = opened(page, tokens, "#token-stream")
                between = frames(page, "#token-stream")
                browser.close()
            memory = memory_of(server.pid)
        finally:
            server.terminate()
            server.wait()
    print(f"10,000 rollouts, first opening: {cold:6.0f} ms (target 1,000)")
    print(f"10,000 rollouts, again:         {many:6.0f} ms")
    print(f"75,000 tokens, all drawn:       {row:6.0f} ms (target 300)")
    late = sum(one > 1000 / 60 * 1.5 for one in between) / len(between)
    print(f"scrolling: median frame {statistics.median(between):.1f} ms, {late:.1%} of the frames late")
    print(f"server memory:                  {memory:6.0f} MB (target 150)")
    print(
        json.dumps(
            {
                "open_many_ms": cold,
                "open_many_again_ms": many,
                "tokens_ms": row,
                "frame_ms": statistics.median(between),
                "late_frames": late,
                "memory_mb": memory,
            }
        )
    )


if __name__ == "__main__":
    main()
