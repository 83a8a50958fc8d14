"""The page: complete, self-contained, escaped, and no wider than the screen it is read on."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

from onepass.benchmarks.base import draw
from onepass.config import Component, to_json
from onepass.forgetting import forgetting_of_run
from onepass.learner import encode_episodes, probe
from onepass.report import examples
from onepass.report.drawing import in_bytes
from onepass.report.entries import labels, read_entry
from onepass.report.page import render, report
from onepass.run import load_run
from onepass.seeds import generator
from onepass.training import train

SECTIONS = [
    "results",
    "learning",
    "sizes",
    "forgetting",
    "episodes",
    "completion",
    "rotation",
    "curves",
    "reads",
    "runs",
]
SMALL = {"encoder": "cnn_small", "width": 16, "layers": 2, "heads": 2}
RUNS = {
    "transformer": ("transformer", SMALL, {}),
    "linear": ("linear_transformer", SMALL, {}),
    "oml": ("oml", {"encoder": "cnn_small", "hidden": 16}, {}),
    "completion": ("transformer", SMALL, {"view": "completion"}),
    "rotation": ("transformer", SMALL, {"view": "rotation"}),
}


class Page(HTMLParser):
    """What a browser makes of it: tags with their attributes, and the text between them."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, name: str) -> list[dict]:
        return [attributes for tag, attributes in self.tags if tag == name]

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


@pytest.fixture(scope="module")
def runs(tiny, tmp_path_factory) -> dict[str, Path]:
    """Two ways to learn the same classes, and one run of everything else that can be asked."""
    folder = tmp_path_factory.mktemp("runs")
    for name, (learner, options, view) in RUNS.items():
        config = tiny(
            benchmark=Component("glyphs", view),
            learner=Component(learner, options),
            steps=4,
            log_every=1,
            evaluate_every=2,
        )
        train(config, folder / name, "cpu", lambda line: None)
    train(tiny(), folder / "sine", "cpu", lambda line: None)
    for name in ("transformer", "linear"):
        forgetting_of_run(folder / name, {}, 4, 0, torch.device("cpu"))
    forgetting_of_run(folder / "sine", {"tasks": 20}, 4, 0, torch.device("cpu"))
    return {path.name: path for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    report(list(runs.values()), path)
    return path


def page_of(*paths: Path) -> Page:
    entries = [read_entry(path) for path in paths]
    named = zip(entries, labels(entries), strict=True)
    return Page(render([replace(entry, label=label) for entry, label in named]))


def sections(page: Page) -> list[str]:
    return [name for name in page.ids() if name in SECTIONS]


def test_all_there_is_to_see_is_on_the_page(page):
    seen = Page(page.read_text())
    assert sections(seen) == SECTIONS
    # curves of 4 questions; 2 sizes; 3 x 2 of forgetting and one comparison; 2 sheets;
    # 1 completion; 1 scatter; 3 sines; 5 runs that attend
    assert len(seen.all("figure")) == 4 + 2 + 7 + 2 + 1 + 1 + 3 + 5
    assert len(seen.all("figcaption")) == len(seen.all("figure"))
    for words in (
        "error while meta-training; the mark at the end is meta-test",
        "error against bytes of state; lower left is better",
        "five tasks a line",
        "columns darken where it forgets",
        "right answers lie on the line",
        "the half below the line is answered",
        "dashes that cover the line are right",
        "from its own task",
    ):
        assert words in seen.text, words


def test_the_page_needs_nothing_beside_it(page):
    text = page.read_text()
    seen = Page(text)
    assert not seen.all("script")
    assert not seen.all("link")
    assert len(text) < 3_000_000
    for _, attributes in seen.tags:
        for key in ("src", "href", "xlink:href"):
            assert attributes.get(key, "#").startswith(("#", "data:image/png;base64,"))
    assert set(re.findall(r"https?://[^\s\"')]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "url(http" not in text


def test_anchors_lead_somewhere_and_no_two_are_the_same(page):
    seen = Page(page.read_text())
    ids = seen.ids()
    assert len(set(ids)) == len(ids)
    for link in seen.all("a"):
        assert link["href"].removeprefix("#") in ids
    assert all(image.get("alt") for image in seen.all("img"))
    for _, attributes in seen.tags:
        for target in re.findall(r"url\(#(\w+)\)", json.dumps(attributes)):
            assert target in ids
        reference = attributes.get("xlink:href", "data:")
        assert reference.startswith("data:") or reference.removeprefix("#") in ids


HOSTILE = "<script>alert(1)</script>--><b>&\"'$\\frac{$"


def test_nothing_of_a_run_reaches_the_page_unescaped(tiny, tmp_path):
    config = to_json(tiny(recipe=HOSTILE))
    for n in (1, 2):
        folder = tmp_path / f"{n} {HOSTILE.replace('/', '|')}"
        folder.mkdir()
        score = {"error": 0.1, "stderr": 0.01}
        strange = dict.fromkeys(("device", "command", "commit", "date"), HOSTILE)
        curve = [{"step": step, "error": 0.1} for step in (1, 2)]
        result = {"meta_test": score, "curve": curve, "config": config, **strange}
        (folder / "result.json").write_text(json.dumps(result))
        (folder / "environment.json").write_text(json.dumps({HOSTILE: HOSTILE}))
        (folder / "forgetting.json").write_text(json.dumps({"tasks": HOSTILE}))
    seen = page_of(*sorted(tmp_path.iterdir()))
    assert not seen.all("script")
    assert not seen.all("b")
    assert HOSTILE in seen.text
    assert sections(seen) == ["results", "learning", "sizes", "runs"]


@pytest.mark.parametrize(
    ("gone", "sections_left"),
    [
        ("weights.safetensors", "results learning forgetting runs"),
        ("metrics.jsonl", "results learning forgetting episodes reads runs"),
        ("forgetting.json", "results learning episodes reads runs"),
        ("result.json", "results learning forgetting episodes reads runs"),
        ("environment.json", "results learning forgetting episodes reads runs"),
        ("config.json", "results learning forgetting runs"),
    ],
)
def test_a_run_that_lacks_a_file_gives_a_smaller_page(gone, sections_left, runs, tmp_path):
    shutil.copytree(runs["transformer"], tmp_path / "run")
    (tmp_path / "run" / gone).unlink()
    assert sections(page_of(tmp_path / "run")) == sections_left.split()


@pytest.mark.parametrize("name", ["result.json", "environment.json", "forgetting.json"])
@pytest.mark.parametrize("content", ["", "[1]", '{"meta_test": 3, "tasks": "x", "config": 1}'])
def test_a_damaged_file_is_noted_and_the_rest_is_shown(name, content, runs, tmp_path):
    shutil.copytree(runs["transformer"], tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    seen = page_of(tmp_path / "run")
    assert {"results", "learning", "episodes", "runs"} <= set(sections(seen))


@pytest.mark.parametrize("part", ["error", "curve", "groups"])
def test_forgetting_that_does_not_fit_together_is_left_out(part, runs, tmp_path):
    shutil.copytree(runs["transformer"], tmp_path / "run")
    found = json.loads((tmp_path / "run" / "forgetting.json").read_text())
    found[part] = [{"first": 1, "last": 1, "seen": [1]}] if part == "groups" else found[part][1:]
    (tmp_path / "run" / "forgetting.json").write_text(json.dumps(found))
    seen = page_of(tmp_path / "run")
    assert "forgetting" not in sections(seen)
    assert "forgetting.json is damaged: its parts do not fit each other" in seen.text


def test_a_result_file_is_enough(runs, tmp_path):
    shutil.copy(runs["transformer"] / "result.json", tmp_path / "kept.json")
    assert sections(page_of(tmp_path / "kept.json")) == ["results", "learning", "runs"]


def test_a_table_checked_by_hand(tiny, tmp_path):
    result = {
        "meta_test": {"error": 0.12876, "stderr": 0.00144},
        "meta_train": {"error": None, "stderr": None},
        "parameters": 9_828_900,
        "state_bytes": 3_276_800,
        "steps": 50_000,
        "seconds": 1_320.0,
        "device": "NVIDIA H200",
        "commit": "0123456789abcdef-dirty",
        "config": to_json(tiny(benchmark=Component("omniglot"), seed=7)),
    }
    (tmp_path / "kept.json").write_text(json.dumps(result))
    text = page_of(tmp_path / "kept.json").text
    row = "omniglot, 3 tasks x 2 shots 12.88 ± 0.14 % 9,828,900 3.28 MB 50,000 22 min NVIDIA H200 7"
    for cell in (*row.split(), "0123456789-dirty"):
        assert cell in text
    assert "12.88 ± 0.14 %" in text
    assert in_bytes(999) == "999 B"
    assert in_bytes(1_000) == "1 kB"


def test_runs_are_named_by_what_sets_them_apart(runs, tmp_path):
    names = ["linear", "transformer", "completion", "rotation"]
    told = labels([read_entry(runs[name]) for name in names])
    assert told[0] == "linear_transformer"
    views = ["glyphs", "glyphs, completion", "glyphs, rotation"]
    assert told[1:] == [f"transformer, {view}" for view in views]
    shutil.copytree(runs["linear"], tmp_path / "again")
    assert labels([read_entry(runs["linear"]), read_entry(tmp_path / "again")]) == [
        "linear",
        "again",
    ]


def test_the_sheet_shows_the_answers_that_the_learner_gives(runs):
    entry = replace(read_entry(runs["transformer"]), label="it")
    answered = examples.answered(0, entry)
    assert answered is not None
    config, benchmark, learner = load_run(runs["transformer"])
    rng = generator(torch.device("cpu"), config.seed, "report")
    episodes = draw(benchmark, learner.target, "test", config.spec, examples.EPISODES, rng)
    with torch.no_grad():
        (prediction,) = probe(learner, episodes, [config.spec.length])
    assert episodes.codes is not None
    for episode, sheet in enumerate(examples.sheets([answered])):
        tokens = prediction[episode].argmax(-1)
        expected = (tokens == episodes.test.y[episode]).tolist()
        shown = [verdict.right for row in sheet.rows for q in row.asked for verdict in q.verdicts]
        assert shown == expected
        assert f"it {sum(expected)} of {len(expected)} right" in sheet.title


def test_a_question_about_reading_that_nobody_asked(runs, tmp_path):
    with pytest.raises(ValueError, match=r"--query 7: .*transformer is asked 6, counted from 1"):
        report([runs["transformer"]], tmp_path / "page.html", query=7)


def test_what_is_no_run_is_said_in_one_line(answer, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text("{}")
    for given, said in {
        "nowhere": "nowhere is not a run: there is no such folder or file",
        "empty": "empty is not a run: it has no config.json and no result.json",
        "other.json": "other.json is not a run: it has no config of a run in it",
    }.items():
        ended = answer("report", given)
        assert ended.returncode == 2
        assert ended.stderr.strip() == f"onepass: {said}"
        assert not (tmp_path / "report.html").exists()


def test_the_command_says_where_the_page_is(command, tmp_path, runs):
    ended = command("report", str(runs["sine"]), "--out", "pages/sine.html")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("page: pages/sine.html (0.")
    assert "shifted twin" in (tmp_path / "pages" / "sine.html").read_text()


@pytest.mark.parametrize("name", ["transformer", "linear"])
def test_reading_is_shared_out_over_the_stream(name, runs):
    config, benchmark, learner = load_run(runs[name])
    rng = torch.Generator().manual_seed(0)
    episodes = draw(benchmark, learner.target, "test", config.spec, 2, rng)
    with torch.no_grad():
        shares = learner.read_weights(encode_episodes(learner, episodes))
    assert shares is not None
    assert shares.shape == (2, 2, 6, 6)
    torch.testing.assert_close(shares.sum(-1), torch.ones(2, 2, 6))
    _, _, other = load_run(runs["oml"])
    assert other.read_weights(encode_episodes(other, episodes)) is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_the_page_fits_a_screen_in_a_real_browser(width, scheme, browser, page):
    context = browser.new_context(viewport={"width": width, "height": 844}, color_scheme=scheme)
    tab = context.new_page()
    said, asked = [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto(page.as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert tab.evaluate("[...document.images].every(image => image.naturalWidth > 0)")
    boxes = tab.evaluate(
        "[...document.querySelectorAll('figure')].map(figure => {"
        " const inside = figure.querySelector('svg, table').getBoundingClientRect(),"
        " box = figure.getBoundingClientRect();"
        " return [box.left, box.right, inside.width, inside.height] })"
    )
    assert len(boxes) == 25
    for left, right, inner_width, inner_height in boxes:
        assert left >= 0
        assert right <= width
        assert inner_width > 150
        assert inner_height > 100
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [page.as_uri()]
    context.close()


def test_the_page_prints(browser, page, tmp_path):
    tab = browser.new_page(color_scheme="dark")
    tab.goto(page.as_uri())
    tab.emulate_media(media="print")
    # the width of A4 within its margins, in CSS pixels
    tab.set_viewport_size({"width": 688, "height": 1000})
    assert tab.evaluate("document.documentElement.scrollWidth") <= 688
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert tab.pdf(format="A4").startswith(b"%PDF")
    tab.close()
