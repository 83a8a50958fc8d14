"""What is shipped: dependencies, public names, and the wheel in an empty environment."""

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import onepass

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# imported as -> installed as
DISTRIBUTIONS = {"PIL": "pillow", "sklearn": "scikit-learn", "triton": "torch"}


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def third_party(paths: list[Path]) -> set[str]:
    used = set().union(*(imported(path) for path in paths)) - {"onepass"}
    return {DISTRIBUTIONS.get(name, name) for name in used - sys.stdlib_module_names}


def test_every_import_is_a_declared_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = project["dependencies"], project["optional-dependencies"]["demo"]
    declared, extra = ({re.split(r"[<>=]", line)[0] for line in lines} for lines in names)
    of_demo = [path for path in SOURCES if path.parent.name == "demo"]
    others = [path for path in SOURCES if path not in of_demo]
    # tensorboard is imported by torch when events are written
    assert third_party(others) | {"tensorboard"} == declared
    assert third_party(of_demo) - declared == extra


def test_constraints_pin_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(extras["demo"]) <= set(extras["dev"])
    wanted = project["dependencies"] + extras["dev"]
    lines = (ROOT / "constraints.txt").read_text().lower().split()  # pip knows no capitals
    pinned = {line.partition("==")[0] for line in lines}
    assert {re.split(r"[<>=]", line)[0].lower() for line in wanted} <= pinned
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text().split()


@pytest.mark.parametrize("name", onepass.__all__)
def test_public_names_load(name):
    assert getattr(onepass, name) is not None


def test_an_unknown_public_name_is_answered_with_what_there_is():
    with pytest.raises(AttributeError, match=r"onepass has no 'trane'; it has: .*train"):
        onepass.trane  # noqa: B018


def test_files_stay_short():
    long = {path.name: len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: lines for name, lines in long.items() if lines > 330} == {}


def test_every_module_says_what_it_is():
    for path in SOURCES:
        module = "onepass." + ".".join(path.relative_to(ROOT / "src/onepass").with_suffix("").parts)
        if not module.endswith(("__init__", "__main__")):
            assert importlib.import_module(module).__doc__, module


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(tmp_path):
    """The wheel alone is installed; its dependencies are lent from here: no network is used."""
    # built from a copy: an old build folder beside the sources must not get into it
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run(build, cwd=copy, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("onepass-*.whl")
    environment = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = environment.glob("lib/python*/site-packages")
    # a plain path: the editable install beside the dependencies is not seen through it
    (site / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")

    def run(*command: str) -> str:
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    where = run(str(python), "-c", "import onepass; print(onepass.__file__)")
    assert Path(where.strip()).is_relative_to(environment)
    assert (Path(where.strip()).parent / "demo/page/index.html").is_file()
    for name in ("symbols", "symbols-linear"):
        run(str(python), "-c", f"import onepass; onepass.load('{name}')")
    command = str(environment / "bin" / "onepass")
    assert "omniglot" in json.loads(run(command, "list", "--json"))["benchmarks"]
    small = ["steps=2", "batch=2", "evaluation_episodes=2", "width=16", "layers=1", "heads=2"]
    run(command, "train", "sine", "transformer", "--tasks", "2", "--out", "run", *small)
    assert (tmp_path / "run" / "result.json").is_file()
    run(command, "report", "run")
    assert "shifted twin" in (tmp_path / "report.html").read_text()
