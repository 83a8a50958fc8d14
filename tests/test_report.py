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
from onepass.plots import in_bytes
from onepass.report import examples
from onepass.report.entries import expanded, labels, read_entry
from onepass.report.methods import Method, compared, methods
from onepass.report.page import render, report
from onepass.run import load_run
from onepass.seeds import generator
from onepass.training import train

SECTIONS = [
    "results",
    "methods",
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
        # cells stand apart
        self.words.append(" " if tag in ("td", "th") else "")

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
    assert sections(seen) == ["results", "methods", "learning", "sizes", "runs"]


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


def kept(folder: Path, config, errors: list[float], **changes) -> Path:
    """A result file with these errors of its episodes."""
    path = folder / f"{config.learner.name}-{config.seed}.json"
    score = {"error": sum(errors) / len(errors), "stderr": 0.01, "episode_error": errors}
    result = {"meta_test": score, "device": "cpu", "config": to_json(config), **changes}
    path.write_text(json.dumps(result))
    return path


def test_seeds_are_summed_up_and_methods_compared_on_the_same_episodes(tiny, tmp_path):
    errors = {
        "transformer": [[0.2, 0.4], [0.4, 0.4]],
        "pn": [[0.1, 0.1], [0.0, 0.2]],
    }
    paths = []
    for name, seeds in errors.items():
        for seed, found in enumerate(seeds):
            asked, learner = Component("glyphs"), Component(name)
            config = tiny(benchmark=asked, learner=learner, seed=seed, evaluation_episodes=2)
            paths.append(kept(tmp_path, config, found))
    seen = page_of(*paths)
    assert "methods" in seen.ids()
    # 30 and 40 %; 10 and 10 %; 10 and 30 points below at seed 0, 40 and 20 at seed 1
    assert "transformer 2 35.00 ± 7.07 % the reference" in seen.text
    assert "minus transformer" in seen.text
    assert "pn 2 10.00 ± 0.00 % -25.00 ± 5.00 points 4" in seen.text
    # one of each is held to its episodes
    alone = page_of(paths[0], paths[2])
    assert "pn 1 10.00 ± 1.00 % -20.00 ± 10.00 points 2" in alone.text
    # errors of other episodes, or of not all of them, are not compared
    assert "pn 1 10.00 ± 1.00 % none in common" in page_of(paths[0], paths[3]).text
    for broken in ('"episode_error": [0.1]', '"x": 1'):
        whole = paths[2].read_text()
        paths[2].write_text(whole.replace('"episode_error": [0.1, 0.1]', broken))
        assert "pn 1 10.00 ± 1.00 % none in common" in page_of(paths[0], paths[2]).text
        paths[2].write_text(whole)
    assert "methods" not in page_of(paths[0]).ids()


def test_all_are_held_against_the_transformer_that_most_can_be_held_against(tiny, tmp_path):
    learner = {"benchmark": Component("glyphs"), "evaluation_episodes": 2}
    lone = tiny(**learner, learner=Component("transformer", {"layers": 3}), seed=7)
    poor, good = (tiny(**learner, learner=Component("transformer", {"layers": n})) for n in (1, 2))
    folders = {name: tmp_path / name for name in ("lone", "poor", "good")}
    for folder in folders.values():
        folder.mkdir()
    paths = [
        kept(folders["lone"], lone, [0.0, 0.0]),
        kept(folders["poor"], poor, [0.3, 0.5]),
        kept(folders["good"], good, [0.2, 0.2]),
        kept(tmp_path, tiny(**learner, learner=Component("pn")), [0.1, 0.3]),
    ]
    found = methods([read_entry(path) for path in paths])
    (table,) = compared({"a question": found}).values()
    assert table.reference is found[2]
    assert [gap is not None for _, gap in table.lines] == [False, True, True, True]


def test_a_run_that_was_given_twice_is_not_two_seeds(tiny, tmp_path):
    (tmp_path / "again").mkdir()
    config = tiny(evaluation_episodes=2)
    twice = [
        read_entry(kept(folder, config, [0.1, 0.2])) for folder in (tmp_path, tmp_path / "again")
    ]
    other = read_entry(kept(tmp_path, replace(config, seed=1), [0.1, 0.2]))
    assert [len(method.entries) for method in methods([*twice, other])] == [2, 1]


def test_what_is_said_in_another_way_is_the_same_method(tiny, tmp_path):
    config = tiny(benchmark=Component("omniglot"), evaluation_episodes=2, precision="bf16")
    card = {"device": "NVIDIA H200"}
    paths = [kept(tmp_path, config, [0.1, 0.3], **card)]
    usual = replace(config, precision="auto", seed=1)
    paths.append(kept(tmp_path, usual, [0.2, 0.4], **card))
    paths.append(kept(tmp_path, replace(config, seed=2), [0.3, 0.5], **card))
    old = json.loads(paths[2].read_text())
    # a share of the classes, and an option that is gone
    old["config"]["benchmark"]["options"] = {"validation": 0.0}
    old["config"]["learner"]["options"]["gone"] = 3
    paths[2].write_text(json.dumps(old))
    (method,) = methods([read_entry(path) for path in paths])
    assert method.label == "transformer"
    assert method.score is not None
    assert method.score.mean == pytest.approx(30.0)
    (plain,) = methods([read_entry(kept(tmp_path, replace(usual, seed=3), [0.1, 0.1]))])
    # on a CPU, `auto` is float32
    assert len(methods([*method.entries, *plain.entries])) == 2


def test_what_lies_beside_a_result_file_is_on_the_page(runs, tmp_path):
    for name, kept_as in (("result", "kept"), ("forgetting", "kept.forgetting")):
        shutil.copy(runs["transformer"] / f"{name}.json", tmp_path / f"{kept_as}.json")
    assert read_entry(tmp_path / "kept.json").forgetting is not None


def test_a_method_looks_alike_whatever_it_is_asked(runs):
    names = ["linear", "transformer", "completion", "rotation"]
    found = methods([read_entry(runs[name]) for name in names])
    assert [method.label for method in found] == ["linear_transformer", *["transformer"] * 3]
    assert [method.number for method in found] == [0, 1, 1, 1]


def test_forgetting_of_several_seeds_is_one(runs, tmp_path):
    for seed in (0, 1):
        shutil.copytree(runs["transformer"], tmp_path / str(seed))
        path = tmp_path / str(seed) / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"seed": seed}))
    path = tmp_path / "1" / "forgetting.json"
    first, second = (json.loads(path.read_text()) for _ in range(2))
    second["error"] = [[value + 0.2 for value in row] for row in first["error"]]
    second["backward_transfer"] = first["backward_transfer"] - 0.2
    path.write_text(json.dumps(second))
    (method,) = methods([read_entry(tmp_path / seed) for seed in "01"])
    lost = method.forgetting
    assert lost is not None
    assert lost.error[2][1] == pytest.approx(first["error"][2][1] + 0.1)
    assert lost.backward_transfer == pytest.approx(first["backward_transfer"] - 0.1)
    # half of 0.2, twice the root of 2 over itself
    assert lost.backward_transfer_stderr == pytest.approx(0.1)
    assert lost.episodes == 2 * first["episodes"]


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
    answered = examples.answered(Method(0, "it", [read_entry(runs["transformer"])]))
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


def test_a_folder_of_runs_is_all_of_them(runs, tmp_path):
    folder = runs["sine"].parent
    assert expanded([folder]) == list(runs.values())
    assert expanded([runs["sine"]]) == [runs["sine"]]
    # what a sweep writes beside a run is not one
    shutil.copytree(runs["sine"], tmp_path / "one")
    (tmp_path / "one.log").write_text("it was said")
    assert expanded(sorted(tmp_path.iterdir())) == [tmp_path / "one"]
    # a folder of result files, and what lies beside them
    files = tmp_path / "files"
    files.mkdir()
    for name in ("a.json", "a.forgetting.json", "b.elsewhere.json", "b.json", "reasons.toml"):
        (files / name).write_text("{}")
    assert expanded([files]) == [files / "a.json", files / "b.json"]
    assert expanded([files / "a.json", files / "a.forgetting.json"]) == [files / "a.json"]
    (tmp_path / "empty").mkdir()
    assert expanded([tmp_path / "empty", tmp_path / "other.log"]) == [
        tmp_path / "empty",
        tmp_path / "other.log",
    ]


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
    # no number of a table has to be looked for
    for name in ("meta-test error", "minus transformer"):
        places = tab.locator(f"td[data-name='{name}']").evaluate_all(
            "cells => cells.map(cell => cell.getBoundingClientRect().right)"
        )
        assert places
        assert max(places) <= width
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
