"""Downloads, from a server of our own: checked, gone on with after a break, never assumed."""

import hashlib
import http.server
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from onepass.data import fetch, open_store, prepare_data
from onepass.data.fetch import REMOTE, Remote, download_file, downloads

CONTENT = bytes(range(256)) * 4_000
FILE = "images_background.zip"


class Server(http.server.BaseHTTPRequestHandler):
    """Sends CONTENT; `breaks` says how many answers end in the middle."""

    breaks, knows_ranges, body, asked, lies = 0, True, CONTENT, [], 0

    def do_GET(self):
        cls, start = type(self), 0
        asked = self.headers.get("Range")
        cls.asked.append(asked)
        if asked and cls.knows_ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(cls.body):
                self.send_error(416)
                return
        body = cls.body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            first = start + cls.lies
            self.send_header("Content-Range", f"bytes {first}-{len(cls.body) - 1}/{len(cls.body)}")
        self.end_headers()
        if cls.breaks:
            cls.breaks -= 1
            body = body[: len(body) // 3]
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(data_folder, monkeypatch):
    """A server in a thread, that one file of Omniglot is downloaded from."""

    class Fresh(Server):
        asked = []

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fresh) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{running.server_address[1]}/{FILE}"
        md5 = hashlib.md5(CONTENT).hexdigest()
        monkeypatch.setitem(REMOTE["omniglot"], FILE, Remote(url, 1, md5))
        yield Fresh
        running.shutdown()


def there() -> list[str]:
    paths = downloads("omniglot").iterdir()
    return [path.name for path in paths if path.suffix != ".lock"]


def test_a_download_is_whole_and_kept(server):
    path = download_file("omniglot", FILE)
    assert path == downloads("omniglot") / FILE
    assert path.read_bytes() == CONTENT
    assert there() == [FILE]
    assert server.asked == [None]


def test_a_broken_connection_is_gone_on_with(server):
    server.breaks = 2
    assert download_file("omniglot", FILE).read_bytes() == CONTENT
    first, *later = server.asked
    assert first is None
    second, third = (int(asked.strip("bytes=-")) for asked in later)
    # what came in whole blocks stays
    assert len(CONTENT) // 3 - fetch.BLOCK < second <= len(CONTENT) // 3 < third


def test_what_an_earlier_process_received_is_kept(server):
    part = downloads("omniglot") / f".{FILE}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:1_000])
    assert download_file("omniglot", FILE).read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_other_bytes_than_were_asked_for_are_refused(server):
    part = downloads("omniglot") / f".{FILE}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:1_000])
    server.lies = 5
    with pytest.raises(ValueError, match=r"the rest from byte 1,000, and other bytes came"):
        download_file("omniglot", FILE)


def test_two_that_download_at_once_receive_it_once(server, capsys):
    with ThreadPoolExecutor(2) as pool:
        paths = list(pool.map(lambda _: download_file("omniglot", FILE), range(2)))
    assert paths[0].read_bytes() == CONTENT
    assert server.asked == [None]


def test_all_of_it_received_but_not_yet_named_is_not_sent_again(server):
    part = downloads("omniglot") / f".{FILE}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT)
    assert download_file("omniglot", FILE).read_bytes() == CONTENT


def test_a_server_that_knows_no_ranges_sends_it_all_again(server):
    server.breaks, server.knows_ranges = 1, False
    assert download_file("omniglot", FILE).read_bytes() == CONTENT


def test_a_connection_that_always_breaks_is_given_up_and_its_part_kept(server):
    server.breaks = 99
    with pytest.raises(ValueError, match=r"could not download images_background\.zip \(.*put omni"):
        download_file("omniglot", FILE)
    assert there() == [f".{FILE}.part"]
    part = downloads("omniglot") / f".{FILE}.part"
    assert CONTENT.startswith(part.read_bytes())
    server.breaks = 0
    assert download_file("omniglot", FILE).read_bytes() == CONTENT


@pytest.mark.parametrize("body", [b"<html>Log in first</html>", CONTENT[:-1] + b"?"])
def test_something_else_is_refused_by_its_checksum_and_not_kept(body, server):
    server.body = body
    with pytest.raises(ValueError, match=r"could not download .*md5 checksum is .* and should be"):
        download_file("omniglot", FILE)
    assert there() == []


def test_a_server_that_sends_without_end_is_stopped(server, monkeypatch):
    remote = REMOTE["omniglot"][FILE]
    monkeypatch.setitem(REMOTE["omniglot"], FILE, remote._replace(megabytes=0))
    monkeypatch.setattr(server, "send_header", lambda *_: None)
    with pytest.raises(ValueError, match=r"more than .* bytes came"):
        download_file("omniglot", FILE)


@pytest.mark.parametrize(
    "error",
    [
        requests.ConnectionError("cannot resolve github.com\nand more"),
        requests.ReadTimeout("read timed out"),
        OSError(28, "No space left on device"),
        requests.HTTPError("404 Not Found"),
        requests.ConnectionError(),
    ],
    ids=["offline", "timeout", "full disk", "not found", "no message"],
)
def test_a_failed_download_says_in_one_line_what_to_put_where(error, data_folder, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("requests.get", fail)
    with pytest.raises(ValueError, match=r"could not download images_background\.zip") as caught:
        prepare_data("omniglot")
    message = str(caught.value)
    assert "\n" not in message
    assert str(error).partition("\n")[0] in message
    url = REMOTE["omniglot"][FILE].url
    assert f"put omniglot/{FILE} (from {url}) into a folder" in message
    assert "ONEPASS_DATA" in message


def test_downloads_are_asked_for_never_assumed(data_folder, monkeypatch):
    monkeypatch.setattr(fetch, "download_file", lambda *_: pytest.fail("nobody asked"))
    for name in ("omniglot", "cifar100", "casia", "msceleb"):
        with pytest.raises(ValueError, match=f"no {name}/"):
            open_store(name)
    with pytest.raises(ValueError, match="--agree"):
        prepare_data("casia")


def test_casia_is_downloaded_on_a_word(data_folder, monkeypatch):
    asked = []
    monkeypatch.setattr(fetch, "download_file", lambda _, file: asked.append(file))
    with pytest.raises(ValueError, match=r"no \.gnt file"):
        prepare_data("casia", agree=True)
    assert len(asked) == 10
    assert asked[0] == "Gnt1.0TrainPart1.zip"


def test_the_table_is_complete():
    for name, files in REMOTE.items():
        for file, remote in files.items():
            assert remote.url.endswith(f"/{file}")
            assert remote.megabytes > 0
            assert (remote.md5 is None) == (name == "casia")
