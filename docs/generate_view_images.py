"""Write the images of docs/view.md: pages of a sample training, in the Chromium of the system.

python docs/generate_view_images.py
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from swe_core.view.site import Site
from swe_core.view.static_site import write_site
from swe_testing.sample_runs import sample_training

OUT = Path(__file__).with_name("view")
ROLLOUT = "run/train/rollout/moto-7365-g0-1"
PAGES = {
    "run": "run/train",
    "rollout": ROLLOUT,
    "tokens": f"{ROLLOUT}/tokens",
    "chains": f"{ROLLOUT}/chains",
    "group": "run/train/group/g0",
}
"""Name of the image → path of the page."""


def main() -> None:
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        sample_training(Path(folder) / "train")
        write_site(Site([Path(folder) / "train"], live=False), Path(folder) / "site")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 800}, color_scheme="light")
        for name, path in PAGES.items():
            page.goto((Path(folder) / "site" / path / "index.html").as_uri())
            page.wait_for_timeout(500)
            page.screenshot(path=OUT / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
