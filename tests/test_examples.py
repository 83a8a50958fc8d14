"""Every example runs as it stands, in a folder of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(*arguments: object, folder: Path) -> str:
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_symbols_are_taught_in_a_few_lines(novices, tmp_path):
    said = run(EXAMPLES / "teach.py", novices["pn"], folder=tmp_path)
    assert said.startswith("9 drawings shown, ")
    code = [line for line in (EXAMPLES / "teach.py").read_text().splitlines() if line.strip()]
    assert len(code) <= 35


@pytest.mark.slow
def test_methods_are_compared_on_one_stream(novices, tmp_path):
    said = run(EXAMPLES / "compare.py", novices["pn"], folder=tmp_path)
    sgd, neighbour, mean, trained = (float(line.split()[0]) for line in said.splitlines())
    # plain SGD knows the last class alone
    assert sgd < 10
    assert min(neighbour, mean) > 30
    assert trained > 10
    assert (tmp_path / "compare.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    book = json.loads((EXAMPLES / "teach.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    (tmp_path / "book.py").write_text("\n".join(cells))
    said = run("book.py", folder=tmp_path)
    assert "cross {" in said
    assert "% right" in said


@pytest.mark.slow
def test_what_a_lesson_takes_is_measured(novices, tmp_path):
    said = run(EXAMPLES.parent / "tools" / "latency.py", novices["pn"], folder=tmp_path)
    header, _, row = said.strip().splitlines()[-3:]
    assert header == "| model | after 1 | after 100 | after 1,000 |"
    assert len(row.split("|")) == 6
