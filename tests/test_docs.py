"""The code and the commands in README and docs work as they stand."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from onepass.reproduce.kept import read_bench, read_results
from onepass.reproduce.ledger import write_ledger

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?P<kind>\w+)(?: file=(?P<file>\S+))?\n(?P<text>.*?)^```", re.M | re.S)
HOW_TOS = ["add-a-mixer.md", "add-a-learner.md", "add-a-benchmark.md"]
SWEEP = "onepass sweep mine.py"


def blocks(page: Path) -> list[re.Match]:
    return list(BLOCK.finditer(page.read_text()))


@pytest.mark.parametrize("name", HOW_TOS)
def test_how_to_works_as_written(name, command, tmp_path):
    for block in blocks(ROOT / "docs" / name):
        if block["kind"] == "python":
            (tmp_path / block["file"]).write_text(block["text"])
            continue
        for line in block["text"].strip().splitlines():
            program, *arguments = shlex.split(line)
            assert program == "onepass"
            ended = command(*arguments)
            assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"


@pytest.mark.slow
def test_the_page_of_estimators_works_as_written(command, tmp_path):
    page = blocks(ROOT / "docs" / "estimators.md")
    (line,) = [block["text"] for block in page if block["kind"] == "sh"]
    small = [
        "steps=2",
        "batch=1",
        "evaluation_episodes=1",
        "width=16",
        "heads=2",
        "benchmark.bank=8",
    ]
    ended = command(*shlex.split(line)[1:], *small)
    assert ended.returncode == 0, ended.stderr
    # as a person would: one block after the other
    source = "\n".join(block["text"] for block in page if block["kind"] == "python")
    arguments = [sys.executable, "-W", "error", "-c", source]
    ended = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_the_sweep_of_the_page_runs(command, tmp_path):
    page = blocks(ROOT / "docs" / "reproduce.md")
    (source,) = [block["text"] for block in page if block["kind"] == "python"]
    (line,) = [block["text"] for block in page if block["text"].startswith(SWEEP)]
    (tmp_path / "mine.py").write_text(source.replace("range(2)", "range(1)"))
    ended = command(*shlex.split(line)[1:])
    assert ended.returncode == 0, ended.stderr
    assert "2 run(s) in runs/mine" in ended.stdout


def test_python_of_the_readme_runs(tmp_path):
    sources = [block["text"] for block in blocks(ROOT / "README.md") if block["kind"] == "python"]
    assert len(sources) == 4
    for source in sources:
        arguments = [sys.executable, "-c", source]
        ended = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


def test_commands_of_the_readme_for_ones_own_pictures_work(command, tmp_path):
    for k in range(10):
        (tmp_path / "flowers" / f"flower {k}").mkdir(parents=True)
        for n in range(10):
            Image.new("L", (9, 9), 25 * k + n).save(tmp_path / f"flowers/flower {k}/{n}.png")
    (lines,) = [
        block["text"].strip().splitlines()
        for block in blocks(ROOT / "README.md")
        if "folder:flowers" in block["text"]
    ]
    small = ["steps=1", "batch=1", "evaluation_episodes=1", "width=16", "layers=1", "heads=2"]
    for line in lines:
        _, *arguments = shlex.split(line, comments=True)
        short = small if arguments[0] == "train" else []
        ended = command(*arguments, *short, ONEPASS_CACHE=str(tmp_path / "cache"))
        assert ended.returncode == 0, f"{line}\n{ended.stdout}{ended.stderr}"
    assert (tmp_path / "flowers.png").is_file()


def test_commands_named_in_the_pages_exist(answer):
    known = set(re.findall(r"^  (\w+) ", answer("--help").stdout, re.M))
    assert {"train", "evaluate", "data"} <= known
    for page in PAGES:
        for line in re.findall(r"^onepass (\w+)", page.read_text(), re.M):
            assert line in known, f"{page.name}: onepass {line}"


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_results_page_is_what_the_results_make(tmp_path):
    shutil.copytree(ROOT / "results", tmp_path / "results")
    write_ledger(tmp_path / "results", tmp_path / "docs" / "results.md")
    made = (tmp_path / "docs" / "results.md").read_text()
    assert (ROOT / "docs/results.md").read_text() == made, "make it anew: onepass ledger"


RESULTS = read_results(ROOT / "results")


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_is_of_a_known_commit_on_the_card(name):
    result = RESULTS[name]
    # a fresh network for each episode needs no card
    assert result["device"] in ("NVIDIA H200", *(["cpu"] if result["learner"] == "offline" else []))
    assert len(result["commit"]) == 40
    assert name in (ROOT / "docs/results.md").read_text()


def test_the_readme_has_the_speeds_that_were_measured():
    readme = (ROOT / "README.md").read_text()
    for path in (ROOT / "results" / "bench").glob("*.json"):
        assert str(path.relative_to(ROOT)) in readme
    for row in read_bench(ROOT / "results").values():
        figures = f"{row['episodes_per_s']:,.0f} | {row['published_episodes_per_s']:,.0f}"
        line = f"| {row['learner']} | {row['tasks']} | {figures} | {row['ratio']:.1f} |"
        peak = f"{row['peak_gb']:.1f}" if row["peak_gb"] else "-"
        assert f"{line} {peak} ({row['reserved_gb']:.1f}) |" in readme


@pytest.mark.parametrize("target", ["quickstart", "test", "test-slow", "format"])
def test_make_knows_what_the_readme_names(target):
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True)
