"""Open HTML pages in headless Chromium; measure size and first paint, and count violations that axe-core finds.

`python -m tests.benchmarks pages pages=[<html>,…] axe=<axe.min.js> browser=/usr/bin/chromium` needs Playwright (`pip
install playwright`), the system's Chromium, and axe-core (`npm pack axe-core`, unpacked). It exits with 1 if there are
violations.
"""

import os
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError
from tests.benchmarks.settings import BenchmarkConfig

SCHEMES = ("light", "dark")
WIDTHS = (1280, 390)
"""Pixels, of a screen 800 high."""
FIRST_PAINT = """() => new Promise(resolve => new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (entry.name == 'first-contentful-paint') resolve(entry.startTime);
}).observe({type: 'paint', buffered: true}))"""
AXE = """async () => {
    document.querySelectorAll('details').forEach(each => each.open = true);
    const found = await axe.run(), count = rules => Object.fromEntries(rules.map(rule => [rule.id, rule.nodes.length]));
    return {axe: axe.version, violations: count(found.violations), undecided: count(found.incomplete)};
}"""


def measure_pages(pages: list[Path], axe: Path, program: str) -> dict[str, Any]:
    """Open each page in light and dark, wide and narrow, each time in a new context of the browser."""
    with load_playwright().sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        rows = [measure_page(browser, axe, *case) for case in product(pages, SCHEMES, WIDTHS)]
        found = {"browser": browser.version, "load": os.getloadavg()[0], "pages": rows}
        browser.close()
    return found


def measure_page(browser: Any, axe: Path, page: Path, scheme: str, width: int) -> dict[str, Any]:
    """Open a page once; return its size, the time to its first contentful paint, and axe's findings by rule."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    tab = context.new_page()
    tab.goto(page.absolute().as_uri())
    painted = tab.evaluate(FIRST_PAINT)
    tab.add_script_tag(path=str(axe))
    row = {"page": str(page), "scheme": scheme, "width": width, "megabytes": page.stat().st_size / 1e6}
    row |= {"first_paint_s": painted / 1000, **tab.evaluate(AXE)}
    context.close()
    return row


def load_playwright() -> Any:
    """Import Playwright, which nothing else needs."""
    try:
        return import_module("playwright.sync_api")
    except ModuleNotFoundError as error:
        message = "pages needs Playwright, without its browsers: pip install playwright."
        raise UserError(message, code="package-missing") from error


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure the configured pages; "problem" says how many violations there are.

    Raises:
        UserError: no page is given, a file is missing, or Playwright is.
    """
    pages, axe = [Path(page) for page in config.pages], Path(config.axe)
    if not pages:
        raise UserError("pages=[<html>,…] names no page.", code="file-missing")
    if missing := [file for file in (*pages, axe, Path(config.browser)) if not file.is_file()]:
        raise UserError(f"{missing[0]} is not a file: see pages=, axe= and browser=.", code="file-missing")
    found = measure_pages(pages, axe, config.browser)
    violations = sum(sum(row["violations"].values()) for row in found["pages"])
    return found | {"problem": f"{violations} violations" if violations else None}
