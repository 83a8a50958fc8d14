"""Everything an estimator knows, and how it comes to know more. All of it is pure functions."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from onepass.estimators.labels import Book, Label
from onepass.estimators.memory import Choose, Chunk, Memory, joined, remembered
from onepass.estimators.model import Model
from onepass.learner import Learner
from onepass.models import with_more_codes
from onepass.targets import Classes
from onepass.tree import State, span

AT_ONCE = 128  # examples that are encoded, or queries that are answered, in one go
FEW = 16  # examples that are asked about in one go, before the first of them that is learned
FIRST = 5  # of a class, which are always learned


class Learned(NamedTuple):
    """Never changed, only replaced: who reads it while another learns sees one moment of it."""

    model: Model
    state: State
    seen: int = 0  # examples since the start
    memory: Memory = ()
    complete: bool = True  # whether all that is in the state is in the memory
    keys: tuple[Label, ...] | None = None  # what the features are called, where x is a dict
    book: Book | None = None  # of a classifier
    flat: bool = True  # of a regressor: y is one number, and has no axis of its own

    @property
    def held(self) -> int:
        """Examples in the memory."""
        return sum(chunk.y.shape[1] for chunk in self.memory)


class Budget(NamedTuple):
    keep: bool  # the examples, encoded
    most: int | None  # of them in the state
    choose: Choose  # which stay when there are more


Tell = Callable[[Learned, int, int], tuple[Learned, Tensor]]
"""The targets of examples `start` to `stop`, [1, n, ...]; what is known grows by their labels."""


@torch.no_grad()
def learn(learned: Learned, x: np.ndarray, tell: Tell, budget: Budget) -> Learned:
    """After more examples, [N, *X]."""
    _check_kept(learned, budget)
    done = 0
    while done < len(x):
        stop = min(len(x), done + AT_ONCE)
        if budget.most is not None:
            # what is dropped is the same, however many examples come in a call
            if learned.held >= budget.most:
                learned = _dropped(learned, budget)
            stop = min(stop, done + budget.most - learned.held)
        learned, y = tell(learned, done, stop)
        learned = _with(learned, Chunk(learned.model.encode(x[done:stop]), y), budget)
        learned, done = learned._replace(seen=learned.seen + stop - done), stop
    return learned


@torch.no_grad()
def learn_news(
    learned: Learned, x: np.ndarray, labels: Sequence[Label], budget: Budget, sure: float
) -> Learned:
    """Of examples in turn, those whose own label is not that likely by then."""
    _check_kept(learned, budget)
    for start in range(0, len(x), FEW):
        z, told = learned.model.encode(x[start : start + FEW]), list(labels[start : start + FEW])
        learned = learned._replace(seen=learned.seen + len(told))
        while (first := _first_news(learned, z, told, sure)) is not None:
            if budget.most is not None and learned.held >= budget.most:
                learned = _dropped(learned, budget)
            learned, y = coded(learned, told[first : first + 1])
            learned = _with(learned, Chunk(span(z, first, first + 1), y), budget)
            z, told = span(z, first + 1), told[first + 1 :]
    return learned


def _first_news(learned: Learned, z: State, told: list[Label], sure: float) -> int | None:
    """Which example comes first of those that are not known well enough."""
    book, learner = book_of(learned), learned.model.learner
    assert isinstance(learner.target, Classes)
    numbers = torch.tensor([book.codes.get(label, -1) for label in told])
    known = torch.tensor(list(book.held), dtype=torch.long)
    shares = torch.zeros(len(told))
    if len(told) and len(known):
        codes = learner.target.code(known.to(learned.model.like.device))[None]
        scores = learner.score(learned.state, z, codes)[0].softmax(-1).cpu()
        shares = torch.where(numbers[:, None] == known, scores, 0.0).sum(-1)
    held = torch.tensor([book.held.get(number, 0) for number in numbers.tolist()])
    # a share that is no number is news as well
    news = (~(shares >= sure) | (held < FIRST)).nonzero()[:, 0]
    return int(news[0]) if len(news) else None


def _check_kept(learned: Learned, budget: Budget) -> None:
    if budget.keep and not learned.complete:
        raise ValueError(
            "examples are kept from the first on, and some were learned before: reset, or leave "
            "keep_examples and max_examples as they were"
        )


def _with(learned: Learned, chunk: Chunk, budget: Budget) -> Learned:
    return learned._replace(
        state=_observed(learned.model.learner, learned.state, chunk),
        memory=remembered(learned.memory, chunk) if budget.keep else (),
        complete=budget.keep,
        book=None if learned.book is None else learned.book.with_examples(chunk.y),
    )


def _dropped(learned: Learned, budget: Budget) -> Learned:
    """A quarter at once, so that the state is rarely built again."""
    assert budget.most is not None
    whole = joined(learned.memory)
    kept = budget.choose(whole.y, budget.most - max(1, budget.most // 4))
    return rebuilt(learned, whole.rows(kept))


@torch.no_grad()
def rebuilt(learned: Learned, kept: Chunk) -> Learned:
    """As if only these had been learned."""
    learner, book, length = learned.model.learner, learned.book, kept.y.shape[1]
    state = blank(learner, book)
    for start in range(0, length, AT_ONCE):
        state = _observed(learner, state, Chunk(*span(tuple(kept), start, start + AT_ONCE)))
    if book is not None:
        book = book._replace(held={}).with_examples(kept.y)
    return learned._replace(state=state, memory=(kept,) if length else (), book=book)


def _observed(learner: Learner, state: State, chunk: Chunk) -> State:
    return learner.observe(state, chunk.z, learner.encode_y(learner.target.told(chunk.y)))


@torch.no_grad()
def ask(
    learned: Learned, x: np.ndarray, outputs: int, answer: Callable[[State], Tensor]
) -> Float[np.ndarray, "N O"]:
    """What `answer` says of every x, encoded: a few at a time, so that memory stays flat."""
    parts = [np.zeros((0, outputs))]
    for start in range(0, len(x), AT_ONCE):
        found = answer(learned.model.encode(x[start : start + AT_ONCE]))[0]
        parts.append(found.double().cpu().numpy())
    answers = np.concatenate(parts)
    if not np.isfinite(answers).all():
        raise FloatingPointError(f"the answers are not finite{learned.model.learner.hint()}")
    return answers


@torch.no_grad()
def blank(learner: Learner, book: Book | None) -> State:
    """The state before the first example, with room for the codes of the book."""
    state = learner.init_state(1)
    wider = None if book is None else learner.widen(state, book.room)
    return state if wider is None else wider


@torch.no_grad()
def coded(learned: Learned, labels: Sequence[Label]) -> tuple[Learned, Int[Tensor, "1 N"]]:
    """The number of the code of each label; new ones take one, if there are as many."""
    book = book_of(learned)
    if new := [label for label in dict.fromkeys(labels) if label not in book.codes]:
        if len(book.codes) + len(new) > book.room:
            book = book.reclaimed(labels)
        learned = _with_room(learned._replace(book=book.with_labels(new)), new)
    codes = book_of(learned).codes
    numbers = [[codes[label] for label in labels]]
    return learned, torch.tensor(numbers, device=learned.model.like.device)


def _advice(learned: Learned) -> str:
    """What one can do when all codes are taken."""
    learner, room = learned.model.learner, book_of(learned).room
    forgets = (learned.complete and learned.memory) or learner.forget(learned.state, 0) is not None
    ways = ["forget some" if forgets else "set max_examples"]
    if names := with_more_codes(room, learned.model.x_shape):
        ways.append(f"load {' or '.join(names)}")
    return ", ".join([*ways, "or meta-train one with a larger vocabulary or code_length"])


def _with_room(learned: Learned, new: list[Label]) -> Learned:
    book, state = book_of(learned), learned.state
    room = book.room
    while len(book.codes) + len(new) > room:
        room *= 2
    if room > book.room:
        state = learned.model.learner.widen(state, room)
        if state is None:
            raise ValueError(
                f"this learner has codes for {book.room:,} classes, and "
                f"{new[book.room - len(book.codes)]!r} is one more: {_advice(learned)}"
            )
    return learned._replace(state=state, book=book._replace(room=room).with_codes(new))


@torch.no_grad()
def without(learned: Learned, label: Label) -> Learned:
    """As if no example with this label had come: by the learner itself, or by all others again."""
    learner, book, memory = learned.model.learner, book_of(learned), learned.memory
    if label not in book.labels:
        there = ", ".join(map(repr, book.labels[:10])) + ", ..." * (len(book.labels) > 10)
        raise ValueError(f"no label {label!r}; there are: {there}")
    code, rest = book.codes.get(label), book.without(label)
    if code not in book.held:
        return learned._replace(book=rest)
    if memory and learned.complete:
        whole = joined(memory)
        kept = whole.rows((whole.y[0] != code).nonzero()[:, 0])
        return rebuilt(learned._replace(book=rest), kept)
    state = learner.forget(learned.state, code)
    if state is None:
        raise ValueError(
            f"{type(learner).__name__} cannot take a class out of its state; with "
            "keep_examples=True from the start it would learn the others again"
        )
    return learned._replace(state=state, book=rest)


def book_of(learned: Learned) -> Book:
    assert learned.book is not None
    return learned.book
