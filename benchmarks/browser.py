"""How fast an exported page speaks in a browser.

    npm install onnxruntime-web@1.30.0
    pip install playwright
    python benchmarks/browser.py RUN [--rounds 5] [--runtime FOLDER] [--out benchmarks/results/browser.md]

RUN is a run of the task speech whose recipe names a vocoder. It is exported as a page with each --dtype. In each round
each page is opened anew in Chromium, headless and on one core, and speaks thirty sentences, one after the other.
`ready` is the time by the clock from opening to the end of loading, `rtf` that of speaking, from a text to its samples,
over the length of what was spoken, as medians over rounds.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from phonate.tasks.speech.export import export
from phonate.tasks.speech.graph import DTYPES
from phonate.training.checkpoints import best_or_latest
from phonate.workflows.demo.embedded import SENTENCES

SPEAK = """async texts => {
  let samples = 0;
  const before = performance.now();
  for (const text of texts) samples += (await window.phonate.speak(text)).length;
  return [(performance.now() - before) / 1000, samples / window.phonate.settings.sampleRate];
}"""


def opened(browser: Any, page: Path) -> tuple[float, float]:
    """Seconds until the page is ready, and for a second of speech."""
    before = time.perf_counter()
    tab = browser.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_selector("#go:enabled", timeout=120_000)
    ready = time.perf_counter() - before
    tab.evaluate(SPEAK, SENTENCES[:1])  # warms up
    spent, made = tab.evaluate(SPEAK, SENTENCES)
    tab.close()
    return ready, spent / made


def main() -> None:
    parser = argparse.ArgumentParser(description="speed of exported pages in a browser")
    parser.add_argument("run", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runtime", type=Path)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        pages = {
            dtype: export(best_or_latest(args.run), Path(folder) / dtype, "browser", dtype=dtype, runtime=args.runtime)[
                0
            ]
            for dtype in DTYPES
        }
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found: dict[str, list[tuple[float, float]]] = {dtype: [] for dtype in DTYPES}
        for number in range(args.rounds):
            for dtype in DTYPES[number % 3 :] + DTYPES[: number % 3]:
                found[dtype].append(opened(browser, pages[dtype]))
        sizes = {dtype: page.stat().st_size / 1e6 for dtype, page in pages.items()}
        lines = [
            f"`python benchmarks/browser.py RUN --rounds {args.rounds}`: {len(SENTENCES)} sentences, one core "
            f"({platform.machine()}, load {os.getloadavg()[0]:.1f}), Chromium {browser.version}.",
            "",
            "| | page, MB | ready, s | rtf |",
            "|---|---|---|---|",
        ]
        browser.close()
    for dtype, values in found.items():
        ready, rtf = (statistics.median(column) for column in zip(*values, strict=True))
        lines.append(f"| {dtype} | {sizes[dtype]:.1f} | {ready:.1f} | {rtf:.3f} |")
    print("\n".join(lines))
    if args.out is not None:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
