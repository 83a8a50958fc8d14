"""Linear attention is linear: time and memory against the length of the stream."""

import time
from functools import partial
from itertools import pairwise

import pytest
import torch

from onepass.cost import fresh_or_trained, noise
from onepass.mixers.linear import linear
from onepass.timing import seconds_of
from onepass.tree import span

LENGTHS = [1_024, 2_048, 4_096, 8_192, 16_384]


def kept_bytes(mixer, x) -> int:
    """What a scan keeps for the way back, which is what its memory is; each storage once."""
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output, _ = mixer.scan(x, mixer.init_state(1))
    assert output.requires_grad
    return sum(storages.values())


def seconds_of_scan(mixer, x) -> float:
    """The quickest of a few: whatever else the machine does only makes it slower."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        output, _ = mixer.scan(x, mixer.init_state(1))
        output.sum().backward()
        times.append(time.perf_counter() - started)
    return min(times)


@pytest.mark.slow
def test_doubling_the_stream_at_most_doubles_the_work(capsys):
    torch.manual_seed(0)
    mixer, rows = linear(64, heads=2), []
    for length in LENGTHS:
        x = torch.randn(1, length, 64)
        rows.append((seconds_of_scan(mixer, x), kept_bytes(mixer, x)))
    with capsys.disabled():
        print("\ntokens   seconds   MB kept")
        for length, (seconds, kept) in zip(LENGTHS, rows, strict=True):
            print(f"{length:>6}{seconds:>10.4f}{kept / 2**20:>10.1f}")
    # the mean of four doublings; a single one is noisy on a machine that does other things too
    assert (rows[-1][0] / rows[0][0]) ** (1 / 4) < 2.2
    for (_, before), (_, after) in pairwise(rows):
        assert after < 2.2 * before


@pytest.mark.slow
@pytest.mark.parametrize("name", ["linear_transformer", "performer"])
@torch.no_grad()
def test_example_10000_costs_what_example_2_cost(name):
    learner, x_shape = fresh_or_trained(name, ["encoder=cnn_small", "layers=1", "width=128"])
    x, y = noise(learner, x_shape, 100, torch.Generator().manual_seed(0))
    z, told = learner.encode(x), learner.encode_y(y)
    first = span(z, 0, 1), span(told, 0, 1)
    early = learner.observe(learner.init_state(1), *first)
    late = early
    for _ in range(100):
        late = learner.observe(late, z, told)
    cpu, times = torch.device("cpu"), []
    for _ in range(50):
        pair = (partial(learner.observe, state, *first) for state in (early, late))
        times.append([seconds_of(call, cpu) for call in pair])
    # in turns, and the quickest of each: whatever else the machine does only makes them slower
    quickest = [min(column) for column in zip(*times, strict=True)]
    assert quickest[1] < 1.5 * quickest[0]
