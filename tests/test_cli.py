"""The command line, as a person or a script meets it."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

COMMANDS = [
    ["quickstart"],
    ["list"],
    ["describe"],
    ["train"],
    ["evaluate"],
    ["forgetting"],
    ["bench"],
    ["cost"],
    ["check"],
    ["report"],
    ["export"],
    ["sweep"],
    ["reproduce"],
    ["ledger"],
    ["data", "list"],
    ["data", "prepare"],
    ["data", "show"],
]
SMALL = ["width=16", "layers=1", "heads=2", "encoder=cnn_small"]

MIXER = '''
import torch
from torch import nn
from onepass import Learner, Mixer

class Average(Mixer):
    """The running mean of what was seen."""

    def __init__(self, width: int, heads: int = 1):
        super().__init__()
        self.value, self.width = nn.Linear(width, width), width

    def init_state(self, batch):
        zeros = self.value.weight.new_zeros
        return zeros(batch, self.width), zeros(batch, 1)

    def step(self, x, state):
        total, count = state[0] + self.value(x), state[1] + 1
        return total / count, (total, count)

class Leaky(Average):
    """Gives later tokens away."""

    def scan(self, x, state):
        outputs, state = super().scan(x, state)
        return outputs + x.sum(1, keepdim=True) * 1e-3, state

class Plain(Mixer):
    """Has no heads, and an option of its own."""

    def __init__(self, width, keep: float = 0.5):
        super().__init__()
        self.value, self.width, self.keep = nn.Linear(width, width), width, keep

    def init_state(self, batch):
        return self.value.weight.new_zeros(batch, self.width)

    def step(self, x, state):
        state = self.keep * state + self.value(x)
        return state, state

class Untyped(Learner):
    """Says nothing of what it takes."""

    def __init__(self, x_shape, target):
        super().__init__()
        self.target, self.encoder = target, nn.Flatten()
        self.head = nn.Linear(x_shape[0], target.outputs)

    def init_state(self, batch):
        return self.head.weight.new_zeros(batch, 1)

    def observe(self, state, z, y):
        return state + y.shape[1]

    def predict(self, state, z):
        return self.head(z) * (1 + state[:, None])

def nothing():
    return None
'''


def test_help_is_there_with_an_example_for_every_command(answer):
    said = answer("--help").stdout
    for path in COMMANDS:
        assert path[0] in said
        page = answer(*path, "--help")
        assert page.returncode == 0
        assert f"Example: onepass {' '.join(path)}" in page.stdout


def test_version_and_help_do_not_load_torch():
    script = (
        "import sys; sys.argv = ['onepass', '--help']\n"
        "from onepass.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "import onepass\n"
        "assert not {'torch', 'matplotlib', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


def test_nothing_asked_shows_the_help_as_it_is(answer):
    for arguments in ([], ["data"]):
        ended = answer(*arguments)
        assert ended.returncode == 0
        assert ended.stdout.startswith("Usage:")
        assert "\n\n" in ended.stdout
        assert "Example: onepass" in ended.stdout


def test_version(answer):
    assert answer("--version").stdout == "onepass 0.1.0\n"


def test_list_for_scripts(command):
    there = json.loads(command("list", "--json").stdout)
    assert set(there) == {"benchmarks", "views", "learners", "mixers", "recipes"}
    assert {"glyphs", "kanji", "omniglot", "sine"} <= set(there["benchmarks"])
    sizes = {"transformer", "transformer_s", "transformer_m", "transformer_xl"}
    methods = {"linear_transformer", "performer", "oml", "oml_xl", "anml", "pn", "gemcl"}
    assert sizes | methods | {"online", "offline"} <= set(there["learners"])
    assert {"attention", "linear", "favor"} <= set(there["mixers"])
    assert {"paper", "quickstart"} <= set(there["recipes"])
    assert there["views"] == ["classify", "completion", "rotation"]
    said = command("list").stdout
    assert "transformer_xl" in said
    assert (
        "A view says what is asked of casia, cifar100, folder, glyphs, kanji, msceleb, npz," in said
    )


def test_describe_for_scripts_and_people(answer):
    described = answer("describe", "omniglot", "transformer", "--tasks", "20", "--json")
    facts = json.loads(described.stdout)
    assert facts["parameters"] == 9_926_900
    assert facts["tokens"] == 200
    assert facts["state_bytes"] == 4 * 4_096 * 200 + 8
    assert "9,926,900" in answer("describe", "omniglot", "transformer").stdout


def test_train_then_evaluate(command, tmp_path):
    flags = ["--tasks", "3", "--shots", "2", "--queries", "2", "--recipe", "paper", "--seed", "3"]
    settings = ["steps=6", "batch=2", "checkpoint_every=3", "evaluate_every=3"]
    evaluation = ["evaluation_episodes=4"]
    arguments = ["train", "glyphs", "transformer", *flags, "--out", "here", *settings, *evaluation]
    ended = command(*arguments, *SMALL)
    assert ended.returncode == 0, ended.stderr
    assert "meta-test   error" in ended.stdout
    assert "\x1b" not in ended.stdout + ended.stderr, "no terminal codes where there is no terminal"
    names = {"config.json", "metrics.jsonl", "weights.safetensors", "result.json"}
    assert names <= {path.name for path in (tmp_path / "here").iterdir()}
    result = json.loads((tmp_path / "here" / "result.json").read_text())
    assert result["command"].startswith("onepass train glyphs transformer --tasks 3")
    assert (result["tasks"], result["seed"], result["steps"]) == (3, 3, 6)
    assert 0 <= result["meta_test"]["error"] <= 1
    asked = command("evaluate", "here", "--shots", "1", "--episodes", "4", "--stops", "--json")
    assert json.loads(asked.stdout)["shots"] == 1
    asked = command("evaluate", "here", "--episodes", "4", "--stops")
    assert "error in % of all tasks seen" in asked.stdout
    again = command(*arguments, *SMALL)
    assert again.returncode == 0
    assert "finished already" in again.stderr


def test_a_run_without_a_name_gets_one_that_says_what_it_is(command, tmp_path):
    small = ["steps=1", "batch=1", "evaluation_episodes=1", "width=16", "layers=1", "heads=2"]
    ended = command("train", "sine", "transformer", "--tasks", "2", *small)
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("sine-transformer-2x5-q5-paper-seed0-learner.width=16-")
    assert "+- " in ended.stdout
    assert "%" not in ended.stdout, "a squared error is no percentage"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["trane"], "No such command 'trane'. Did you mean 'train'? There are: bench, check,"),
        (["train", "glyphs"], "Missing argument 'learner'"),
        (
            ["train", "glyps", "pn"],
            "no benchmark 'glyps'; there are: casia, cifar100, folder, glyphs,",
        ),
        (
            ["train", "glyphs", "pnn"],
            "no learner 'pnn'; there are: anml, gemcl, linear_transformer",
        ),
        (["train", "sine", "pn"], "pn learns Classes, and this benchmark asks for 50 numbers"),
        (["train", "glyphs", "pn", "--recipe", "best?"], "no recipe 'best?'; there are: paper"),
        (["train", "glyphs", "pn", "--tasks", "0"], "tasks=0: Input should be greater"),
        (["train", "glyphs", "pn", "--shots", "0"], "shots=0: Input should be greater"),
        (
            ["train", "glyphs", "pn", "--tasks", "five"],
            "'--tasks': Input should be a valid integer",
        ),
        (["train", "glyphs", "pn", "--data", "nowhere"], "--data nowhere: there is no such folder"),
        (["train", "glyphs", "pn", "--device", "tpu"], "no device 'tpu'"),
        (["train", "glyphs", "transformer", "vocabulary=3"], "make only 3"),
        (["train", "glyphs", "pn", "benchmark.bank=3"], "bank of glyphs has 3 classes, and tasks"),
        (["train", "omniglot", "pn"], "no omniglot/images_background.zip"),
        (["train", "glyphs", "pn", "recipe=quickstart"], "recipe=quickstart is no setting"),
        (["train", "glyphs", "transformer", "heads=0"], "learner.heads=0: Input should be greater"),
        (["train", "glyphs", "transformer", "layers=0"], "learner.layers=0: Input should be"),
        (["train", "glyphs", "transformer", "dropout=NaN"], "learner.dropout=nan: Input should be"),
        (["train", "glyphs", "pn", "rate=Infinity"], "rate=inf: Input should be a finite number"),
        (["train", "glyphs", "pn", "tasks=true"], "tasks=True: Input should be a valid integer"),
        (["train", "glyphs", "pn", "--seed", "9" * 30], "seed="),
        (["train", "sine", "transformer", "benchmark.noise=NaN"], "benchmark.noise=nan: Input"),
        (
            ["train", "glyphs", "transformer", "vocabulary=50", "code_length=6"],
            "more than 1,048,576",
        ),
        (["train", "glyphs", ":Foo"], "':Foo' is not of the form MODULE:CLASS"),
        (["train", "glyphs", "math:pi"], "'math:pi' is no class or function that makes a learner"),
        (
            ["train", "json:JSONDecoder", "pn"],
            "makes a JSONDecoder, and a benchmark is",
        ),
        (
            ["train", "glyphs", "math:sqrt"],
            "takes 1 argument(s), and a learner is given",
        ),
        (["check", "omniglot"], "no omniglot/images_background.zip"),
        (["evaluate", "nowhere"], "nowhere is not a run: it has no config.json"),
        (["check", "no_such:Thing"], "there is no module 'no_such'"),
        (["check", "thing"], "nothing is called 'thing'; there are: attention"),
        (["bench", "pnn"], "no learner 'pnn'; there are: anml, gemcl, linear_transformer"),
        (["bench", "pn", "--tasks", "20,x"], "--tasks is '20,x', and takes numbers from 1 on"),
        (["bench", "pn", "--tasks", "0"], "--tasks is '0', and takes numbers from 1 on"),
        (["bench", "pn", "--steps", "0"], "'--steps': Input should be greater than or equal to 1"),
        (["bench", "pn", "widht=3"], "no setting 'widht'; there are: seed"),
        (["bench", "--device", "tpu"], "no device 'tpu' on this machine; there are: auto, cpu"),
        (["cost"], "Missing argument 'RUN|LEARNER|KEY=VALUE'"),
        (["cost", "pnn"], "no run and no learner 'pnn'; learners are: anml, gemcl"),
        (["cost", "width=3"], "cost needs the folder of a run, or the name of a learner"),
        (["cost", "pn", "--lengths", "-1"], "--lengths is '-1', and takes numbers from 1 on"),
        (["cost", "."], "is not a run: it has no config.json"),
        (["data", "prepare", "imagenet"], "no data set 'imagenet' to prepare; there are: omniglot"),
        (["data", "prepare", "casia"], "no casia/Gnt1.0TrainPart1.zip"),
        (["data", "prepare", "msceleb"], "its owner withdrew it, so it is never downloaded"),
        (["data", "prepare", "folder:nowhere"], "there is no folder nowhere"),
        (["data", "show", "glyphs", "--split", "tests"], "no split 'tests'; there are: train"),
        (["data", "show", "glyphs", "view=map"], "benchmark.view=map: Input should be 'classify'"),
        (["data", "show", "sine"], "this benchmark has no images to show"),
        (["data", "show", "nothing"], "no benchmark 'nothing'; there are: casia"),
        (["train", "folder", "pn"], "the benchmark 'folder' needs path: say folder:PATH"),
        (["train", "folder:nowhere", "pn"], "there is no folder nowhere"),
        (["train", "npz:nowhere.npz", "pn"], "there is no file nowhere.npz"),
        (["train", "omniglot:here", "pn"], "'omniglot' takes nothing after a colon"),
        (["train", "cifar100", "pn"], "no cifar100/cifar-100-binary.tar.gz"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_answered_with_one_line(answer, arguments, said, tmp_path):
    ended = answer(*arguments, ONEPASS_DATA="", ONEPASS_CACHE=str(tmp_path / "cache"))
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()


def test_debug_shows_where(command):
    ended = command("train", "glyphs", "pnn", "--debug")
    assert "Traceback" in ended.stderr
    assert "no learner 'pnn'" in ended.stderr


def test_check_holds_anyones_component_to_the_laws(command, tmp_path):
    (tmp_path / "mine.py").write_text(MIXER)
    good = command("check", "mine:Average")
    assert good.returncode == 0, good.stderr
    assert good.stdout.count("holds") == 6
    bad = command("check", "mine:Leaky")
    assert bad.returncode == 2
    assert "FAILS  causal" in bad.stdout
    assert "breaks" in bad.stderr
    assert (
        "it has: Average, Leaky, Plain, Untyped, nothing" in command("check", "mine:Averag").stderr
    )
    assert "is no Mixer, Learner or Benchmark" in command("check", "mine:nothing").stderr


def test_a_mixer_without_heads_and_a_learner_without_types_will_do(command, tmp_path):
    (tmp_path / "mine.py").write_text("from __future__ import annotations\n" + MIXER)
    assert command("check", "mine:Plain").returncode == 0
    small = ["steps=2", "batch=2", "evaluation_episodes=2", "width=16", "layers=1"]
    plain = ["mixer=mine:Plain", "mixer.keep=0.9"]
    ended = command("train", "sine", "sequence", "--tasks", "2", "--out", "a", *plain, *small)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "a/config.json").read_text())["learner"]["options"][
        "mixer_options"
    ] == {"keep": 0.9}
    ended = command("train", "sine", "mine:Untyped", "--tasks", "2", "--out", "b", *small[:3])
    assert ended.returncode == 0, ended.stderr


def test_anyones_mixer_trains_by_name(command, tmp_path):
    (tmp_path / "mine.py").write_text(MIXER)
    settings = ["mixer=mine:Average", "steps=2", "batch=2", "evaluation_episodes=2", *SMALL[:3]]
    ended = command("train", "sine", "sequence", "--tasks", "2", "--out", "run", *settings)
    assert ended.returncode == 0, ended.stderr


def test_data_is_listed_prepared_and_shown(command, tmp_path):
    for name in ("rose", "tulip", "daisy"):
        (tmp_path / "flowers" / name).mkdir(parents=True)
        for n in range(3):
            Image.new("RGB", (9, 12), (80 * n, 10, 200)).save(tmp_path / f"flowers/{name}/{n}.jpg")
    cache = {"ONEPASS_CACHE": str(tmp_path / "cache"), "ONEPASS_DATA": ""}
    listed = json.loads(command("data", "list", "--json", **cache).stdout)
    assert set(listed) == {"omniglot", "cifar100", "casia", "msceleb"}
    assert listed["msceleb"]["where"].startswith("--data FOLDER only")
    assert "folder:PATH" in command("data", "list", **cache).stdout
    ended = command("data", "prepare", "folder:flowers", **cache)
    assert "9 images of 3 classes, 3x32x32" in ended.stdout, ended.stderr
    ended = command("data", "show", "folder:flowers", "--out", "sheet.png", **cache)
    assert "classes     train 2, validation 0, test 1" in ended.stdout, ended.stderr
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 400
    shown = command("data", "show", "folder:flowers", "--json", "--verify", **cache)
    assert json.loads(shown.stdout)["classes"] == ["daisy", "rose", "tulip"]
    assert (tmp_path / "flowers.png").is_file()
    shown = command("data", "show", "glyphs", "--classes", "3", "--json", **cache)
    assert json.loads(shown.stdout)["x_shape"] == [1, 32, 32]
    assert (tmp_path / "glyphs.png").is_file()


@pytest.mark.parametrize("settings", [[], ["view=rotation"], ["benchmark.augment=true"]])
def test_a_split_is_shown_as_a_learner_sees_it(settings, answer, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16)).astype(np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(60) % 6)
    size = ["--classes", "2", "--samples", "3", "--split", "train", "--json"]
    shown = answer("data", "show", "npz:mine.npz", *settings, *size)
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["split"] == "train"
    assert (tmp_path / "mine.png").is_file()


def test_a_run_on_ones_own_pictures_has_a_short_name(command, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (60, 16, 16)).astype(np.uint8)
    (tmp_path / "a long way" / "down").mkdir(parents=True)
    np.savez(tmp_path / "a long way" / "down" / "mine.npz", images=images, labels=np.arange(60) % 6)
    small = [
        "steps=1",
        "batch=1",
        "evaluation_episodes=1",
        "benchmark.test=0.5",
        "encoder=cnn_small",
    ]
    path = "npz:a long way/down/mine.npz"
    ended = command("train", path, "pn", "--tasks", "2", "--shots", "2", *small)
    assert ended.returncode == 0, ended.stderr
    (run,) = (tmp_path / "runs").iterdir()
    changed = "benchmark.test=0.5-learner.encoder=cnn_small-steps=1-batch=1"
    assert run.name.startswith(f"npz-mine-pn-2x2-q5-paper-seed0-{changed}")
    asked = command("evaluate", str(run), "--on", path, "--tasks", "1", "--episodes", "2")
    assert asked.returncode == 0, asked.stderr
