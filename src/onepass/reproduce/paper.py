"""What the paper prints: Lee, Son and Kim, Recasting Continual Learning as Sequence Modeling, 2023.

Mean and standard deviation over 5 runs (Offline: mean and standard error over 10). Errors of
classes are in %, those of Sine and Completion squared errors, those of Rotation 1 - cos.
"""

from typing import NamedTuple


class Published(NamedTuple):
    mean: float
    std: float


def _cells(**rows: tuple[float, float]) -> dict[str, Published]:
    return {name: Published(*cell) for name, cell in rows.items()}


FULL_STEPS = 50_000  # of every run behind these numbers

# 20 tasks, meta-test error
TABLE1_TEST: dict[str, dict[str, Published]] = {
    "cifar100": _cells(
        offline=(73.3, 7.2),
        pn=(76.6, 0.3),
        gemcl=(76.6, 0.4),
        oml=(89.9, 0.4),
        anml=(88.1, 1.4),
        transformer=(82.8, 0.8),
        linear_transformer=(83.4, 0.5),
        performer=(82.9, 0.3),
    ),
    "omniglot": _cells(
        offline=(35.0, 6.8),
        pn=(3.8, 0.1),
        gemcl=(3.8, 0.1),
        oml=(24.8, 2.2),
        anml=(31.0, 6.2),
        transformer=(13.7, 0.6),
        linear_transformer=(36.0, 1.4),
        performer=(37.1, 4.6),
    ),
    "casia": _cells(
        offline=(41.7, 6.2),
        pn=(0.4, 0.0),
        gemcl=(0.4, 0.0),
        oml=(3.2, 0.1),
        anml=(4.3, 0.5),
        transformer=(0.4, 0.0),
        linear_transformer=(0.7, 0.0),
        performer=(0.7, 0.0),
    ),
    "msceleb": _cells(
        offline=(63.3, 7.7),
        pn=(33.6, 0.1),
        gemcl=(33.3, 0.2),
        oml=(42.5, 0.2),
        anml=(44.8, 0.4),
        transformer=(30.0, 0.2),
        linear_transformer=(32.4, 0.3),
        performer=(33.7, 0.2),
    ),
}

# the same runs on classes of meta-training
TABLE1_TRAIN: dict[str, dict[str, Published]] = {
    "cifar100": _cells(
        pn=(0.0, 0.0),
        gemcl=(0.0, 0.0),
        oml=(0.6, 0.1),
        anml=(0.4, 0.1),
        transformer=(0.0, 0.0),
        linear_transformer=(0.1, 0.1),
        performer=(0.0, 0.0),
    ),
    "omniglot": _cells(
        pn=(0.0, 0.0),
        gemcl=(0.0, 0.0),
        oml=(0.1, 0.0),
        anml=(0.0, 0.0),
        transformer=(0.0, 0.0),
        linear_transformer=(0.0, 0.0),
        performer=(0.1, 0.1),
    ),
    "casia": _cells(
        pn=(0.2, 0.0),
        gemcl=(0.2, 0.0),
        oml=(2.8, 0.1),
        anml=(3.7, 0.5),
        transformer=(0.3, 0.0),
        linear_transformer=(0.4, 0.0),
        performer=(0.5, 0.0),
    ),
    "msceleb": _cells(
        pn=(32.5, 0.1),
        gemcl=(32.1, 0.1),
        oml=(41.8, 0.3),
        anml=(43.8, 0.3),
        transformer=(29.1, 0.2),
        linear_transformer=(31.1, 0.3),
        performer=(32.5, 0.5),
    ),
}

# 100 tasks, meta-test error
TABLE2: dict[str, dict[str, Published]] = {
    "casia": _cells(
        offline=(70.7, 3.7),
        pn=(0.8, 0.0),
        gemcl=(0.8, 0.0),
        oml=(6.8, 0.9),
        transformer=(1.0, 0.0),
        linear_transformer=(2.3, 0.1),
    ),
    "msceleb": _cells(
        offline=(87.1, 3.3),
        pn=(44.5, 0.1),
        gemcl=(44.4, 0.1),
        oml=(54.5, 0.2),
        transformer=(40.5, 0.1),
        linear_transformer=(45.3, 0.1),
    ),
    "sine": _cells(
        offline=(0.0180, 0.0038),
        oml=(0.0498, 0.0004),
        transformer=(0.0031, 0.0002),
        linear_transformer=(0.0139, 0.0003),
    ),
    "rotation": _cells(
        offline=(0.699, 0.049),
        oml=(0.524, 0.087),
        transformer=(0.031, 0.001),
        linear_transformer=(0.047, 0.002),
    ),
    "completion": _cells(
        offline=(0.1713, 0.0047),
        oml=(0.1087, 0.0001),
        transformer=(0.0989, 0.0001),
        linear_transformer=(0.1084, 0.0001),
    ),
}

# 20 tasks, meta-test error; the plain rows are those of table 1 but for completion
RESNET: dict[str, dict[str, Published]] = {
    "omniglot": _cells(
        oml_resnet=(27.7, 1.3),
        transformer_resnet=(25.5, 1.2),
        linear_transformer_resnet=(63.6, 2.1),
    ),
    "casia": _cells(
        oml_resnet=(3.4, 0.1),
        transformer_resnet=(0.5, 0.0),
        linear_transformer_resnet=(0.7, 0.0),
    ),
    "msceleb": _cells(
        oml_resnet=(44.1, 0.2),
        transformer_resnet=(32.4, 0.2),
        linear_transformer_resnet=(34.9, 0.1),
    ),
    "completion": _cells(
        oml=(0.1092, 0.0002),
        oml_resnet=(0.1092, 0.0002),
        transformer=(0.0999, 0.0002),
        transformer_resnet=(0.1014, 0.0002),
        linear_transformer=(0.1039, 0.0003),
        linear_transformer_resnet=(0.1051, 0.0001),
    ),
}

# CASIA, 20 tasks, transformer: (vocabulary, length of a code) -> meta-test error
CODES: dict[tuple[int, int], Published] = {
    (20, 1): Published(0.4, 0.0),
    (8, 2): Published(0.5, 0.1),
    (8, 3): Published(0.6, 0.0),
}


class Cost(NamedTuple):
    """On one A40 with 16 episodes a step; OML-XL's memory is that of four cards."""

    parameters_m: float
    memory_gb: float
    episodes_per_s: float
    error: Published


# CASIA: tasks -> learner
COST: dict[int, dict[str, Cost]] = {
    20: {
        "oml": Cost(1.5, 10.7, 51.2, Published(3.2, 0.1)),
        "oml_xl": Cost(11.5, 134.8, 3.5, Published(1.9, 0.2)),
        "anml": Cost(2.0, 18.4, 6.6, Published(4.3, 0.5)),
        "transformer_s": Cost(2.4, 4.3, 278.5, Published(0.6, 0.0)),
        "transformer_m": Cost(5.9, 4.7, 252.9, Published(0.5, 0.0)),
        "transformer": Cost(10.1, 5.2, 201.5, Published(0.4, 0.0)),
        "transformer_xl": Cost(36.0, 6.2, 138.0, Published(0.4, 0.0)),
    },
    100: {
        "oml": Cost(1.5, 43.7, 9.4, Published(6.8, 0.9)),
        "transformer_s": Cost(2.4, 22.0, 49.69, Published(1.5, 0.0)),
        "transformer_m": Cost(5.9, 25.8, 38.78, Published(1.1, 0.0)),
        "transformer": Cost(10.1, 31.5, 26.8, Published(1.0, 0.0)),
        "transformer_xl": Cost(36.0, 41.4, 16.34, Published(0.8, 0.0)),
    },
}
