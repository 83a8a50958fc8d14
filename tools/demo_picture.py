"""Take the picture of the demo: four symbols taught with the mouse, and an alphabet played.

python tools/demo_picture.py MODEL... --out docs/demo.png
"""

import argparse
import random
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from onepass.demo.play import symbol_sets
from onepass.demo.roster import open_roster

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from by_mouse import SYMBOLS, draw, served, teach

FINISHED = "() => document.getElementById('play').textContent === 'Play'"


def take_picture(tab, url: str, alphabet: str, models: list[str], out: Path) -> None:
    rng = random.Random(1)
    tab.goto(url)
    tab.wait_for_selector("#models label")
    for name in [*SYMBOLS] * 3:
        teach(tab, name, rng)
    tab.select_option("#set", alphabet)
    # the first one last, so that its answers are those on show
    for model in models[::-1]:
        tab.locator("#models").get_by_text(model, exact=True).click()
        tab.click("#play")
        tab.wait_for_function(FINISHED, timeout=120_000)
    draw(tab, SYMBOLS["wheel"], rng)
    tab.wait_for_function("() => document.getElementById('spoken').textContent !== ''")
    tab.evaluate("scrollTo(0, 0)")
    tab.wait_for_timeout(800)  # bars glide to their length
    tab.screenshot(path=out, full_page=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*")
    parser.add_argument("--alphabet", default="Tibetan")
    parser.add_argument("--width", type=int, default=1280)
    parser.add_argument("--scheme", choices=["light", "dark"], default="light")
    parser.add_argument("--out", type=Path, default=Path("demo.png"))
    given = parser.parse_args()
    roster = open_roster(given.models)
    with served(roster, symbol_sets()) as url, sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        viewport = {"width": given.width, "height": 900}
        tab = browser.new_page(viewport=viewport, color_scheme=given.scheme)
        take_picture(tab, url, given.alphabet, list(roster), given.out)
        browser.close()


if __name__ == "__main__":
    main()
