"""Visitors, each with what they taught, in memory only."""

import asyncio
import secrets
from collections import OrderedDict, deque
from collections.abc import Callable

from onepass.demo.lesson import Lesson
from onepass.demo.limits import (
    BURST,
    IDLE,
    NEW_BURST,
    NEW_RATE,
    RATE,
    SESSIONS,
    UNDO,
    Bucket,
)
from onepass.demo.play import Play

Clock = Callable[[], float]


class Session:
    """What one visitor has done; whoever changes it holds its lock."""

    def __init__(self, lesson: Lesson, now: float):
        self.key = secrets.token_urlsafe(32)
        self.lock = asyncio.Lock()
        self.bucket, self.seen = Bucket(RATE, BURST, now), now
        self.lesson, self.past = lesson, deque[Lesson](maxlen=UNDO)
        self.count = 0  # of examples ever shown, so that each has a number of its own
        self.play: Play | None = None

    def change(self, lesson: Lesson) -> None:
        self.past.append(self.lesson)
        self.lesson = lesson

    def undo(self) -> bool:
        """Whether there was anything to go back to."""
        if not self.past:
            return False
        self.lesson = self.past.pop()
        return True


class Sessions:
    """By key, the one that is idle longest first."""

    def __init__(self, clock: Clock):
        self.clock, self.newcomers = clock, Bucket(NEW_RATE, NEW_BURST, clock())
        self._by_key: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, key: str | None) -> Session | None:
        """The session with this key, if it is still there; it counts as seen now."""
        self.drop_idle()
        now = self.clock()
        session = self._by_key.get(key or "")
        if session is not None:
            session.seen = now
            self._by_key.move_to_end(session.key)
        return session

    def open(self, lesson: Lesson) -> Session | None:
        """A new one; None where too many came at once."""
        now = self.clock()
        if not self.newcomers.take(now):
            return None
        while len(self._by_key) >= SESSIONS:
            self._by_key.popitem(last=False)
        session = Session(lesson, now)
        self._by_key[session.key] = session
        return session

    def drop_idle(self) -> None:
        now = self.clock()
        while self._by_key and now - next(iter(self._by_key.values())).seen > IDLE:
            self._by_key.popitem(last=False)
