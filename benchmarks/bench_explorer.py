"""The explorer in a headless browser: CPU time of the page's main thread per frame, against the 16.7 ms of 60 Hz.

    python benchmarks/bench_explorer.py

The time is the thread's own, so that other work on the machine counts little. It includes script, style, layout and
painting. Needs Chromium and playwright.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import sync_playwright

PAGE = Path(__file__).parents[1] / "docs" / "explorer.html"
COUNT = """(() => {
  const ask = window.requestAnimationFrame.bind(window);
  window.frameTimes = [];
  window.requestAnimationFrame = (f) => ask((now) => (f(now), window.frameTimes.push(now)));
})()"""
"""Notes when the page's frames began."""
WIDTHS = (1280, 390)


def measured(page: Any, action: Callable[[], None]) -> str:
    """A row of the table: frames, median interval, and CPU time per frame of everything and of script, all in ms."""
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable", {"timeDomain": "threadTicks"})

    def now() -> tuple[float, float]:
        metrics = {one["name"]: one["value"] for one in client.send("Performance.getMetrics")["metrics"]}
        return metrics["TaskDuration"], metrics["ScriptDuration"]

    page.evaluate("frameTimes.length = 0")
    before = now()
    action()
    after = now()
    times = page.evaluate("frameTimes")
    interval = median(later - earlier for earlier, later in pairwise(times))
    everything, script = (1e3 * (b - a) / len(times) for a, b in zip(before, after))
    return f"{len(times)} | {interval:.1f} | {everything:.1f} | {script:.1f}"


def drag(page: Any) -> None:
    """A token of three sequences of six tokens, moved 200 times."""
    box = page.locator("[data-id=x0-1] .touch").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for k in range(200):
        page.mouse.move(x - 40 + k % 80, y + 30 - k % 60)
        page.wait_for_timeout(16)
    page.mouse.up()


def measure(browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.add_init_script(COUNT)
    page.goto(PAGE.as_uri())
    print(f"| {width} | playing | {measured(page, lambda: page.wait_for_timeout(5000))} |")
    page.select_option("#sequences", "3")
    page.select_option("#per-sequence", "6")
    page.wait_for_timeout(3000)
    print(f"| {width} | dragging, 3 × 6 tokens | {measured(page, lambda: drag(page))} |")
    page.close()


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("Chromium must be installed to measure the page in it, but it is not.")
    print("| width | what | frames | median interval | CPU per frame | of it script |\n|---|---|---|---|---|---|")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for width in WIDTHS:
            measure(browser, width)
        browser.close()


if __name__ == "__main__":
    main()
