"""Meta-training: what a run leaves, exact resume, and every way a run can go wrong."""

import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from onepass import training
from onepass.checkpoint import load_checkpoint, resume, save_checkpoint
from onepass.config import (
    Component,
    build,
    differences,
    from_json,
    override,
    resolved,
    to_json,
)
from onepass.devices import pick_device
from onepass.fast import first_line
from onepass.objectives import meta_loss
from onepass.recipes import make_config
from onepass.run import Run, load_run, opened
from onepass.seeds import generator
from onepass.step import draw_step, train_step
from onepass.training import train

SILENT = lambda line: None  # noqa: E731


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "weights.safetensors")


def assert_same_weights(a: Path, b: Path):
    assert_close(weights(a), weights(b), rtol=0, atol=0)


def one_step(config, step, benchmark, learner, optimiser):
    rng = generator(torch.device("cpu"), config.seed, "data", step)
    drawn = draw_step(config, step, benchmark, learner.target, rng)
    return train_step(config, step, drawn, learner, optimiser)


class Crash(Exception):
    pass


def crash_after(monkeypatch, steps: int):
    """The process dies in the middle of a later step, after its update."""
    original, done = train_step, []

    def step(*arguments):
        result = original(*arguments)
        done.append(1)
        if len(done) > steps:
            raise Crash
        return result

    monkeypatch.setattr("onepass.step.train_step", step)


def test_a_run_is_a_directory(tiny, tmp_path):
    config = tiny(evaluate_every=6)
    train(config, tmp_path / "run", "cpu", SILENT)
    run = Run(tmp_path / "run")
    assert run.config == resolved(config)
    assert run.read("environment.json")["torch"] == torch.__version__
    result = run.read("result.json")
    wanted = "benchmark learner tasks shots recipe seed steps parameters command commit date device"
    assert set(result) >= {*wanted.split(), "meta_test", "meta_train", "seconds", "episodes_per_s"}
    for split in ("meta_test", "meta_train"):
        assert set(result[split]) >= {"error", "stderr", "loss", "task_error", "stops"}
    lines = run.read_metrics()
    assert [line["step"] for line in lines if "split" not in line] == [4, 5, 8, 10, 12]
    held_out = [line for line in lines if "split" in line]
    assert [(line["step"], line["split"]) for line in held_out] == [
        (6, "validation"),
        (12, "validation"),
    ]
    assert list((tmp_path / "run" / "events").glob("events.out.tfevents.*"))
    assert [path.name for path in run.checkpoints()] == [
        "step-00000012.safetensors",
        "step-00000010.safetensors",
    ]


def test_checkpoints_come_by_the_clock_unless_steps_are_named(tiny, tmp_path, monkeypatch):
    config = tiny(checkpoint_every=None, steps=13)
    train(config, tmp_path / "soon", "cpu", SILENT)
    # one with the first line of the log, so that who is killed in the first minute goes on, too
    assert [path.stem for path in Run(tmp_path / "soon").checkpoints()] == [
        "step-00000013",
        "step-00000004",
    ]
    monkeypatch.setattr("onepass.checkpoint.SECONDS_BETWEEN", 0.0)
    with monkeypatch.context() as patched:
        crash_after(patched, 8)
        with pytest.raises(Crash):
            train(config, tmp_path / "late", "cpu", SILENT)
    assert Run(tmp_path / "late").checkpoints()[0].stem == "step-00000008"
    train(config, tmp_path / "late", "cpu", SILENT)
    assert_same_weights(tmp_path / "late", tmp_path / "soon")


def test_when_another_process_is_gone_it_is_said_how_to_go_on(tiny, tmp_path):
    path = tmp_path / "run"
    train(tiny(steps=2), path, "cpu", SILENT)
    for again in ("goes on from the last checkpoint", "has no checkpoint yet"):
        with pytest.raises(ConnectionError, match=f"gone; .*{again}"), training.lost(path):
            raise ConnectionError("gone")
        for checkpoint in Run(path).checkpoints():
            checkpoint.unlink()


def test_a_card_computes_in_bf16_unless_told_otherwise(tiny):
    usual = make_config("paper", "sine", "transformer")
    assert [usual.precision_on(kind) for kind in ("cuda", "cpu", "mps")] == [
        "bf16",
        "float32",
        "float32",
    ]
    assert override(usual, ["precision=float32"]).precision_on("cuda") == "float32"
    assert override(usual, ["precision=bf16"]).precision_on("cpu") == "bf16"


def test_the_same_seed_gives_the_same_run_and_another_another(tiny, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny(seed=seed), tmp_path / name, "cpu", SILENT)
    assert_same_weights(tmp_path / "a", tmp_path / "b")
    a, c = weights(tmp_path / "a"), weights(tmp_path / "c")
    assert not torch.equal(a["head.weight"], c["head.weight"])


@pytest.mark.parametrize("steps", [0, 1, 4, 5, 7, 10, 11])
def test_resume_is_exact_wherever_it_stopped(tiny, tmp_path, monkeypatch, steps):
    # dropout and batch statistics too must go on where they were
    options = {"width": 16, "layers": 1, "heads": 2, "dropout": 0.3}
    config = tiny(learner=Component("transformer", options), evaluate_every=3)
    train(config, tmp_path / "whole", "cpu", SILENT)
    with monkeypatch.context() as patched:
        crash_after(patched, steps)
        with pytest.raises(Crash):
            train(config, tmp_path / "broken", "cpu", SILENT)
    train(config, tmp_path / "broken", "cpu", SILENT)
    assert_same_weights(tmp_path / "whole", tmp_path / "broken")

    def curve(name):
        keys = ("step", "split", "loss", "error")
        lines = Run(tmp_path / name).read_metrics()
        return [{key: line.get(key) for key in keys} for line in lines]

    assert curve("whole") == curve("broken")


def test_a_killed_run_goes_on_exactly(tmp_path, tiny):
    """SIGKILL from outside, twice, at moments nobody chose."""
    config = tiny(steps=400, checkpoint_every=7)
    script = (
        "import json, sys, torch; from pathlib import Path; torch.set_num_threads(1)\n"
        "from onepass.config import from_json; from onepass.training import train\n"
        "train(from_json(json.loads(sys.argv[1])), Path(sys.argv[2]), 'cpu')"
    )

    def start(name: str) -> subprocess.Popen:
        arguments = [
            sys.executable,
            "-c",
            script,
            json.dumps(to_json(config)),
            str(tmp_path / name),
        ]
        return subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    whole, broken = start("whole"), start("broken")
    for wanted in (1, 15):
        run, deadline = Run(tmp_path / "broken"), time.monotonic() + 120
        while not any(int(p.stem[5:]) >= 7 * wanted for p in run.checkpoints()):
            assert time.monotonic() < deadline
            assert broken.poll() is None, "it ended before it could be killed"
        broken.kill()
        broken.wait()
        broken = start("broken")
    assert broken.wait(timeout=200) == 0
    assert whole.wait(timeout=200) == 0
    assert_same_weights(tmp_path / "whole", tmp_path / "broken")
    assert not list((tmp_path / "broken").rglob(".*.tmp"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_signal_saves_first_and_says_how_to_go_on(tmp_path, number):
    command = [sys.executable, "-m", "onepass", "train", "sine", "transformer", "--tasks", "3"]
    settings = ["width=16", "layers=1", "heads=2", "steps=100000", "checkpoint_every=100000"]
    process = subprocess.Popen(
        [*command, "--out", "run", "log_every=1", *settings],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics, deadline = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.is_file() and metrics.stat().st_size):
        assert time.monotonic() < deadline
        assert process.poll() is None
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    last = said.strip().splitlines()[-1]
    assert f"stopped by {number.name} after step" in last
    assert "the same command goes on" in last
    step, _, _ = load_checkpoint(Run(tmp_path / "run"))
    assert f"step {step}," in last


def test_a_finished_run_stays_as_it_is(tiny, tmp_path):
    train(tiny(), tmp_path / "run", "cpu", SILENT)
    before = (tmp_path / "run" / "result.json").read_bytes()
    said: list[str] = []
    learner = train(tiny(), tmp_path / "run", "cpu", said.append)
    assert "finished already" in said[0]
    assert (tmp_path / "run" / "result.json").read_bytes() == before
    assert_close(dict(learner.state_dict()), weights(tmp_path / "run"), rtol=0, atol=0)


def test_another_config_is_refused_by_name(tiny, tmp_path):
    train(tiny(), tmp_path / "run", "cpu", SILENT)
    with pytest.raises(ValueError, match=r"another config \(rate was 0.001, now 0.002\)"):
        train(tiny(rate=2e-3), tmp_path / "run", "cpu", SILENT)


def damage(path: Path, how: str):
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "one bit flipped":
        path.write_bytes(content[:-5] + bytes([content[-5] ^ 1]) + content[-4:])
    else:
        path.write_bytes(os.urandom(1_000))


@pytest.mark.parametrize("how", ["truncated", "empty", "one bit flipped", "noise"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tiny, tmp_path, monkeypatch, how):
    train(tiny(), tmp_path / "whole", "cpu", SILENT)
    with monkeypatch.context() as patched:
        crash_after(patched, 11)
        with pytest.raises(Crash):
            train(tiny(), tmp_path / "run", "cpu", SILENT)
    damage(Run(tmp_path / "run").checkpoints()[0], how)
    said: list[str] = []
    train(tiny(), tmp_path / "run", "cpu", said.append)
    assert "step-00000010.safetensors is damaged" in said[0]
    assert said[1] == "resumed from step 5"
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_with_no_sound_checkpoint_the_run_starts_over(tiny, tmp_path, monkeypatch):
    train(tiny(), tmp_path / "whole", "cpu", SILENT)
    with monkeypatch.context() as patched:
        crash_after(patched, 7)
        with pytest.raises(Crash):
            train(tiny(), tmp_path / "run", "cpu", SILENT)
    for path in Run(tmp_path / "run").checkpoints():
        damage(path, "noise")
    said: list[str] = []
    train(tiny(), tmp_path / "run", "cpu", said.append)
    assert "starts over" in said[-1]
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_after_starting_over_new_checkpoints_are_kept(tiny, tmp_path, monkeypatch):
    for steps, damaged in ((11, 2), (7, 0)):
        with monkeypatch.context() as patched:
            crash_after(patched, steps)
            with pytest.raises(Crash):
                train(tiny(), tmp_path / "run", "cpu", SILENT)
        for path in Run(tmp_path / "run").checkpoints()[:damaged]:
            damage(path, "noise")
    assert load_checkpoint(Run(tmp_path / "run"))[0] == 5


def test_a_checkpoint_of_another_config_is_passed_over(tiny, tmp_path, monkeypatch):
    train(tiny(), tmp_path / "whole", "cpu", SILENT)
    for name, seed in (("run", 0), ("other", 1)):
        with monkeypatch.context() as patched:
            crash_after(patched, 7)
            with pytest.raises(Crash):
                train(tiny(seed=seed), tmp_path / name, "cpu", SILENT)
    (path,) = Run(tmp_path / "run").checkpoints()
    path.write_bytes(Run(tmp_path / "other").checkpoints()[0].read_bytes())
    said: list[str] = []
    train(tiny(), tmp_path / "run", "cpu", said.append)
    assert "is of another config" in said[0]
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_checkpoint_that_lies_about_its_step_is_damaged(tiny, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        crash_after(patched, 7)
        with pytest.raises(Crash):
            train(tiny(), tmp_path / "run", "cpu", SILENT)
    (path,) = Run(tmp_path / "run").checkpoints()
    path.write_bytes(path.read_bytes().replace(b'"step":"5"', b'"step":"9"'))
    assert "wrong checksum" in load_checkpoint(Run(tmp_path / "run"))[2][path]


def test_moments_come_back_in_the_layout_of_their_weights(tiny, tmp_path):
    """On a card convolutions are channels-last, and the fused step takes that for granted."""
    options = {"width": 16, "layers": 1, "heads": 2, "encoder": "cnn_small"}
    config = resolved(
        tiny(benchmark=Component("glyphs"), learner=Component("transformer", options))
    )

    def start():
        benchmark, learner = build(config)
        learner.to(memory_format=torch.channels_last)
        optimiser = torch.optim.Adam(learner.parameters(), 1e-3, fused=True)
        return benchmark, learner, optimiser

    with opened(tmp_path / "run", config) as run:
        first = start()
        one_step(config, 0, *first)
        save_checkpoint(run, 1, *first[1:])
        second = start()
        assert resume(run, *second[1:], SILENT) == 1
    for parts in (first, second):
        one_step(config, 1, *parts)
    assert_close(dict(first[1].state_dict()), dict(second[1].state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("damage", ["garbage", "no step", "not text", "gone"])
def test_damaged_metrics_do_not_stop_a_run(tiny, tmp_path, monkeypatch, damage):
    train(tiny(), tmp_path / "whole", "cpu", SILENT)
    with monkeypatch.context() as patched:
        crash_after(patched, 7)
        with pytest.raises(Crash):
            train(tiny(), tmp_path / "run", "cpu", SILENT)
    metrics = Run(tmp_path / "run").metrics
    bad = {"garbage": b"{half a li", "no step": b'{"loss": 1}\n', "not text": b"\xff\xfe\n"}
    if damage == "gone":
        metrics.unlink()
    else:
        metrics.write_bytes(metrics.read_bytes() + bad[damage])
    train(tiny(), tmp_path / "run", "cpu", SILENT)
    assert_same_weights(tmp_path / "whole", tmp_path / "run")


def test_a_run_does_not_move_in_with_other_files(tiny, tmp_path):
    (tmp_path / ".notes.12.tmp").write_text("mine")
    (tmp_path / "thesis.txt").write_text("mine too")
    with pytest.raises(ValueError, match="holds other files and no run"):
        train(tiny(), tmp_path, "cpu", SILENT)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes.12.tmp", "thesis.txt"]
    with pytest.raises(ValueError, match="is a file"):
        train(tiny(), tmp_path / "thesis.txt", "cpu", SILENT)


def test_a_config_that_does_not_fit_names_its_file(tiny, tmp_path):
    train(tiny(), tmp_path / "run", "cpu", SILENT)
    config = tmp_path / "run" / "config.json"
    for content in ("[]", json.dumps(to_json(tiny()) | {"clip": 1.0})):
        config.write_text(content)
        with pytest.raises(ValueError, match=r"config.json does not fit this version"):
            load_run(tmp_path / "run")
    config.write_text("{")
    with pytest.raises(ValueError, match=r"config.json is damaged"):
        load_run(tmp_path / "run")


def test_the_config_of_a_run_says_every_option(tiny, tmp_path):
    train(tiny(), tmp_path / "run", "cpu", SILENT)
    options = Run(tmp_path / "run").read("config.json")["learner"]["options"]
    assert options["width"] == 16
    assert options["dropout"] == 0.1
    assert options["tokens"] == "interleaved"


def test_the_rate_is_halved_where_it_counts(tiny, tmp_path, monkeypatch):
    rates = []

    def watch(config, step, drawn, learner, optimiser):
        losses = train_step(config, step, drawn, learner, optimiser)
        rates.append(optimiser.param_groups[0]["lr"])
        return losses

    monkeypatch.setattr("onepass.step.train_step", watch)
    train(tiny(steps=5, halve_every=2), tmp_path / "run", "cpu", SILENT)
    assert rates == [1e-3, 1e-3, 5e-4, 5e-4, 2.5e-4]


def test_an_error_of_the_compiler_is_a_line_with_its_cause():
    told = "An exception occurred in a subprocess:\n\nTraceback\nRuntimeError: no such pass\n"
    advice = "\n\nSet TORCHDYNAMO_VERBOSE=1 for the internal stack trace\n"
    line = "An exception occurred in a subprocess: RuntimeError: no such pass"
    assert first_line(RuntimeError(told + advice)) == line
    assert first_line(RuntimeError("first\nsecond")) == "first"
    assert first_line(RuntimeError("announced:")) == "announced:"
    assert first_line(RuntimeError()) == ""


def test_one_head_is_guided_too(tiny):
    for name in ("transformer", "linear_transformer"):
        options = {"width": 16, "layers": 1, "heads": 1}
        config = tiny(learner=Component(name, options), guidance_steps=10)
        benchmark, learner = build(config)
        optimiser = torch.optim.SGD(learner.parameters(), 0.0)
        assert torch.isfinite(one_step(config, 0, benchmark, learner, optimiser)).all()


def test_a_constant_that_is_not_finite_may_be_saved(tiny, tmp_path):
    config = resolved(tiny())
    _, learner = build(config)
    learner.register_buffer("mask", torch.tensor([-torch.inf]))
    optimiser = torch.optim.Adam(learner.parameters())
    with opened(tmp_path / "run", config) as run:
        save_checkpoint(run, 1, learner, optimiser)
    assert load_checkpoint(Run(tmp_path / "run"))[0] == 1


def test_a_loss_that_is_not_finite_ends_the_run(tiny, tmp_path, monkeypatch):
    calls = []

    def spoilt(*arguments):
        calls.append(1)
        losses = meta_loss(*arguments)
        return losses._replace(loss=losses.loss * float("nan")) if len(calls) == 7 else losses

    monkeypatch.setattr("onepass.step.meta_loss", spoilt)
    with pytest.raises(FloatingPointError) as caught:
        train(tiny(), tmp_path / "run", "cpu", SILENT)
    said = str(caught.value)
    assert "not finite at step 7 with seed 0" in said
    assert "step-00000005.safetensors" in said
    step, _, passed_over = load_checkpoint(Run(tmp_path / "run"))
    assert (step, passed_over) == (5, {})


def test_weights_that_are_not_finite_are_never_saved(tiny, tmp_path):
    with pytest.raises(FloatingPointError, match="not finite"):
        train(tiny(rate=1e30, checkpoint_every=1, steps=30), tmp_path / "run", "cpu", SILENT)
    _, tensors, _ = load_checkpoint(Run(tmp_path / "run"))
    assert all(torch.isfinite(tensor).all() for tensor in tensors.values())


def test_accumulating_changes_nothing(tiny):
    gradients = {}
    for count in (1, 2, 4):
        config = tiny(accumulate=count)
        benchmark, learner = build(config)
        optimiser = torch.optim.SGD(learner.parameters(), 0.0)
        learner.eval()
        one_step(config, 0, benchmark, learner, optimiser)
        gradients[count] = [p.grad for p in learner.parameters()]
    # float32 sums in another order
    assert_close(gradients[2], gradients[1], rtol=1e-4, atol=1e-6)
    assert_close(gradients[4], gradients[1], rtol=1e-4, atol=1e-6)


def test_accumulating_is_refused_where_it_would_change_something(tiny, tmp_path):
    batch_norm = Component("transformer", {"width": 16, "layers": 1, "heads": 2})
    with pytest.raises(ValueError, match="what batch-norm sees"):
        train(tiny(accumulate=2, learner=batch_norm), tmp_path / "a", "cpu", SILENT)
    with pytest.raises(ValueError, match="does not divide"):
        train(tiny(accumulate=3), tmp_path / "b", "cpu", SILENT)
    assert not list(tmp_path.iterdir())


def test_a_step_that_does_not_fit_says_what_to_try(tiny, tmp_path, monkeypatch):
    def full(*arguments):
        raise torch.OutOfMemoryError("tried to allocate 100 GiB")

    monkeypatch.setattr("onepass.step.meta_loss", full)
    with pytest.raises(ValueError, match=r"4 episodes in 2 part\(s\) does not fit.*accumulate=4"):
        train(tiny(accumulate=2), tmp_path / "run", "cpu", SILENT)


def test_bf16_learns_as_float32_does(tiny, tmp_path):
    losses = {}
    for precision in ("float32", "bf16"):
        train(tiny(precision=precision, steps=40), tmp_path / precision, "cpu", SILENT)
        losses[precision] = Run(tmp_path / precision).read("result.json")["meta_train"]["loss"]
    assert losses["bf16"] == pytest.approx(losses["float32"], rel=0.05)
    assert losses["bf16"] != losses["float32"]


@pytest.mark.parametrize("objective", ["final", "midstream"])
def test_guidance_pulls_attention_to_the_right_task(tiny, objective):
    guidance = {}
    for weight in (0.0, 1.0):
        asked = {"guidance_steps": 200, "objective": objective}
        config = tiny(steps=200, rate=3e-3, guidance=weight, **asked)
        benchmark, learner = build(config)
        optimiser = torch.optim.Adam(learner.parameters(), 3e-3)
        measured = tiny(rate=1e-30, guidance=1e-9, **asked)
        for number in range(60):
            one_step(config, number, benchmark, learner, optimiser)
        still = torch.optim.SGD(learner.parameters(), 0.0)
        guidance[weight] = one_step(measured, 0, benchmark, learner, still)[1].item()
    assert guidance[1.0] < 0.8 * guidance[0.0]


def test_a_second_process_is_kept_out(tiny, tmp_path):
    train(tiny(), tmp_path / "run", "cpu", SILENT)
    with (
        opened(tmp_path / "run", resolved(tiny())),
        pytest.raises(ValueError, match="another process"),
    ):
        train(tiny(), tmp_path / "run", "cpu", SILENT)


def test_a_full_disk_leaves_nothing_half_written(tiny, tmp_path):
    """The kernel refuses to let any file grow past a limit, in the middle of a checkpoint."""
    config = tiny(steps=30, checkpoint_every=10)
    script = (
        "import json, resource, sys; from pathlib import Path\n"
        "from onepass.config import from_json; from onepass.training import train\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, {resource.RLIM_INFINITY}))\n"
        "train(from_json(json.loads(sys.argv[1])), Path(sys.argv[2]), 'cpu')"
    )
    arguments = [sys.executable, "-c", script, json.dumps(to_json(config)), str(tmp_path / "run")]
    ended = subprocess.run(arguments, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "could not write" in ended.stderr.splitlines()[-1]
    assert not [path for path in (tmp_path / "run").rglob("*") if path.name.endswith(".tmp")]
    assert Run(tmp_path / "run").checkpoints() == []
    assert all(line["step"] <= 10 for line in Run(tmp_path / "run").read_metrics())


def test_no_space_left_is_said_in_one_line(tiny, tmp_path, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"could not write .*json: No space left on device"):
        train(tiny(), tmp_path / "run", "cpu", SILENT)
    assert [path.name for path in (tmp_path / "run").iterdir()] == [".lock"]


def test_weights_of_another_learner_do_not_load(tiny, tmp_path):
    train(tiny(), tmp_path / "run", "cpu", SILENT)
    config = Run(tmp_path / "run").read("config.json")
    config["learner"]["options"]["width"] = 32
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="does not fit this learner"):
        load_run(tmp_path / "run")
    with pytest.raises(ValueError, match="is not a run"):
        load_run(tmp_path)


def test_a_config_survives_json_and_overrides(tiny):
    config = override(tiny(), ["steps=7", "learner.layers=3", "encoder=mlp", "benchmark.noise=0"])
    assert config.steps == 7
    assert config.learner.options["layers"] == 3
    assert config.learner.options["encoder"] == "mlp"
    assert config.benchmark.options == {"noise": 0}
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    assert set(differences(tiny(), config)) == {
        "benchmark.options.noise was None, now 0",
        "learner.options.layers was 1, now 3",
        "learner.options.encoder was None, now mlp",
        "steps was 12, now 7",
    }


def test_a_run_that_wrote_what_its_name_says_is_read_and_goes_on(tiny, tmp_path):
    config = tiny(learner=Component("linear_transformer", {"width": 16, "layers": 1, "heads": 2}))
    train(config, tmp_path / "run", "cpu", SILENT)
    written = Run(tmp_path / "run").read("config.json")
    written["learner"]["options"] |= {"mixer": "linear"}
    (tmp_path / "run" / "config.json").write_text(json.dumps(written))
    assert Run(tmp_path / "run").config == resolved(config)
    load_run(tmp_path / "run")
    with opened(tmp_path / "run", resolved(config)):
        pass
    # another mixer than that is no linear_transformer
    written["learner"]["options"]["mixer"] = "attention"
    (tmp_path / "run" / "config.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match="'linear_transformer' takes no 'mixer'"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("steps=0", "steps=0: .*greater than or equal to 1"),
        ("steps=many", "steps=many: .*integer"),
        ("stepz=3", "no setting 'stepz'; there are: .*steps.*learner.width.*benchmark.noise"),
        ("steps", "not of the form key=value"),
        ("precision=fp8", "precision=fp8: .*'float32' or 'bf16'"),
        ("order=random", "order=random: .*'blocked', 'shuffled' or 'varied'"),
    ],
)
def test_a_wrong_setting_is_answered_with_what_there_is(tiny, setting, said):
    with pytest.raises(ValueError, match=said):
        override(tiny(), [setting])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"layerz": 2}, "takes no 'layerz'; it takes: mixer, mixer_options, width"),
        ({"layers": "two"}, "learner.layers=two: .*integer"),
        ({"mixer": "attn"}, "no mixer 'attn'; there are: attention"),
        ({"encoder": "resnet"}, r"no encoder 'resnet' for inputs of shape \(50,\); there are: mlp"),
        ({"width": 15}, "needs an even one"),
        ({"heads": 3, "width": 16}, "width of 16 does not divide into 3 heads"),
        ({"mixer": "no_such_module:Mixer"}, "there is no module 'no_such_module'"),
        ({"norm": "layer"}, "learner.norm=layer: .*'batch', 'group' or 'none'"),
    ],
)
def test_a_wrong_option_is_answered_with_what_there_is(tiny, options, said):
    with pytest.raises(ValueError, match=said):
        build(tiny(learner=Component("transformer", options)))


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"no device 'tpu' on this machine; there are: auto, cpu"):
        pick_device("tpu")
