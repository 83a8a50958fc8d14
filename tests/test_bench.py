"""The speed of meta-training: what a row says, and what it is measured on."""

import gc
import json
from dataclasses import asdict, fields, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from onepass import bench
from onepass.bench import PUBLISHED, STAND_IN, Row, plan, stand_in
from onepass.benchmarks.sine import Sine
from onepass.config import Component, Config, build
from onepass.episodes import EpisodeSpec
from onepass.learner import Learner
from onepass.options import names_and_settings, whole_numbers
from onepass.speed import counted, first_of_last_phase, measure
from onepass.tables import digits, prefixed, print_bench, print_table
from onepass.targets import Vector
from onepass.timing import ceilings

CPU = torch.device("cpu")
PROMISED = {
    "learner",
    "tasks",
    "episodes_per_s",
    "ms_per_step",
    "peak_gb",
    "published_episodes_per_s",
    "ratio",
    "card",
}


def test_rows_come_in_a_table_and_a_file_and_one_that_fails_stops_no_other(command, tmp_path):
    nowhere = {"ONEPASS_DATA": "", "ONEPASS_CACHE": str(tmp_path / "cache")}
    sizes = ["--tasks", "2", "--steps", "1", "batch=2", "shots=1", "queries=1"]
    ended = command("bench", "online", "pn", *sizes, "--json", "rows.json", "--profile", **nowhere)
    assert ended.returncode == 2
    assert ended.stderr.strip().splitlines()[-1] == "onepass: 1 of 2 row(s) failed"
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [(row["learner"], row["tasks"]) for row in rows] == [("online", 2), ("pn", 2)]
    assert all(set(row) == {field.name for field in fields(Row)} for row in rows)
    assert rows[0].keys() >= PROMISED
    assert rows[0]["failed"] == "online has nothing to meta-train"
    assert "online, 2 tasks: failed: online has nothing to meta-train" in ended.stdout
    good = rows[-1]
    assert good["failed"] is None
    assert good["episodes_per_s"] == pytest.approx(2e3 / good["ms_per_step"])
    assert good["ms_per_step_least"] <= good["ms_per_step"] <= good["ms_per_step_most"]
    assert good["flops_per_s"] == pytest.approx(1e3 * good["flops_per_step"] / good["ms_per_step"])
    assert (good["data"], good["steps"], good["first_step"]) == (STAND_IN, 1, 10_000)
    assert good["peak_gb"] > 0.05
    assert good["profile"][0]["share"] > good["profile"][-1]["share"]
    assert "aten::convolution_backward" in ended.stdout
    assert "noise in the shape of omniglot" in ended.stdout


def test_numbers_and_settings_are_told_from_names():
    assert whole_numbers("--tasks", "100, 20,100") == [20, 100]
    assert names_and_settings(["pn", "batch=2", "oml", "pn"]) == (["pn", "oml"], ["batch=2"])
    for wrong in ("", "5,", "1e3", "-1", "²"):
        with pytest.raises(ValueError, match=r"--tasks is .*, and takes numbers from 1 on"):
            whole_numbers("--tasks", wrong)


def test_a_card_gets_the_rows_of_the_published_table():
    rows = plan([], [], [], on_card=True, data=STAND_IN)
    assert {(name, config.tasks): published for name, config, published in rows} == PUBLISHED
    assert {(config.batch, config.recipe) for _, config, _ in rows} == {(16, "paper")}
    assert {config.precision_on("cuda") for _, config, _ in rows} == {"bf16"}


def test_a_cpu_gets_small_rows_and_nothing_to_compare_them_with():
    rows = plan([], [], [], on_card=False, data=STAND_IN)
    assert [name for name, _, _ in rows] == list(dict.fromkeys(name for name, _ in PUBLISHED))
    assert {(config.tasks, config.batch, published) for _, config, published in rows} == {
        (5, 2, None)
    }


def test_only_the_same_work_is_compared():
    def published(*settings, tasks=(20,)):
        ((_, _, figure),) = plan(["transformer"], tasks, settings, True, STAND_IN)
        return figure

    assert published() == published("precision=float32") == 480
    assert published("layers=2") is None
    assert published("batch=8") is None
    assert published(tasks=(30,)) is None


def test_what_cannot_be_measured_is_said_before_anything_is(command):
    for asked, why in (
        (["tasks=7"], "tasks=7: how many tasks a row has is said by --tasks"),
        (["--steps", "9999"], "9999 step(s) a repeat are too many where steps=50000, of which"),
    ):
        said = command("bench", "pn", *asked, "--json", "rows.json")
        assert said.returncode == 2
        assert said.stderr.startswith(f"onepass: {why}"), said.stderr
    assert (digits(4_511.84), digits(9.96), digits(0.0389)) == ("4,511.8", "9.96", "0.0389")


def test_the_stand_in_has_the_shape_of_omniglot():
    benchmark = stand_in()
    assert (benchmark.source.classes("train"), benchmark.source.classes("test")) == (964, 659)
    rng = torch.Generator().manual_seed(0)
    episodes = benchmark.sample("train", EpisodeSpec(20, 10, 10), 1, rng)
    assert episodes.train.x.shape == (1, 200, 1, 32, 32)


def test_steps_are_those_of_the_phase_that_lasts():
    config = Config(Component("sine"), Component("transformer"))
    assert first_of_last_phase(config) == 10_000
    assert first_of_last_phase(replace(config, guidance=0.0)) == 0
    longer = replace(config, objective="midstream", objective_steps=12_000)
    assert first_of_last_phase(longer) == 12_000
    # never over: then what lasts is what it began with
    assert first_of_last_phase(replace(config, objective="midstream", guidance_steps=7)) == 7


class OneLayer(Learner):
    """Looks at nothing that came before: its products and its tensors can be counted."""

    def __init__(self, x_shape: tuple[int, ...], target: Vector):
        super().__init__()
        self.target, self.encoder = target, nn.Flatten()
        self.head = nn.Linear(x_shape[0], target.outputs)

    def init_state(self, batch):
        return self.head.weight.new_zeros(batch, 1)

    def observe(self, state, z, y):
        return state

    def predict(self, state, z):
        return self.head(z)


def test_operations_and_bytes_of_a_step_by_hand():
    learner = Component("test_bench:OneLayer")
    config = Config(Component("sine"), learner, tasks=3, shots=1, queries=2, batch=4)
    notes: list[str] = []
    flops, moved = counted(config, Sine(), CPU, notes)
    assert notes == []
    # 24 queries of 50 numbers to 50, there, and back to the weight; nobody asks for the slope by x
    assert flops == 2 * (2 * 24 * 50 * 50)
    # their x, and how far the answers are off
    kept = 4 * (24 * 50 + 24 * 50)
    weights = 4 * (50 * 50 + 50)
    assert moved == 2 * (4 * weights + kept)


def test_what_was_counted_is_not_in_the_peak_of_what_is_timed(tiny):
    """The last layer has results that the way back never asks for."""
    small = {"width": 16, "layers": 2, "heads": 2}
    config = tiny(learner=Component("linear_transformer", small), objective="final")
    benchmark, _ = build(config)

    def tensors() -> int:
        gc.collect()
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects())

    counted(config, benchmark, CPU, [])  # what is made once for good
    before = tensors()
    counted(config, benchmark, CPU, [])
    assert tensors() == before


def test_the_first_layer_counts_as_the_convolutions_that_it_is():
    x, one, two = torch.randn(3, 1, 8, 8), torch.randn(4, 1, 3, 3), torch.randn(6, 4, 3, 3)
    one.requires_grad_()
    two.requires_grad_()
    formulas, norm = [], torch.zeros(4).shape
    with FlopCounterMode(display=False) as counter:
        first = F.conv2d(x, one, padding=1)
        formulas.append(counter.get_total_flops())
        second = F.conv2d(first, two, stride=2, padding=1)
        formulas.append(counter.get_total_flops())
        second.sum().backward()
    there_and_back = counter.get_total_flops()
    shapes = x.shape, one.shape, norm
    ops, found = torch.ops.onepass, flop_registry
    assert found[ops.first_layer](*shapes, norm, 1e-5) == formulas[0]
    assert found[ops.first_layer_back](first.shape, *shapes) == formulas[0]
    both = found[ops.first_and_convolution](*shapes, norm, two.shape, 2, 1e-5)
    assert both == formulas[1]
    # the first layer is computed once more on the way back
    back = found[ops.first_and_convolution_back](second.shape, *shapes, two.shape)
    assert back == there_and_back - formulas[1] + formulas[0]


def test_what_cannot_be_written_is_said_before_anything_is_measured(command, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    for target, why in (("folder", "it is a folder"), ("file/x.json", "")):
        for asked in (["bench", "pn"], ["cost", "pn"]):
            said = command(*asked, "--json", target)
            assert said.returncode == 2
            assert said.stderr.startswith(f"onepass: could not write {target}: {why}"), said.stderr
            assert len(said.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_what_cannot_be_counted_is_said_and_measured_all_the_same(tiny, monkeypatch):
    def refuse(*arguments):
        raise RuntimeError("no looking in\nreally")

    config = tiny(benchmark=Component("sine"), steps=200, guidance=0.0)
    with monkeypatch.context() as patched:
        patched.setattr("onepass.speed.FlopCounterMode.__enter__", refuse)
        found = measure(config, CPU, 1, profile=False)
    assert found["notes"] == ["operations and bytes are not counted: no looking in"]
    assert found["flops_per_s"] is None
    assert found["episodes_per_s"] > 0


def test_too_few_steps_to_measure_are_refused(tiny):
    with pytest.raises(ValueError, match=r"9 step\(s\) a repeat are too many where steps=50"):
        measure(tiny(steps=50), CPU, 9, profile=False)


def test_a_process_that_is_killed_is_a_row_that_failed(monkeypatch):
    monkeypatch.setattr(bench.sys, "executable", "false")
    assert bench.in_own_process({}) == {"failed": "it said nothing"}
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    real = bench.subprocess.run
    monkeypatch.setattr(
        bench.subprocess, "run", lambda command, **how: real(["python3", "-c", script], **how)
    )
    assert bench.in_own_process({}) == {"failed": "ended by SIGKILL"}


def test_the_table_is_markdown_and_figures_have_three_digits(capsys):
    print_table(["a", "number"], [["first", "1"], ["b", "1,000"]])
    assert capsys.readouterr().out.splitlines() == [
        "| a     | number |",
        "| ----- | -----: |",
        "| first |      1 |",
        "| b     |  1,000 |",
    ]
    assert [prefixed(x) for x in (12.0, 999.9, 1.234e14)] == ["12 ", "1 k", "123 T"]
    row = Row("pn", 20, 4_012.0, 3.99, 1.5, 1_003.0, 4.0, "a card", device="cuda", batch=16)
    row = replace(row, ms_per_step_least=3.9, ms_per_step_most=4.1, warm_up_s=12.0, reserved_gb=2.5)
    print_bench([row, replace(row, failed="no room", episodes_per_s=None)])
    said = capsys.readouterr().out
    assert "| pn      |    20 |    16 |    4,012.0 |" in said
    assert "| failed |" in said.replace("     ", " ")
    assert "335 at 20 tasks" in said
    assert json.loads(json.dumps(asdict(row)))["ratio"] == 4.0


def test_ceilings_are_of_this_machine():
    flops, moved = ceilings(CPU)
    assert 1e8 < flops < 1e14
    assert 1e7 < moved < 1e13
