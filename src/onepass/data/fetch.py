"""Where the files come from: those that a person has, and checked, resumable downloads."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from onepass.files import alone, cache_dir, data_dir
from onepass.progress import progress

ATTEMPTS, BLOCK, SECONDS = 4, 1 << 16, 30


class Remote(NamedTuple):
    url: str
    megabytes: int  # about: for people; the checksum decides
    md5: str | None  # None where the owner publishes none


LAKE = "https://github.com/brendenlake/omniglot/raw/master/python"
KRIZ = "https://www.cs.toronto.edu/~kriz"
NLPR = "http://www.nlpr.ia.ac.cn/databases/Download/Offline/CharData"
REMOTE: dict[str, dict[str, Remote]] = {
    "omniglot": {
        "images_background.zip": Remote(
            f"{LAKE}/images_background.zip", 9, "68d2efa1b9178cc56df9314c21c6e718"
        ),
        "images_evaluation.zip": Remote(
            f"{LAKE}/images_evaluation.zip", 6, "6b91aef0f799c5bb55b94e3f2daec811"
        ),
    },
    "cifar100": {
        "cifar-100-binary.tar.gz": Remote(
            f"{KRIZ}/cifar-100-binary.tar.gz", 169, "03b5dce01913d631647c71ecec9e9cb8"
        ),
    },
    "casia": {
        f"Gnt{part}.zip": Remote(f"{NLPR}/Gnt{part}.zip", megabytes, None)
        for part, megabytes in {
            "1.0TrainPart1": 962,
            "1.0TrainPart2": 973,
            "1.0TrainPart3": 983,
            "1.0Test": 722,
            "1.1TrainPart1": 897,
            "1.1TrainPart2": 943,
            "1.1Test": 468,
            "1.2TrainPart1": 900,
            "1.2TrainPart2": 900,
            "1.2Test": 470,
        }.items()
    },
}
# the terms that a person has to agree to before anything is downloaded
TERMS = {
    "casia": "its owner gives it for research only (see www.nlpr.ia.ac.cn/databases/handwriting) "
    "and publishes no checksums: run `onepass data prepare casia --agree` to download its 8 GB on "
    "these terms"
}
WITHDRAWN = {"msceleb": "its owner withdrew it, so it is never downloaded"}


def folders(name: str) -> list[Path]:
    """Where the files of a data set may be: what the person named, then what was downloaded."""
    given = data_dir()
    if given and not given.is_dir():
        raise ValueError(f"ONEPASS_DATA is {given}, and there is no such folder")
    # below its own name, or right there where someone named that folder itself
    places = [given / name, given] if given else []
    return [place for place in (*places, downloads(name)) if place.is_dir()]


def downloads(name: str) -> Path:
    return cache_dir() / "downloads" / name


def find(name: str, *files: str) -> Path | None:
    """The first of these that is there."""
    paths = (folder / file for folder in folders(name) for file in files)
    return next((path for path in paths if path.exists()), None)


def fetch_missing(name: str, files: list[str], download: bool, agree: bool = False) -> None:
    """Download what is not there, where that was asked for; otherwise one line on what to do."""
    for file in files:
        if download and (name not in TERMS or agree) and file in REMOTE.get(name, {}):
            download_file(name, file)
        else:
            raise ValueError(f"no {name}/{file} (looked in: {_looked()}); {_ways(name, file)}")


def _looked() -> str:
    return str(data_dir() or "ONEPASS_DATA is not set, so nowhere")


def _ways(name: str, file: str) -> str:
    if name in WITHDRAWN:
        return f"{WITHDRAWN[name]}; if you hold it, {_put(name, file)}"
    if name in TERMS:
        return f"{TERMS[name]}, or {_put(name, file)}"
    return f"run `onepass data prepare {name}` to download it, or {_put(name, file)}"


def _put(name: str, file: str) -> str:
    remote = REMOTE.get(name, {}).get(file)
    origin = f" (from {remote.url})" if remote else ""
    return (
        f"put {name}/{file}{origin} into a folder and name the folder with --data or ONEPASS_DATA"
    )


def download_file(name: str, file: str) -> Path:
    """The file, whole and checked; a broken download goes on where it was."""
    import requests

    remote, path = REMOTE[name][file], downloads(name) / file
    try:
        with alone(path, f"another process downloads {file}: waiting for it to finish"):
            if not path.exists():
                part = path.with_name(f".{file}.part")
                _receive_all(remote, part, file)
                _check_md5(part, remote.md5)
                os.replace(part, path)
    except (requests.RequestException, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"could not download {file} ({reason}); {_put(name, file)}") from error
    return path


def _receive_all(remote: Remote, part: Path, file: str) -> None:
    import requests

    broken = requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError
    for attempt in range(ATTEMPTS):
        try:
            return _receive(remote, part, file)
        except broken:
            # what has arrived stays, and the next attempt asks for the rest
            if attempt == ATTEMPTS - 1:
                raise
    return None


def _receive(remote: Remote, part: Path, file: str) -> None:
    import requests

    there = part.stat().st_size if part.exists() else 0
    # compressed on the way, a length would not be that of the file
    asked = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={there}-"} if there else {})
    with requests.get(remote.url, headers=asked, stream=True, timeout=SECONDS) as answer:
        if answer.status_code == 416:
            # nothing is left to send: the checksum says whether it is the right file
            return
        answer.raise_for_status()
        if answer.status_code != 206:
            there = 0
        elif not answer.headers.get("Content-Range", "").startswith(f"bytes {there}-"):
            raise ValueError(f"asked for the rest from byte {there:,}, and other bytes came")
        left = int(answer.headers.get("Content-Length", 0))
        total = there + left if left else remote.megabytes * 1_000_000
        with (
            open(part, "ab" if there else "wb") as out,
            progress(f"{file}, bytes", total, there) as show,
        ):
            for block in answer.iter_content(BLOCK):
                there += len(block)
                if there > max(total, 4 * remote.megabytes * 1_000_000):
                    raise ValueError(f"more than {there:,} bytes came, and it has {total:,}")
                out.write(block)
                show(there)
    if left and there < total:
        raise requests.ConnectionError(f"{there:,} of {total:,} bytes came")


def _check_md5(part: Path, md5: str | None) -> None:
    if md5 is None:
        return
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != md5:
        part.unlink()
        raise ValueError(f"its md5 checksum is {found} and should be {md5}")
