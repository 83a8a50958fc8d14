"""Images of any kind become what a learner was meta-trained on."""

import numpy as np
import pytest
import torch
from PIL import Image

from onepass import ContinualClassifier
from onepass.estimators.inputs import to_images
from onepass.registry import LEARNERS
from onepass.targets import Classes

GREY, COLOUR = (1, 8, 8), (3, 8, 8)
RNG = np.random.default_rng(0)
PLAIN = RNG.integers(0, 256, (8, 8), np.uint8)
BRIGHT = RNG.integers(0, 256, (8, 8, 3), np.uint8)


def same(X, x_shape=GREY, expected=PLAIN[None]):
    assert np.array_equal(to_images(X, x_shape), expected[None])


@pytest.mark.parametrize(
    "X",
    [
        PLAIN,
        PLAIN[None],
        PLAIN[..., None],
        PLAIN[None, None],
        PLAIN[None, ..., None],
        [PLAIN],
        (PLAIN[None],),
        PLAIN.tolist(),
        PLAIN.astype(np.int64),
        PLAIN / 255,
        (PLAIN / 255).astype(np.float32)[None],
        PLAIN / 255 + 1e-9,
        torch.from_numpy(PLAIN)[None],
        [torch.from_numpy(PLAIN / 255)],
        Image.fromarray(PLAIN),
        [Image.fromarray(PLAIN)],
    ],
    ids=lambda X: f"{type(X).__name__}",
)
def test_a_grey_image_in_any_form_is_the_same(X):
    same(X)


@pytest.mark.parametrize(
    "X",
    [
        BRIGHT,
        BRIGHT[None],
        BRIGHT.transpose(2, 0, 1)[None],
        [BRIGHT.transpose(2, 0, 1)],
        [BRIGHT / 255],
        Image.fromarray(BRIGHT),
        np.dstack([BRIGHT, np.full((8, 8), 255, np.uint8)]),
    ],
    ids=lambda X: f"{type(X).__name__}",
)
def test_a_colour_image_in_any_form_is_the_same(X):
    same(X, COLOUR, BRIGHT.transpose(2, 0, 1))


def test_colours_and_sizes_become_those_of_the_learner():
    grey = np.asarray(Image.fromarray(BRIGHT).convert("L"))
    same([BRIGHT], GREY, grey[None])
    same([PLAIN], COLOUR, np.stack([PLAIN] * 3))
    large = RNG.integers(0, 256, (105, 60), np.uint8)
    small = np.asarray(Image.fromarray(large).resize((8, 8), Image.Resampling.BILINEAR))
    same(large, GREY, small[None])
    flat = np.asarray(Image.fromarray(large).resize((8, 4), Image.Resampling.BILINEAR))
    same(large, (1, 4, 8), flat[None])
    mixed = to_images([large, BRIGHT, Image.fromarray(PLAIN)], GREY)
    assert np.array_equal(mixed, np.stack([small, grey, PLAIN])[:, None])
    # bytes and the same in floats are resized alike
    same(large / 255, GREY, small[None])


def test_what_is_transparent_is_white_and_true_is_white():
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    same(clear, GREY, np.full(GREY, 255))
    same(np.eye(8, dtype=bool), GREY, np.eye(8)[None] * 255)


def test_a_photo_is_turned_upright():
    photo = Image.fromarray(PLAIN)
    photo.getexif()[0x0112] = 3
    same([photo], GREY, PLAIN[None, ::-1, ::-1])


def test_three_arrays_in_a_row_are_three_images_and_not_one_in_colour():
    assert len(to_images(np.stack([PLAIN] * 3), GREY)) == 3
    assert len(to_images(np.zeros((0, 8, 8), np.uint8), GREY)) == 0
    assert to_images([], COLOUR).shape == (0, *COLOUR)


@pytest.mark.parametrize(
    ("X", "line"),
    [
        (np.full((8, 8), np.nan), "NaN or infinite"),
        (np.full((8, 8), np.inf), "NaN or infinite"),
        (np.linspace(-1, 1, 64).reshape(8, 8), r"float64 from -1 to 1; give whole numbers"),
        (PLAIN.astype(float), r"float64 from 4 to 248; give .* floats in \[0, 1\]"),
        (np.full((8, 8), 256), "int64 from 256 to 256"),
        (np.full((8, 8), "a"), "pixels are <U1"),
        (np.zeros(8), r"X has shape \(8,\); this learner reads images"),
        (np.zeros((2, 2, 2, 2, 2)), r"X has shape \(2, 2, 2, 2, 2\)"),
        ([np.zeros((3, 8, 3))], "which axis has the channels"),
        ([np.zeros((8, 8, 2))], "which axis has the channels"),
        ([np.zeros((8, 0))], r"an image has shape \(8, 0\)"),
        ([np.zeros((8, 8)), [1, 2]], "cannot be made an array of images"),
        ([Image.new("F", (8, 8))], "no known range"),
        ([None], r"X has shape \(1,\)"),
    ],
)
def test_what_is_no_image_is_answered_in_a_line(X, line):
    with pytest.raises(ValueError, match=line) as raised:
        to_images(X, GREY)
    assert "\n" not in str(raised.value)


def classifier(**options) -> ContinualClassifier:
    torch.manual_seed(0)
    learner = LEARNERS.build("pn", GREY, Classes(4), width=16, encoder="cnn_small", norm="group")
    return ContinualClassifier(learner.eval(), x_shape=GREY, **options)


def test_symbols_of_any_kind_are_taught_one_by_one():
    taught = classifier()
    taught.learn_one(Image.fromarray(PLAIN), "dark").learn_one(BRIGHT / 255, "bright")
    assert taught.predict([PLAIN, BRIGHT]).tolist() == ["dark", "bright"]
    assert taught.predict_one(torch.from_numpy(BRIGHT).movedim(2, 0)) == "bright"
    shares = taught.predict_proba_one(PLAIN)
    assert shares["dark"] > shares["bright"] > 0
    assert taught.predict(np.zeros((0, 8, 8))).tolist() == []
    assert taught.predict_proba([]).shape == (0, 2)


def test_blank_images_are_images():
    taught = classifier().fit(np.zeros((4, 8, 8), np.uint8), ["a", "b", "a", "b"])
    np.testing.assert_allclose(taught.predict_proba(np.zeros((1, 8, 8))), 0.5)
    taught.learn_one(np.full((20, 30), 255, np.uint8), "white")
    assert taught.predict_one(np.ones((5, 5))) == "white"


@pytest.mark.parametrize("X", [[np.full((8, 8), np.nan)], np.zeros((2, 8, 8)), np.zeros((0, 8, 8))])
def test_a_mistake_leaves_what_was_learned_as_it_was(X):
    taught = classifier().fit([PLAIN, BRIGHT], ["a", "b"])
    before = taught._learned
    with pytest.raises(ValueError):
        taught.partial_fit(X, ["c"])
    assert taught._learned is before


def test_images_need_labels_of_the_same_number():
    with pytest.raises(ValueError, match="X has 3 examples, and y has 1"):
        classifier().fit(np.zeros((3, 8, 8)), ["a"])
    with pytest.raises(ValueError, match="there is no image to learn from"):
        classifier().fit(np.zeros((0, 8, 8)), [])


def test_ten_thousand_questions_at_once_are_those_one_by_one():
    taught = classifier().fit([PLAIN, BRIGHT], ["a", "b"])
    many = RNG.integers(0, 256, (10_000, 8, 8), np.uint8)
    found = taught.predict_proba(many)
    assert found.shape == (10_000, 2)
    for n in (0, 127, 128, 9_999):
        np.testing.assert_allclose(found[n], taught.predict_proba(many[n : n + 1])[0], rtol=1e-5)
