"""Symbols drawn with the mouse on the demo's page; by its tests, and for its picture."""

import math
import threading
from contextlib import contextmanager

from onepass.demo.serve import listen, server_of


def arc(x, y, radius, start, stop, points=20):
    turns = [start + (stop - start) * n / points for n in range(points + 1)]
    return [(x + radius * math.cos(turn), y + radius * math.sin(turn)) for turn in turns]


SPOKES = [(0.18, 0.5), (0.82, 0.5)], [(0.5, 0.18), (0.5, 0.82)]
SYMBOLS = {
    "wheel": [arc(0.5, 0.5, 0.32, 0, 2 * math.pi), *SPOKES],
    "wave": [[(0.1 + 0.04 * n, 0.5 + 0.2 * math.sin(0.2 * math.pi * n)) for n in range(21)]],
    "fork": [[(0.5, 0.85), (0.5, 0.45), (0.5, 0.2)], arc(0.5, 0.2, 0.25, 0, math.pi)],
}


@contextmanager
def served(roster, sets):
    """Where the page is."""
    server = server_of(roster, sets)
    with listen(0) as taken:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [taken]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{taken.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(30)
        assert not thread.is_alive()


def draw(tab, strokes, rng):
    """With the mouse, never twice the same: another place, size, slant, and a shaking hand."""
    tab.locator("#paper").scroll_into_view_if_needed()
    box = tab.locator("#paper").bounding_box()
    size, turn = rng.uniform(0.75, 1.05), rng.uniform(-0.12, 0.12)
    off_x, off_y = rng.uniform(0.42, 0.58), rng.uniform(0.42, 0.58)
    for stroke in strokes:
        for n, (x, y) in enumerate(stroke):
            across, down = x - 0.5 + rng.gauss(0, 0.008), y - 0.5 + rng.gauss(0, 0.008)
            turned_x = across * math.cos(turn) - down * math.sin(turn)
            turned_y = across * math.sin(turn) + down * math.cos(turn)
            place = off_x + size * turned_x, off_y + size * turned_y
            tab.mouse.move(box["x"] + box["width"] * place[0], box["y"] + box["height"] * place[1])
            if n == 0:
                tab.mouse.down()
        tab.mouse.up()


def teach(tab, name, rng, strokes=None):
    draw(tab, strokes or SYMBOLS[name], rng)
    tab.fill("#name", name)
    tab.click("#teach")
    told = "name => document.getElementById('note').textContent.includes(`“${name}”`)"
    tab.wait_for_function(told, arg=name)
