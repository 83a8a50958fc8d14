"""The estimators: scikit-learn's checks, the learner's own answers, forgetting, budgets."""

from decimal import Decimal

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

from onepass import ContinualClassifier, ContinualRegressor, probe
from onepass.benchmarks.glyphs import glyphs
from onepass.benchmarks.sine import Sine
from onepass.benchmarks.views import to_unit
from onepass.checks import LEARNER_LAWS, SPEC
from onepass.episodes import Episodes, EpisodeSpec, Examples
from onepass.estimators.memory import Chunk, joined, remembered
from onepass.estimators.plain import LeastSquares, nearest_mean
from onepass.mixer_laws import TIGHT
from onepass.registry import LEARNERS
from onepass.targets import Classes, Target, Vector

# the checks that are not for us, and why; two more skip themselves without pandas or the array API
EXPECTED_FAILED_CHECKS: dict[str, str] = {}
SMALL = {"width": 16, "layers": 2, "heads": 2, "encoder": "cnn_small"}
IMAGE = (1, 16, 16)


def small(name: str, classes: int = 4, **options):
    """A fresh learner of small images, in double precision."""
    torch.manual_seed(0)
    takes = {key: SMALL[key] for key in SMALL if key in LEARNERS.options(name)}
    return LEARNERS.build(name, IMAGE, Classes(classes), **takes, **options).double().eval()


def classifier_of(name: str, classes: int = 4, **options) -> ContinualClassifier:
    return ContinualClassifier(small(name, classes), x_shape=IMAGE, **options)


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *IMAGE), np.uint8)


def clusters(classes: int, each: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Examples of all classes in turn, each class around a centre of its own."""
    rng = np.random.default_rng(seed)
    y = np.tile(np.arange(classes), each)
    return 10 * rng.normal(size=(classes, 8))[y] + rng.normal(size=(len(y), 8)), y


@parametrize_with_checks(
    [ContinualClassifier(), ContinualRegressor()],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)
def test_scikit_learn_takes_it(estimator, check):
    check(estimator)


# answers


def shuffled_episode(benchmark) -> tuple[Examples, Examples]:
    rng = torch.Generator().manual_seed(0)
    episodes = benchmark.sample("test", SPEC, 1, rng)
    order = torch.randperm(SPEC.length, generator=rng)
    return Examples(*(part[:, order] for part in episodes.train)), episodes.test


def by_probe(learner, stream: Examples, queries: Examples, y, answer, stop: int) -> torch.Tensor:
    """What the learner makes of one answer to all queries, after `stop` examples."""
    asked = queries._replace(x=queries.x.double(), y=answer)
    episodes = Episodes(stream._replace(x=stream.x.double(), y=y), asked)
    (found,) = probe(learner, episodes, at=[stop])
    return found.detach()


def to_bytes(x: torch.Tensor) -> np.ndarray:
    return ((x[0] + 1) * 127.5).round().to(torch.uint8).numpy()


CASES = {
    "transformer": {},
    "transformer of codes": {"vocabulary": 3, "code_length": 2},
    "linear_transformer": {},
    "pn": {},
    "gemcl": {},
    "oml": {},
}


@pytest.mark.parametrize("case", CASES)
def test_a_classifier_answers_as_probe_does(case):
    learner = small(case.partition(" ")[0], SPEC.tasks, **CASES[case])
    stream, queries = shuffled_episode(glyphs(size=IMAGE[1]))
    names = np.array(["d", "a", "c", "b"])
    told = names[stream.y[0].numpy()]
    classifier = ContinualClassifier(learner, x_shape=IMAGE, random_state=3)
    done = 0
    for stop in (2, 7, SPEC.length):
        classifier.partial_fit(to_bytes(stream.x)[done:stop], told[done:stop])
        done, seen = stop, sorted(set(told[:stop]))
        codes = classifier._learned.book.codes
        y = learner.target.told(torch.tensor([[codes.get(each, 0) for each in told]]))
        scores = []
        for label in seen:
            number = torch.full(queries.y.shape, codes[label])
            answer = learner.target.told(number)
            found = by_probe(learner, stream, queries, y, answer, stop)
            scores.append(-learner.target.loss(found, answer)[0] * learner.target.tokens)
        shares = torch.stack(scores, -1).softmax(-1)
        assert classifier.classes_.tolist() == seen
        found = classifier.predict_proba(to_bytes(queries.x))
        assert_close(torch.from_numpy(found), shares, **TIGHT)
        best = np.array(seen)[shares.argmax(-1).numpy()]
        assert classifier.predict(to_bytes(queries.x)).tolist() == best.tolist()


@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "oml"])
def test_a_regressor_answers_as_probe_does(name):
    benchmark = Sine(points=6)
    torch.manual_seed(0)
    takes = {
        key: SMALL[key] for key in ("width", "layers", "heads") if key in LEARNERS.options(name)
    }
    learner = LEARNERS.build(name, (6,), Vector(6), **takes).double().eval()
    stream, queries = shuffled_episode(benchmark)
    regressor = ContinualRegressor(learner, x_shape=(6,))
    for n in range(5):
        regressor.learn_one(stream.x[0, n].numpy(), stream.y[0, n].numpy())
    regressor.partial_fit(stream.x[0, 5:].numpy(), stream.y[0, 5:].numpy())
    y, answer = stream.y.double(), queries.y.double()
    expected = by_probe(learner, stream, queries, y, answer, SPEC.length)
    found = regressor.predict(queries.x[0].numpy())
    assert_close(torch.from_numpy(found), learner.target.decode(expected)[0], **TIGHT)


def test_without_a_learner_it_is_the_nearest_class_mean():
    X, y = load_iris(return_X_y=True)
    expected = NearestCentroid().fit(X[::2], y[::2]).predict(X[1::2])
    classifier = ContinualClassifier()
    for x, label in zip(X[::2], y[::2], strict=True):
        classifier.learn_one(x, label)
    assert np.array_equal(classifier.predict(X[1::2]), expected)


def test_without_a_learner_it_is_ridge_regression_of_all_so_far():
    X, y = load_diabetes(return_X_y=True)
    both, regressor = np.stack([y, y**2], 1), ContinualRegressor(ridge=0.1)
    for n in range(30):
        regressor.learn_one(X[n] + 1e4, both[n])
    regressor.partial_fit(X[30:200] + 1e4, both[30:200])
    expected = Ridge(alpha=0.1).fit(X[:200], both[:200]).predict(X[200:])
    # the offset costs a few digits of 16
    np.testing.assert_allclose(regressor.predict(X[200:] + 1e4), expected, rtol=1e-7)


@pytest.mark.parametrize("law", LEARNER_LAWS, ids=lambda law: law.__name__)
def test_the_learners_without_weights_obey_the_laws(law):
    law(LeastSquares(6, 6, 0.1), Sine(points=6))
    law(nearest_mean_of_four(), Blobs())


def nearest_mean_of_four():
    learner = nearest_mean(6)
    learner.target = Classes(4)
    return learner


class Blobs(Sine):
    """Vectors by class."""

    def __init__(self):
        super().__init__(points=6)

    def target(self, spec: EpisodeSpec) -> Target:
        return Classes(spec.tasks)

    def sample(self, split, spec, batch, rng):
        episodes = super().sample(split, spec, batch, rng)
        return Episodes(*(part._replace(y=part.task) for part in episodes[:2]))


@pytest.mark.parametrize("name", ["pn", "transformer", "linear_transformer", "oml"])
@pytest.mark.parametrize(
    "budget", [{}, {"max_examples": 8}, {"max_examples": 8, "which": "balanced"}]
)
def test_how_many_examples_come_in_a_call_makes_no_difference(name, budget):
    X, y = noise(40), ["a", "b", "c", "a"] * 10
    at_once = classifier_of(name, **budget).fit(X, y)
    one_by_one = classifier_of(name, **budget)
    for image, label in zip(X, y, strict=True):
        one_by_one.learn_one(image, label)
    found = [each.predict_proba(noise(5, seed=1)) for each in (at_once, one_by_one)]
    np.testing.assert_allclose(*found, rtol=1e-9)


# labels


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (["rose", "iris"], "U"),
        ([3, -1], "i"),
        ([2**80, 0], "O"),
        ([True, False], "b"),
        ([("rose", 1), ("iris", 2)], "O"),
        ([("rose",), "iris"], "O"),
        ([None, 1.0], "O"),
        ([frozenset("a"), b"b"], "O"),
    ],
)
def test_labels_are_anything_hashable(labels, kind):
    X, y = clusters(2, 3)
    classifier = ContinualClassifier().fit(X, [labels[n] for n in y])
    assert classifier.classes_.dtype.kind == kind
    assert set(classifier.classes_.tolist()) == set(labels)
    assert classifier.predict(X).tolist() == [labels[n] for n in y]
    assert classifier.score(X, [labels[n] for n in y]) == 1
    assert classifier.predict_one(X[0]) == labels[0]
    assert set(classifier.predict_proba_one(X[0])) == set(labels)


@pytest.mark.parametrize(
    ("y", "line"),
    [
        (["a", ["b"]], r"\['b'\] is no label: unhashable type: 'list'; a tuple would do"),
        ([1.5, 2.0], "Unknown label type: continuous, such as 1.5; .* for ContinualRegressor"),
        ([1.0, np.nan], "a label is NaN"),
        ([None, Decimal("NaN")], "a label is NaN"),
        ("ab", "y is 'ab'; give a sequence with a label for each example"),
        (7, "y is 7; give a sequence"),
        (["a", "b", "c"], "X has 2 examples, and y has 3"),
        (np.zeros((2, 2)), "y should be a 1d array"),
    ],
)
def test_what_is_no_label_is_answered_in_a_line(y, line):
    with pytest.raises(ValueError, match=line):
        ContinualClassifier().fit([[0.0], [1.0]], y)


def test_columns_are_sorted_where_labels_can_be():
    X, _ = clusters(3, 1)
    classifier = ContinualClassifier()
    for x, label in zip(X, ["m", "z", "a"], strict=True):
        classifier.learn_one(x, label)
    assert classifier.classes_.tolist() == ["a", "m", "z"]
    assert classifier.predict_proba(X).argmax(1).tolist() == [1, 2, 0]
    classifier.learn_one(100 * X[0], 5)
    assert classifier.classes_.tolist() == ["a", "m", "z", 5]


def test_classes_said_before_they_come_have_columns_and_no_share():
    X, y = clusters(3, 2)
    classifier = ContinualClassifier().partial_fit(X[y < 2], y[y < 2], classes=[0, 1, 2])
    assert classifier.classes_.tolist() == [0, 1, 2]
    assert (classifier.predict_proba(X)[:, 2] == 0).all()
    assert set(classifier.predict(X)) == {0, 1}
    classifier.partial_fit(X[y == 2], y[y == 2])
    assert classifier.score(X, y) == 1


def test_the_seed_decides_which_codes_stand_for_which_labels():
    def codes(seed):
        classifier = classifier_of("transformer", 50, random_state=seed)
        return classifier.fit(noise(4), list("abcd"))._learned.book.codes

    assert codes(0) == codes(0)
    assert codes(0) != codes(1)
    assert codes(None) != codes(None)
    assert len(set(codes(0).values())) == 4


def test_more_classes_than_codes_are_refused_by_their_number():
    classifier = classifier_of("transformer", 4).fit(noise(4), list("abcd"))
    before = classifier.predict_proba(noise(3))
    with pytest.raises(ValueError, match="codes for 4 classes, and 'e' is one more"):
        classifier.learn_one(noise(1)[0], "e")
    assert np.array_equal(classifier.predict_proba(noise(3)), before)
    classifier.learn_one(noise(1)[0], "a")


@pytest.mark.parametrize("name", ["pn", "gemcl"])
def test_learners_without_that_limit_go_on(name):
    X, y = noise(300), [f"class {n}" for n in range(300)]
    classifier = classifier_of(name, 4).partial_fit(X[:10], y[:10]).partial_fit(X[10:], y[10:])
    assert classifier.predict(X).tolist() == y


# forgetting


@pytest.mark.parametrize("options", [{}, {"keep_examples": True}, {"max_examples": 100}])
@pytest.mark.parametrize("name", ["pn", "gemcl", "transformer", "linear_transformer", "oml"])
def test_a_forgotten_class_was_never_there(name, options):
    # the forgotten one comes last, so that the others have the codes that they would have without
    X, y = noise(12), np.array(list("acbcabbcacba"))
    classifier = classifier_of(name, **options).fit(X, y)
    if not options and name not in ("pn", "gemcl"):
        with pytest.raises(ValueError, match="cannot take a class out of its state; with keep_ex"):
            classifier.forget("b")
        return
    classifier.forget("b")
    never = classifier_of(name).fit(X[y != "b"], y[y != "b"])
    found = [each.predict_proba(noise(5, seed=1)) for each in (classifier, never)]
    np.testing.assert_allclose(*found, rtol=1e-9)
    assert classifier.classes_.tolist() == ["a", "c"]
    assert classifier.learn_one(X[0], "new").classes_.tolist() == ["a", "c", "new"]
    assert classifier.class_count_.tolist() == [4, 4, 1]


def test_what_cannot_be_forgotten_is_said():
    X, y = clusters(12, 1)
    classifier = ContinualClassifier().fit(X, y)
    with pytest.raises(ValueError, match=r"no label 99; there are: 0, 1, .*9, \.\.\."):
        classifier.forget(99)
    with pytest.raises(NotFittedError):
        ContinualClassifier().forget(1)


def test_when_all_is_forgotten_it_starts_over():
    X, y = clusters(2, 2)
    classifier = ContinualClassifier().fit(X, y).forget(0).forget(1)
    with pytest.raises(NotFittedError):
        classifier.predict(X)
    assert classifier.fit(X, y).score(X, y) == 1
    assert classifier.reset().predict_one(X[0]) is None
    assert not hasattr(classifier, "classes_")
    # another number of features is fine now
    assert classifier.learn_one([1.0], "a").predict_one([2.0]) == "a"


def test_examples_are_kept_from_the_first_on_or_not_at_all():
    classifier = classifier_of("transformer").fit(noise(3), list("abc"))
    classifier.set_params(keep_examples=True)
    with pytest.raises(ValueError, match="kept from the first on"):
        classifier.learn_one(noise(1)[0], "a")
    assert classifier.fit(noise(3), list("abc")).forget("b").classes_.tolist() == ["a", "c"]


# budgets


def test_kept_examples_are_few_chunks_in_order():
    memory = ()
    for n in range(1_000):
        memory = remembered(memory, Chunk(torch.full((1, 1, 2), float(n)), torch.tensor([[n]])))
        assert len(memory) <= 10
    whole = joined(memory)
    assert whole.y[0].tolist() == whole.z[0, :, 0].tolist() == list(range(1_000))


@pytest.mark.parametrize("which", ["oldest", "balanced"])
def test_a_budget_is_kept_to_and_the_state_is_that_of_what_is_left(which):
    X, y = noise(50), np.array(["a", "a", "a", "b", "a"] * 10)
    classifier = classifier_of("transformer", max_examples=8, which=which)
    small_state = classifier_of("transformer").fit(X[:8], y[:8]).state_bytes_
    held = []
    for image, label in zip(X, y, strict=True):
        classifier.learn_one(image, label)
        held.append(classifier._learned.held)
    assert held[:12] == [1, 2, 3, 4, 5, 6, 7, 8, 7, 8, 7, 8]
    assert classifier.n_samples_seen_ == 50
    assert classifier._learned.state[1].keys.shape[2] == 2 * 8
    assert classifier.state_bytes_ < 2 * small_state
    newest = {"oldest": range(42, 50), "balanced": [33, 38, 43, 45, 46, 47, 48, 49]}[which]
    learner, codes = classifier.learner, classifier._learned.book.codes
    with torch.no_grad():
        z = learner.encode(to_unit(torch.from_numpy(X[newest])).double()[None])
        told = torch.tensor([[codes[label] for label in y[newest]]])
        state = learner.observe(learner.init_state(1), z, learner.encode_y(told))
    assert_close(tree_leaves(classifier._learned.state), tree_leaves(state), **TIGHT)


@pytest.mark.parametrize("codes", [4, 50])
def test_a_class_that_a_budget_has_dropped_is_no_answer_and_gives_its_code_to_others(codes):
    X = noise(40)
    classifier = classifier_of("transformer", codes, max_examples=4)
    for n, image in enumerate(X):
        classifier.learn_one(image, n)
        assert classifier.predict(X[:3]).min() > n - 4
    assert classifier.classes_.tolist() == list(range(40))
    assert classifier.predict_proba(X)[:, :36].max() == 0
    assert classifier.class_count_.sum() == 4


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"max_examples": 0}, "max_examples is 0; give a whole number"),
        ({"max_examples": 2.5}, "max_examples is 2.5"),
        ({"which": "newest"}, "which is 'newest'; there are: oldest, balanced"),
        ({"skip_above": 0}, "skip_above is 0; give a share above 0, at most 1, or None"),
        ({"skip_above": "0.9"}, "skip_above is '0.9'; give a share"),
        ({"skip_above": True}, "skip_above is True; give a share"),
        ({"max_examples": True}, "max_examples is True; give a whole number"),
        ({"random_state": "x"}, "random_state is 'x'"),
        ({"x_shape": (3,)}, r"x_shape is \(3,\), and there is no learner to read it"),
        ({"learner": 3}, "learner is 3; give the folder of a run or model, a Learner, or None"),
        ({"learner": "nowhere"}, "nowhere is not a run"),
        ({"learner": small("pn")}, "a Learner needs x_shape"),
        ({"learner": small("pn"), "x_shape": (2, 16, 16)}, r"x_shape is \(2, 16, 16\); give"),
    ],
)
def test_settings_are_looked_at_when_they_are_used(options, line):
    with pytest.raises(ValueError, match=line):
        ContinualClassifier(**options).fit(*clusters(2, 2))


def test_a_learner_of_the_other_kind_is_refused():
    with pytest.raises(ValueError, match=r"answers 4 classes, .*: it is for ContinualClassifier"):
        ContinualRegressor(small("pn"), x_shape=IMAGE).fit(noise(2), [1.0, 2.0])
    learner = LEARNERS.build("oml", (6,), Vector(6))
    with pytest.raises(ValueError, match="answers 6 numbers: it is for ContinualRegressor"):
        ContinualClassifier(learner, x_shape=(6,)).fit(np.zeros((2, 6)), [0, 1])
    with pytest.raises(ValueError, match=r"y has 1 number\(s\) .* and the learner answers 6"):
        ContinualRegressor(learner, x_shape=(6,)).fit(np.zeros((2, 6)), [0.0, 1.0])
    with pytest.raises(ValueError, match=r"X has 5 features, and the learner reads \(6,\)"):
        ContinualRegressor(learner, x_shape=(6,)).fit(np.zeros((2, 5)), np.zeros((2, 6)))
    with pytest.raises(ValueError, match="ridge is 0"):
        ContinualRegressor(ridge=0).fit(np.zeros((2, 5)), [0, 1])
