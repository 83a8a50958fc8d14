"""The demo's page in a real browser: drawn on with the mouse, by keys, on a phone, in the dark."""

import base64
import http.client
import random
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from onepass.config import override
from onepass.models import export
from onepass.recipes import make_config
from onepass.training import train

pytest.importorskip("fastapi", reason='the page needs FastAPI: pip install "onepass[demo]"')
pytest.importorskip("playwright", reason="there is nothing to drive a browser with")

from by_mouse import SYMBOLS, draw, served, teach
from onepass.demo import play
from onepass.demo.play import SymbolSet
from onepass.demo.roster import open_roster

SETS = {play.GLYPHS: SymbolSet(play.GLYPHS, 4)}


@pytest.fixture(scope="module")
def url(novices):
    """With models that have learned next to nothing."""
    with served(open_roster(list(novices.values())), SETS) as url:
        yield url


@contextmanager
def opened(browser, url, width=1280, scheme="light", **options):
    """A visitor; whatever the browser complained of fails the test at the end."""
    viewport = {"width": width, "height": 844}
    context = browser.new_context(viewport=viewport, color_scheme=scheme, **options)
    tab = context.new_page()
    said, asked = [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(url)
    tab.wait_for_selector("#models label")
    yield tab
    assert said == []
    assert [each for each in asked if not each.startswith(url)] == []
    context.close()


def shown(tab) -> dict[str, int]:
    """Names on the strip, and the drawings of each."""
    return tab.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#strip li')].map(item =>"
        " [item.querySelector('.name').firstChild.data, item.querySelectorAll('canvas').length]))"
    )


def settled(tab):
    """The answer to what is on the paper, once it is said aloud."""
    tab.wait_for_function("() => document.getElementById('spoken').textContent !== ''")
    return tab.inner_text("#answer")


@pytest.mark.slow
def test_three_symbols_drawn_three_times_are_known(browser, tmp_path):
    settings = ["steps=40", "benchmark.bank=400", "evaluation_episodes=16"]
    config = override(make_config("quickstart", "glyphs", "pn"), settings)
    train(config, tmp_path / "run", "cpu", lambda line: None)
    export(tmp_path / "run", tmp_path / "model")
    rng = random.Random(0)
    with served(open_roster([str(tmp_path / "model")]), SETS) as url, opened(browser, url) as tab:
        for name in [*SYMBOLS] * 3:
            teach(tab, name, rng)
        assert shown(tab) == dict.fromkeys(SYMBOLS, 3)
        for name, strokes in SYMBOLS.items():
            for _ in range(2):
                tab.evaluate("document.getElementById('spoken').textContent = ''")
                draw(tab, strokes, rng)
                assert settled(tab) == name
                tab.keyboard.press("Escape")


def test_the_answer_changes_while_the_pen_is_down(browser, url):
    rng = random.Random(0)
    with opened(browser, url) as tab:
        teach(tab, "wave", rng)
        box = tab.locator("#paper").bounding_box()
        tab.mouse.move(box["x"] + 50, box["y"] + 50)
        tab.mouse.down()
        tab.mouse.move(box["x"] + 150, box["y"] + 90, steps=5)
        tab.wait_for_selector("#bars li")
        assert tab.inner_text("#answer") == "wave"
        assert tab.inner_text("#spoken") == ""
        tab.mouse.up()
        assert settled(tab) == "wave"
        tab.click("#clear")
        assert tab.locator("#bars li").count() == 0


def test_two_browsers_do_not_see_each_other(browser, url):
    rng = random.Random(0)
    with opened(browser, url) as one, opened(browser, url) as other:
        teach(one, "wheel", rng)
        teach(other, "wave", rng)
        for tab, name in ((one, "wheel"), (other, "wave")):
            tab.reload()
            tab.wait_for_selector("#strip li")
            assert shown(tab) == {name: 1}
            draw(tab, SYMBOLS["wheel"], rng)
            assert settled(tab) == name


def test_undo_forget_and_start_over(browser, url):
    rng = random.Random(0)
    hostile = "<img src=x onerror=alert(1)>"
    with opened(browser, url) as tab:
        for name in ("wheel", "wave", "wave"):
            teach(tab, name, rng)
        teach(tab, hostile, rng, SYMBOLS["fork"])
        assert shown(tab) == {"wheel": 1, "wave": 2, hostile: 1}
        tab.get_by_role("button", name="Undo").click()
        tab.wait_for_function("() => document.querySelectorAll('#strip li').length === 2")
        tab.get_by_role("button", name="Forget wave").click()
        tab.wait_for_function("() => document.querySelectorAll('#strip li').length === 1")
        assert tab.inner_text("#examples") == "1"
        # its drawings come back with it, also after the page was opened again
        tab.reload()
        tab.wait_for_selector("#strip li")
        tab.get_by_role("button", name="Undo").click()
        tab.wait_for_function("() => document.querySelectorAll('#strip li').length === 2")
        inked = "[...document.querySelectorAll('#strip canvas')].every(each => each.width === 105)"
        assert tab.evaluate(inked)
        tab.get_by_role("button", name="Forget all").click()
        tab.wait_for_selector("#empty", state="visible")
        assert shown(tab) == {}
        assert tab.locator("#all").is_disabled()


def dark_pixels(tab, stroke):
    """Of a drawing with one stroke as the learner gets it: its columns and its rows."""
    script = "async stroke => [...(await import('/page/paper.js')).bitmap([stroke])]"
    grey = tab.evaluate(script, [list(point) for point in stroke])
    assert len(grey) == 105 * 105
    assert min(grey) < 10
    assert max(grey) == 255
    return zip(*((n % 105, n // 105) for n, each in enumerate(grey) if each < 128), strict=True)


def test_what_the_learner_sees_is_inked_like_omniglot(browser, url):
    """In the middle, the longer edge 65 of 105 pixels, a line 5 wide, black on white."""
    flat = [(0.1, 0.1), (0.3, 0.1), (0.3, 0.15), (0.1, 0.15), (0.1, 0.1)]
    with opened(browser, url) as tab:
        for stroke, wide, high in [
            (flat, 65, 5 + 60 / 4),
            ([(0.2, 0.9), (0.8, 0.9)], 65, 5),
            ([(0.3, 0.4), (0.3, 0.5)], 5, 55),
            ([(0.9, 0.9)], 5, 5),
        ]:
            xs, ys = dark_pixels(tab, stroke)
            assert max(xs) - min(xs) + 1 == pytest.approx(wide, abs=1)
            assert max(ys) - min(ys) + 1 == pytest.approx(high, abs=1)
            assert (min(xs) + max(xs)) / 2 == pytest.approx(52, abs=1)
            assert (min(ys) + max(ys)) / 2 == pytest.approx(52, abs=1)


def test_everything_works_with_the_keyboard(browser, url):
    with opened(browser, url) as tab:
        reached = []
        for _ in range(12):
            tab.keyboard.press("Tab")
            reached.append(tab.evaluate("document.activeElement.id || document.activeElement.name"))
            ring = tab.evaluate(
                "(() => { const at = document.activeElement;"
                " const seen = at.type === 'radio' ? at.nextSibling : at;"
                " return at === document.body ? '3px' : getComputedStyle(seen).outlineWidth })()"
            )
            assert ring == "3px"
            if reached[-1] == "paper":
                tab.keyboard.press("Space")
                for key in ("ArrowRight", "ArrowDown", "ArrowLeft"):
                    for _ in range(4):
                        tab.keyboard.press(key)
                tab.keyboard.press("Space")
            if reached[-1] == "name":
                tab.keyboard.type("hook")
                tab.keyboard.press("Enter")
                tab.wait_for_selector("#strip li")
        assert shown(tab) == {"hook": 1}
        for each in ("paper", "model", "name", "teach", "clear", "undo", "all", "set", "play"):
            assert each in reached
        # Enter on the paper teaches too, Esc clears, and what is missing is said
        tab.focus("#paper")
        for key in ("Space", "ArrowRight", "Space", "Enter"):
            tab.keyboard.press(key)
        tab.wait_for_function("() => document.querySelectorAll('#strip canvas').length === 2")
        for key in ("Space", "ArrowRight", "Escape", "Enter"):
            tab.keyboard.press(key)
        assert tab.inner_text("#note") == "Draw something first."


def test_the_switch_shows_another_learner_of_the_same_lesson(browser, url):
    rng = random.Random(0)
    with opened(browser, url) as tab:
        teach(tab, "wheel", rng)
        teach(tab, "wave", rng)
        assert tab.inner_text("#growth") == "+ 0\u00a0B an example"
        held = tab.inner_text("#bytes")
        tab.get_by_text("transformer", exact=True).click()
        assert tab.inner_text("#growth") == "+ 128\u00a0B an example"
        assert tab.inner_text("#bytes") == "256\u00a0B" != held
        assert tab.inner_text("#examples") == "2"
        draw(tab, SYMBOLS["wheel"], rng)
        assert settled(tab) in ("wheel", "wave")


def test_a_set_is_played_and_drawn_as_it_goes(browser, url):
    with opened(browser, url) as tab:
        for name in ("pn", "transformer"):
            tab.get_by_text(name, exact=True).click()
            tab.click("#play")
            tab.wait_for_function("() => document.querySelectorAll('.symbol.known').length === 4")
            tab.wait_for_function("() => document.getElementById('play').textContent === 'Play'")
            assert tab.inner_text("#told").startswith(f"{name} on drawn glyphs, 4 symbols: ")
        rows = "[...document.querySelectorAll('.cells')].map(row => row.children.length)"
        assert tab.evaluate(rows) == [4, 3, 2, 1]
        lines = "[...document.querySelectorAll('polyline')].map(line => line.points.length)"
        assert tab.evaluate(lines) == [4, 4]
        assert tab.locator("#strip li").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_fits_a_screen(width, scheme, browser, url):
    rng = random.Random(0)
    with opened(browser, url, width, scheme) as tab:
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        blank = base64.b64encode(bytes(11_025)).decode()
        for name in ["W" * 40, *["wave"] * 12, "字 " * 20]:
            tab.request.post(f"{url}api/teach", data={"label": name, "image": blank})
        tab.reload()
        tab.wait_for_selector("#strip li")
        draw(tab, SYMBOLS["wheel"], rng)
        settled(tab)
        tab.click("#play")
        tab.wait_for_function("() => document.querySelectorAll('.symbol.known').length === 4")
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        inside = "[...document.querySelectorAll('main *')].every(each =>"
        inside += " each.getBoundingClientRect().right <= innerWidth + 1)"
        assert tab.evaluate(inside)


def test_a_finger_draws(browser, url):
    with opened(browser, url, 390, has_touch=True, is_mobile=True) as tab:
        tab.tap("#paper")
        tab.fill("#name", "dot")
        tab.tap("#teach")
        tab.wait_for_selector("#strip li")
        assert shown(tab) == {"dot": 1}


LARGE = 50_000_000


@pytest.mark.slow
def test_fifty_megabytes_from_the_page_are_refused_and_the_server_goes_on(browser, url):
    with opened(browser, url) as tab:
        # in another tab: a browser writes a line about every 4xx
        asking = tab.context.new_page()
        asking.goto(url)
        found = asking.evaluate(
            "async size => { const headers = {'Content-Type': 'application/json'};"
            " const sent = {method: 'POST', headers, body: ' '.repeat(size)};"
            " const answer = await fetch('/api/teach', sent);"
            " return [answer.status, (await answer.json()).error] }",
            LARGE,
        )
        assert found == [413, "body: expected at most 65536 bytes"]
        teach(tab, "wave", random.Random(0))


@pytest.mark.parametrize("parts", [1, 50])
def test_fifty_megabytes_are_refused_whole_and_in_parts(url, parts):
    connection = http.client.HTTPConnection(url.removeprefix("http://").rstrip("/"), timeout=60)
    body = b" " * LARGE if parts == 1 else iter([b" " * (LARGE // parts)] * parts)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/api/teach", body, headers, encode_chunked=parts > 1)
    answer = connection.getresponse()
    assert answer.status == 413
    assert b"65536 bytes" in answer.read()
    connection.close()


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(novices, tmp_path):
    (tmp_path / "run").symlink_to(novices["pn"])
    command = [sys.executable, "-m", "onepass", "demo", "run", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, cwd=tmp_path, text=True, **pipes)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("draw at http://127.0.0.1:")
        assert line.endswith(" with run\n")
        address = line.split("//")[1].split()[0]
        # the socket listens already, so this waits for the server to begin
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", "/")
        assert b"Teach it a symbol" in connection.getresponse().read()
        connection.close()
    finally:
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "onepass: stopped\n"
