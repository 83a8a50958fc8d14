"""Write a synthetic CASIA-HWDB: as many .gnt files, classes and records as one asks for.

python tools/synthetic_casia.py FOLDER --files 264 --records 3800 --classes 7356
"""

import argparse
import struct
from pathlib import Path

import numpy as np


def tags(count: int) -> list[bytes]:
    """The first two-byte codes of GBK that are characters."""
    codes = (bytes([high, low]) for high in range(0x81, 0xFF) for low in range(0x40, 0xFF))
    found = []
    for code in codes:
        try:
            code.decode("gbk")
        except UnicodeDecodeError:
            continue
        found.append(code)
        if len(found) == count:
            return found
    raise ValueError(f"GBK has {len(found)} characters, and {count} were asked for")


def write_file(path: Path, labels: list[bytes], rng: np.random.Generator) -> None:
    """One writer: a square of its class's shade on white, in a frame of any size."""
    with open(path, "wb") as file:
        for tag in labels:
            width, height = (int(edge) for edge in rng.integers(40, 100, 2))
            page = np.full((height, width), 255, np.uint8)
            page[8:-8, 8:-8] = tag[0] ^ tag[1]
            file.write(struct.pack("<I2sHH", 10 + width * height, tag, width, height))
            file.write(page.tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, default in (("files", 264), ("records", 3_800), ("classes", 7_356)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rng, all_tags = np.random.default_rng(0), tags(given.classes)
    for number in range(given.files):
        first = number * given.records
        labels = [all_tags[(first + n) % given.classes] for n in range(given.records)]
        write_file(given.folder / f"{number:04}-f.gnt", labels, rng)


if __name__ == "__main__":
    main()
