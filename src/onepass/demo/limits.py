"""What a visitor may send, and how often. Everything else is refused with a word."""

import base64
import unicodedata
from typing import Any

import numpy as np
from jaxtyping import UInt8

SIDE = 105  # pixels of a drawing, as Omniglot's scans have them
LABEL = 40  # characters
BODY = 64 << 10  # bytes; a drawing in base64 has 14,700
DRAIN = 128 << 20  # bytes that are read and thrown away, so that the sender hears the answer
PATIENCE = 10.0  # seconds for a body to arrive
EXAMPLES = 200  # in a session
UNDO = 10  # steps back: each keeps a whole state
SESSIONS = 32  # in all; one more drops the one that is idle longest
IDLE = 30 * 60.0  # seconds, after which a session is dropped
LOOK = 60.0  # seconds from one look for idle sessions to the next
RATE, BURST = 20.0, 40.0  # requests a second of one session, and at once
NEW_RATE, NEW_BURST = 2.0, 10.0  # the same of new sessions, from everyone together
AT_ONCE = 2  # forward passes; more of them would only wait for each other


class Bucket:
    """Fills up at a rate, and every request takes one out."""

    def __init__(self, rate: float, burst: float, now: float):
        self.rate, self.burst, self.left, self.then = rate, burst, burst, now

    def take(self, now: float) -> bool:
        self.left = min(self.burst, self.left + (now - self.then) * self.rate)
        self.then = now
        if self.left < 1:
            return False
        self.left -= 1
        return True


def drawing(sent: Any) -> bytes:
    """The grey values of a drawing, row by row; its size is fixed, so nothing is decoded."""
    expected = f"base64 of {SIDE * SIDE} bytes, {SIDE}x{SIDE} grey values"
    if not isinstance(sent, str):
        raise ValueError(f"expected {expected}")
    try:
        content = base64.b64decode(sent, validate=True)
    except ValueError as error:
        raise ValueError(f"expected {expected}") from error
    if len(content) != SIDE * SIDE:
        raise ValueError(f"has {len(content)} bytes, expected {expected}")
    return content


def pixels(content: bytes) -> UInt8[np.ndarray, "side side"]:
    return np.frombuffer(content, np.uint8).reshape(SIDE, SIDE)


def label(sent: Any) -> str:
    """A name as a person would write it; two ways to type one letter are the same."""
    expected = f"expected 1 to {LABEL} printable characters"
    if not isinstance(sent, str) or len(sent) > BODY:
        raise ValueError(expected)
    name = unicodedata.normalize("NFC", sent).strip()
    if not (1 <= len(name) <= LABEL and name.isprintable()):
        raise ValueError(expected)
    return name
