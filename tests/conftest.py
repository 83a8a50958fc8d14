"""What tests share: small configs, and nothing of the machine's own settings."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jaxtyping import install_import_hook

# every shape and type that a signature promises is checked while the tests run; but not on a card,
# where steps are compiled, and no compiler sees through the checks
if not torch.cuda.is_available():
    with install_import_hook("onepass", "beartype.beartype"):
        from onepass import bench, checks, cost, describe, quickstart  # noqa: F401

        # not the estimators themselves: scikit-learn has them take anything, and complain later
        from onepass.estimators import inputs, plain, storage  # noqa: F401
from onepass import training

# typer calls commands its own way
from onepass.__main__ import main
from onepass.config import Component, Config
from onepass.data import open_store
from onepass.files import data_dir

# before any test looks elsewhere
REAL = data_dir()

# tests share the machine: one thread each, or they wait for each other
torch.set_num_threads(1)

# a shell has what it runs in the background ignore ctrl-c, and so would all that tests start
signal.signal(signal.SIGINT, signal.default_int_handler)

TINY = Config(
    Component("sine"),
    Component("transformer", {"width": 16, "layers": 1, "heads": 2, "norm": "group"}),
    recipe="tiny",
    tasks=3,
    shots=2,
    queries=2,
    steps=12,
    batch=4,
    rate=1e-3,
    precision="float32",
    log_every=4,
    checkpoint_every=5,
    evaluation_episodes=8,
    evaluation_batch=4,
)

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Config]:
    """A config that trains in a blink; `tiny(steps=20)` changes a setting."""
    return lambda **changes: replace(TINY, **changes)


@pytest.fixture(scope="session")
def novices(tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of runs that have learned next to nothing: a constant state, and one that grows."""
    small = {"norm": "group", "encoder": "cnn_small"}
    growing = {"width": 16, "layers": 1, "heads": 2, "vocabulary": 8}
    learners = {
        "pn": Component("pn", small),
        "transformer": Component(
            "transformer", small | growing | {"tokens": "joint", "positions": False}
        ),
    }
    made = tmp_path_factory.mktemp("novices")
    for name, learner in learners.items():
        config = tiny(benchmark=Component("glyphs"), learner=learner, steps=2)
        training.train(config, made / name, "cpu", lambda line: None)
    return {name: str(made / name) for name in learners}


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Runs `onepass ...` as a person would, in an empty folder."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", "onepass", *arguments],
            cwd=tmp_path,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    return run


@pytest.fixture
def answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., subprocess.CompletedProcess]:
    """The same without a process of its own: for the many questions that are answered at once."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        with monkeypatch.context() as patched:
            patched.chdir(tmp_path)
            patched.setattr(sys, "argv", ["onepass", *arguments])
            patched.setattr(sys, "path", list(sys.path))
            # set here, so that what the command changes of it is taken back too
            data = {"ONEPASS_DATA": os.environ.get("ONEPASS_DATA", "")}
            for name, value in (data | environment).items():
                patched.setenv(name, value)
            capsys.readouterr()
            with pytest.raises(SystemExit) as ended:
                main()
        code = ended.value.code
        return subprocess.CompletedProcess(
            sys.argv, code if isinstance(code, int) else int(bool(code)), *capsys.readouterr()
        )

    return run


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of a person's files, and an empty cache."""
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def leftovers(tmp_path: Path) -> Callable[[], list[str]]:
    """Whatever is in the cache, empty locks aside."""

    def found() -> list[str]:
        paths = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        return [path.name for path in paths if path.suffix != ".lock"]

    return found


@pytest.fixture(scope="module")
def browser():
    """A real one; each test opens a context of its own in it."""
    if CHROMIUM is None:
        pytest.skip("no Chromium to open the page in: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def real_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real Omniglot, prepared once."""
    files = [Path("omniglot") / f"images_{part}.zip" for part in ("background", "evaluation")]
    if not (REAL and all((REAL / file).exists() for file in files)):
        pytest.skip(f"set ONEPASS_DATA to a folder that has {files[0]} and {files[1]}")
    cache = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONEPASS_DATA", str(REAL))
        patch.setenv("ONEPASS_CACHE", str(cache))
        open_store("omniglot")
    return cache
