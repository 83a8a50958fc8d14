"""The demo's server: what it learns is each visitor's own, and every mistake gets a word."""

import asyncio
import base64
import json
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from onepass.data import Store
from onepass.training import train

pytest.importorskip("fastapi", reason='the page needs FastAPI: pip install "onepass[demo]"')
pytest.importorskip("httpx2", reason="starlette's test client needs httpx2")

import httpx2
from starlette.testclient import TestClient

from onepass.demo import lesson, limits, play, server, sessions
from onepass.demo.guard import Guard
from onepass.demo.play import SHOTS, SymbolSet
from onepass.demo.roster import open_roster
from onepass.demo.serve import listen
from onepass.demo.server import create_app
from onepass.estimators.classifier import ContinualClassifier

URL = "http://127.0.0.1:7860"
GLYPHS = {play.GLYPHS: SymbolSet(play.GLYPHS, 6)}


@pytest.fixture(scope="module")
def roster(novices):
    return open_roster(list(novices.values()))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def app(roster, clock):
    return create_app(roster, GLYPHS, clock)


@contextmanager
def visitor(app, **options):
    with TestClient(app, base_url=URL, **options) as client:
        yield client


@pytest.fixture
def client(app):
    with visitor(app) as client:
        yield client


def drawing(seed: int) -> str:
    grey = np.random.default_rng(seed).integers(0, 256, (limits.SIDE, limits.SIDE), np.uint8)
    return base64.b64encode(grey.tobytes()).decode()


def send(client, path: str, content: dict):
    """As plain ASCII, so that letters which are none can be sent too."""
    headers = {"content-type": "application/json"}
    return client.post(f"/api/{path}", content=json.dumps(content), headers=headers)


def teach(client, label, seed: int):
    return send(client, "teach", {"label": label, "image": drawing(seed)})


def ask(client, seed: int, model: str = "pn") -> list[dict]:
    answer = client.post("/api/ask", json={"model": model, "image": drawing(seed)})
    assert answer.status_code == 200, answer.text
    return answer.json()["answers"]


def labels(answer) -> list[str]:
    return [example["label"] for example in answer.json()["examples"]]


def refused(answer, status: int, *words: str) -> None:
    assert answer.status_code == status, answer.text
    said = answer.json()["error"]
    assert len(said) < 240
    for word in words:
        assert word in said


def test_what_is_taught_is_known_at_once_by_every_model(client, roster):
    assert ask(client, 0) == []
    for seed, label in enumerate("aba"):
        answer = teach(client, label, seed)
    assert labels(answer) == ["a", "b", "a"]
    held = answer.json()
    for name, entry in roster.items():
        # oracle: the estimator, taught the same in one call
        images = np.stack([limits.pixels(base64.b64decode(drawing(seed))) for seed in range(3)])
        alone = ContinualClassifier(entry.learner, x_shape=entry.x_shape).fit(images, list("aba"))
        best = ask(client, 5, name)
        image = limits.pixels(base64.b64decode(drawing(5)))
        expected = sorted(alone.predict_proba_one(image).items(), key=lambda item: -item[1])
        assert [answer["label"] for answer in best] == [label for label, _ in expected]
        shares = [answer["share"] for answer in best]
        # in one call or one by one: single precision rounds otherwise
        np.testing.assert_allclose(shares, [share for _, share in expected], atol=1e-4)
        assert held["bytes"][name] == alone.state_bytes_
        assert held["ms"][name] > 0


def test_the_models_say_how_they_grow_and_what_they_hold(client):
    models = {model["name"]: model for model in client.get("/api/about").json()["models"]}
    assert models["pn"]["growth"] == 0
    assert models["pn"]["room"] is None
    # keys and values of one token, in one layer of 16 floats
    assert models["transformer"]["growth"] == 2 * 16 * 4
    assert models["transformer"]["room"] == 8
    empty = client.get("/api/lesson").json()["bytes"]
    assert empty["transformer"] == 0
    assert empty["pn"] == teach(client, "a", 0).json()["bytes"]["pn"] > 0


def test_visitors_do_not_see_each_other(app):
    with visitor(app) as one, visitor(app) as other:
        teach(one, "mine", 0)
        assert ask(other, 0) == []
        assert labels(other.get("/api/lesson")) == []
        teach(other, "theirs", 0)
        assert [each["label"] for each in ask(one, 0)] == ["mine"]
        assert [each["label"] for each in ask(other, 0)] == ["theirs"]
        refused(other.post("/api/forget", json={"label": "mine"}), 404, "label")


def test_undo_goes_back_one_step_at_a_time(client):
    teach(client, "a", 0)
    before = ask(client, 9)
    teach(client, "b", 1)
    assert ask(client, 9) != before
    answer = client.post("/api/undo", json={})
    assert labels(answer) == ["a"]
    assert ask(client, 9) == before
    client.post("/api/clear", json={})
    assert ask(client, 9) == []
    assert labels(client.post("/api/undo", json={})) == ["a"]
    assert ask(client, 9) == before
    assert not client.post("/api/undo", json={}).json()["undo"]
    refused(client.post("/api/undo", json={}), 409, "nothing to undo")


def test_undo_is_bounded(client):
    for seed in range(limits.UNDO + 2):
        teach(client, "a", seed)
    for _ in range(limits.UNDO):
        answer = client.post("/api/undo", json={})
    assert len(labels(answer)) == 2
    refused(client.post("/api/undo", json={}), 409)


@pytest.mark.parametrize("model", ["pn", "transformer"])
def test_a_symbol_that_is_forgotten_was_never_there(app, model):
    with visitor(app) as one, visitor(app) as other:
        for seed, label in enumerate("abcab"):
            teach(one, label, seed)
            if label != "b":
                teach(other, label, seed)
        assert labels(one.post("/api/forget", json={"label": "b"})) == ["a", "c", "a"]
        for mine, theirs in zip(ask(one, 7, model), ask(other, 7, model), strict=True):
            assert mine["label"] == theirs["label"]
            # single precision rounds otherwise when the others come in one call
            assert mine["share"] == pytest.approx(theirs["share"], abs=1e-4)
        for label in "ac":
            answer = one.post("/api/forget", json={"label": label})
        assert labels(answer) == []
        assert ask(one, 7, model) == []


def test_a_page_that_is_opened_again_finds_its_drawings(client):
    teach(client, "a", 3)
    (found,) = client.get("/api/lesson").json()["examples"]
    assert found == {"number": 0, "label": "a", "image": drawing(3)}


def test_only_those_who_teach_or_play_have_a_session(app, client):
    for path in ("/", "/api/about", "/api/lesson"):
        assert client.get(path).status_code == 200
    ask(client, 0)
    client.post("/api/clear", json={})
    assert len(app.state.demo.sessions) == 0
    cookie = teach(client, "a", 0).headers["set-cookie"].lower()
    assert cookie.startswith("onepass-7860=")
    for part in ("httponly", "samesite=strict", "path=/"):
        assert part in cookie
    assert "set-cookie" not in teach(client, "a", 1).headers
    assert len(app.state.demo.sessions) == 1


def test_a_key_that_was_not_given_out_opens_nothing(app, client):
    client.cookies.set("onepass-7860", "guessed")
    assert labels(teach(client, "a", 0)) == ["a"]
    (session,) = app.state.demo.sessions._by_key
    assert session != "guessed"
    assert len(session) >= 40


BAD_LABELS = ["", "  ", "x" * 41, "a\nb", "\u202eabc", "\x00", "\ud800", 3, None, ["a"], {}]
BAD_IMAGES = ["", "?", "AAAA", base64.b64encode(bytes(11_024)).decode(), "é" * 14_700, 7, None, []]


@pytest.mark.parametrize("label", BAD_LABELS)
def test_a_wrong_label_is_refused_with_a_word(client, label):
    refused(teach(client, label, 0), 422, "label", "1 to 40 printable characters")
    refused(send(client, "forget", {"label": label}), 422, "label")


@pytest.mark.parametrize("image", BAD_IMAGES)
def test_a_wrong_drawing_is_refused_with_a_word(client, image):
    sent = {"label": "a", "model": "pn", "image": image}
    for path in ("teach", "ask"):
        refused(client.post(f"/api/{path}", json=sent), 422, "image", "11025 bytes")


@pytest.mark.parametrize("name", ["a" * 40, "é", "e\u0301", " star ", "<b>&\"'", "字", "👍"])
def test_names_may_be_in_any_script(client, name):
    (label,) = labels(teach(client, name, 0))
    assert label == name.strip().replace("e\u0301", "é")
    assert labels(client.post("/api/forget", json={"label": name})) == []


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("{", ["body", "JSON"]),
        ("", ["body"]),
        ("[]", ["body"]),
        ("3", ["body"]),
        ('{"label": NaN, "image": NaN}', ["label"]),
        ('{"label": "a"}', ["image", "required"]),
        ("[" * 60_000, []),
        ("\xff", []),
    ],
)
def test_what_is_no_drawing_with_a_name_is_refused(client, body, words):
    sent = {"content": body.encode("latin-1"), "headers": {"content-type": "application/json"}}
    answer = client.post("/api/teach", **sent)
    refused(answer, answer.status_code, *words)
    assert answer.status_code in (400, 422)
    assert labels(client.get("/api/lesson")) == []


def test_only_json_is_read(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; a=b"):
        answer = client.post("/api/clear", content="{}", headers={"content-type": kind})
        refused(answer, 415, "application/json")
    refused(client.post("/api/clear"), 415)


def test_unknown_models_sets_and_pages_are_said(client):
    sent = {"model": "nobody", "image": drawing(0), "set": play.GLYPHS}
    refused(client.post("/api/ask", json=sent), 422, "model: expected one of pn, transformer")
    refused(client.post("/api/play", json=sent), 422, "model")
    sent |= {"model": "pn", "set": "runes"}
    refused(client.post("/api/play", json=sent), 422, "set: expected one of drawn glyphs")
    for path in ("/api/nothing", "/page/../server.py", "/page/%2e%2e/server.py", "/docs"):
        assert client.get(path).status_code == 404
    assert client.get("/api/teach").status_code == 405


def test_only_this_machine_is_meant(app):
    with visitor(app) as client:
        for host in ("evil.example", "127.0.0.1.evil.example", "192.168.0.1", ""):
            assert client.get("/", headers={"host": host}).status_code == 400
        for host in ("localhost:7860", "127.0.0.1"):
            assert client.get("/", headers={"host": host}).status_code == 200


def test_the_page_may_load_nothing_from_elsewhere(client):
    for path in ("/", "/api/about", "/page/main.js", "/nothing"):
        headers = client.get(path, headers={"origin": "http://evil.example"}).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert not [name for name in headers if name.startswith("access-control")]
        assert headers["x-content-type-options"] == "nosniff"


def test_a_large_body_is_refused_by_what_it_declares_and_by_what_comes(client):
    large = {"content": b" " * (limits.BODY + 1)}
    refused(client.post("/api/teach", **large), 413, "65536 bytes")
    fits = {"content": b" " * limits.BODY, "headers": {"content-type": "application/json"}}
    refused(client.post("/api/teach", **fits), 422)


async def from_guard(messages, headers=()):
    """What the guard answers to a body in parts, and whether the app behind it was asked."""
    asked, sent = [], []

    async def app(scope, receive, send):
        asked.append(await receive())

    async def receive():
        if not messages:
            await asyncio.sleep(60)
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "headers": [*headers]}
    await Guard(app)(scope, receive, send)
    return sent[0]["status"] if sent else None, asked


def in_parts(count, size=1_000):
    more = [count - 1 - n > 0 for n in range(count)]
    return [{"type": "http.request", "body": b"x" * size, "more_body": each} for each in more]


JSON = (b"content-type", b"application/json")


def test_parts_are_counted_whatever_was_declared(monkeypatch):
    honest = [(b"content-length", b"3000"), JSON]
    status, (asked,) = asyncio.run(from_guard(in_parts(3), honest))
    assert status is None
    assert asked["body"] == b"x" * 3_000
    for declared in ([JSON], honest):
        assert asyncio.run(from_guard(in_parts(66), declared)) == (413, [])
    # nobody is listened to for ever
    monkeypatch.setattr("onepass.demo.guard.DRAIN", 10_000)
    endless = in_parts(1_000)
    assert asyncio.run(from_guard(endless, [(b"content-length", b"9" * 5_000)])) == (413, [])
    assert len(endless) > 900
    assert asyncio.run(from_guard(in_parts(1), [(b"content-length", b"many")])) == (400, [])


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch):
    monkeypatch.setattr("onepass.demo.guard.PATIENCE", 0.05)
    assert asyncio.run(from_guard(in_parts(3)[:2], [JSON])) == (408, [])
    assert asyncio.run(from_guard(in_parts(99)[:70], [JSON])) == (413, [])


def test_a_session_may_not_ask_too_often(app, clock, client):
    teach(client, "a", 0)
    allowed = 0
    while client.get("/api/lesson").status_code == 200:
        allowed += 1
        assert allowed <= limits.BURST
    assert allowed == limits.BURST
    refused(client.get("/api/lesson"), 429, "at most 20 a second")
    with visitor(app) as other:
        assert teach(other, "a", 0).status_code == 200
    clock.now += 1.01 / limits.RATE
    assert client.get("/api/lesson").status_code == 200
    refused(client.get("/api/lesson"), 429)


def test_not_too_many_can_come_at_once(app, clock):
    statuses = []
    for _ in range(int(limits.NEW_BURST) + 2):
        with visitor(app) as client:
            statuses.append(teach(client, "a", 0).status_code)
    assert statuses == [200] * int(limits.NEW_BURST) + [429] * 2
    clock.now += 1
    with visitor(app) as client:
        assert teach(client, "a", 0).status_code == 200


def test_the_session_that_is_idle_longest_makes_room(app, clock, monkeypatch):
    monkeypatch.setattr(sessions, "SESSIONS", 2)
    with visitor(app) as one, visitor(app) as two, visitor(app) as three:
        for n, client in enumerate((one, two)):
            clock.now += 1
            teach(client, "a", n)
        clock.now += 1
        assert labels(one.get("/api/lesson")) == ["a"]
        teach(three, "a", 0)
        assert labels(two.get("/api/lesson")) == []
        assert labels(one.get("/api/lesson")) == labels(three.get("/api/lesson")) == ["a"]
    assert len(app.state.demo.sessions) == 2


def test_idle_sessions_are_dropped_while_nobody_asks(app, clock, client, monkeypatch):
    monkeypatch.setattr(limits, "LOOK", 0.01)
    teach(client, "a", 0)
    clock.now += limits.IDLE + 1
    # a server that has only just begun, and is asked nothing
    with visitor(app):
        end = time.monotonic() + 10
        while len(app.state.demo.sessions):
            assert time.monotonic() < end
            time.sleep(0.01)


def test_idle_sessions_are_dropped(app, clock, client):
    teach(client, "a", 0)
    clock.now += limits.IDLE - 1
    assert labels(client.get("/api/lesson")) == ["a"]
    clock.now += limits.IDLE + 1
    # anyone's request does it
    with visitor(app) as other:
        other.get("/api/lesson")
    assert len(app.state.demo.sessions) == 0
    assert labels(client.get("/api/lesson")) == []
    assert labels(teach(client, "b", 0)) == ["b"]


def test_there_is_room_for_so_many_examples(client, monkeypatch):
    monkeypatch.setattr(lesson, "EXAMPLES", 3)
    for seed in range(3):
        assert teach(client, "a", seed).status_code == 200
    refused(teach(client, "a", 3), 422, "room for 3 examples")
    assert labels(client.get("/api/lesson")) == ["a"] * 3


def test_more_symbols_than_codes_are_refused_and_nothing_changes(client, novices):
    for seed in range(8):
        teach(client, f"symbol {seed}", seed)
    before = [ask(client, 20, name) for name in novices]
    refused(teach(client, "one more", 9), 422, "transformer: this learner has codes for 8 classes")
    assert len(labels(client.get("/api/lesson"))) == 8
    assert [ask(client, 20, name) for name in novices] == before
    assert teach(client, "symbol 3", 9).status_code == 200


async def at_once(app, *requests):
    """Requests of one visitor, all sent before the first is answered."""
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url=URL) as client:
        await client.post("/api/teach", json={"label": "first", "image": drawing(0)})
        return await asyncio.gather(
            *(client.request(*request[:2], **request[2]) for request in requests)
        )


def test_requests_of_one_visitor_do_not_race(app):
    sent = [("POST", "/api/teach", {"json": {"label": "a", "image": drawing(n)}}) for n in range(9)]
    answers = asyncio.run(at_once(app, *sent))
    assert sorted(len(labels(answer)) for answer in answers) == list(range(2, 11))
    (session,) = app.state.demo.sessions._by_key.values()
    assert [example.number for example in session.lesson.examples] == list(range(10))
    assert session.lesson.learners["pn"].n_samples_seen_ == 10


def test_learning_does_not_keep_others_waiting(app, monkeypatch):
    taught, go_on = lesson.taught, threading.Event()

    def slowly(before, example):
        if example.label == "slow":
            assert go_on.wait(30)
        return taught(before, example)

    monkeypatch.setattr(server, "taught", slowly)

    async def scene():
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url=URL) as client:
            sent = {"label": "slow", "image": drawing(0)}
            slow = asyncio.create_task(client.post("/api/teach", json=sent))
            await asyncio.sleep(0.05)
            async with asyncio.timeout(20):
                assert (await client.get("/api/about")).status_code == 200
                quick = await client.post("/api/teach", json=sent | {"label": "quick"})
            assert labels(quick) == ["quick"]
            assert not slow.done()
            go_on.set()
            assert labels(await slow) == ["slow"]

    asyncio.run(scene())


@pytest.mark.parametrize("model", ["pn", "transformer"])
def test_a_set_is_played_symbol_by_symbol(client, app, roster, model):
    teach(client, "mine", 0)
    begun = client.post("/api/play", json={"model": model, "set": play.GLYPHS}).json()
    assert len(begun["symbols"]) == 6
    assert begun["side"] == 32
    (session,) = app.state.demo.sessions._by_key.values()
    drawings = session.play.drawings
    assert base64.b64decode(begun["symbols"][2]) == drawings[2, 0].tobytes()
    entry = roster[model]
    alone = ContinualClassifier(entry.learner, x_shape=entry.x_shape)
    for shown in range(6):
        alone.partial_fit(drawings[shown, :SHOTS], [f"symbol {shown}"] * SHOTS)
        right = [
            sum(answer == f"symbol {n}" for answer in alone.predict(drawings[n, SHOTS:]))
            for n in range(shown + 1)
        ]
        answer = client.post("/api/next", json={}).json()
        assert answer["wrong"] == [play.QUERIES - count for count in right]
        assert answer["bytes"] == alone.state_bytes_
    refused(client.post("/api/next", json={}), 409, "nothing is being played")
    assert labels(client.get("/api/lesson")) == ["mine"]


def test_nothing_is_played_before_it_is_begun(client):
    refused(client.post("/api/next", json={}), 409, "nothing is being played")
    teach(client, "a", 0)
    refused(client.post("/api/next", json={}), 409)


def test_no_more_symbols_are_played_than_there_are_codes(roster):
    entry = roster["transformer"]
    assert play.Play.of(entry, SymbolSet(play.GLYPHS, 20)).symbols == entry.room == 8


def test_alphabets_are_those_of_the_test_split_in_order(monkeypatch):
    names = [f"{alphabet}/character{n:02}" for alphabet in ("Old_Runes", "New") for n in (1, 2)]
    # the grey value says which class and drawing it is
    images = np.arange(4 * 20, dtype=np.uint8)[:, None, None].repeat(9, 1).repeat(9, 2)
    store = Store.from_arrays(images, np.repeat(names, 20), test=1.0)
    monkeypatch.setattr(play, "what_is_missing", lambda name: None)
    monkeypatch.setattr(play, "open_store", lambda name: store)
    sets = play.symbol_sets()
    assert list(sets) == ["New", "Old Runes", play.GLYPHS]
    drawn = sets["Old Runes"].draw(np.random.default_rng(0))
    assert drawn.shape == (2, SHOTS + play.QUERIES, 9, 9)
    assert (drawn == drawn[:, :, :1, :1]).all()
    assert drawn[0].max() < 20 <= drawn[1].min()
    assert all(len(set(symbol[:, 0, 0].tolist())) == len(symbol) for symbol in drawn)


def test_without_omniglot_there_are_glyphs_new_every_time(data_folder):
    (only,) = play.symbol_sets().values()
    assert only.name == play.GLYPHS
    one, other = (only.draw(np.random.default_rng(seed)) for seed in (0, 1))
    assert one.shape == (play.SYMBOLS, SHOTS + play.QUERIES, 32, 32)
    assert not np.array_equal(one, other)


def test_mistakes_at_the_command_are_one_line(answer, monkeypatch, tiny, tmp_path, novices):
    def said(*arguments):
        ended = answer("demo", *arguments)
        assert ended.returncode == 2
        assert ended.stdout == ""
        said = ended.stderr.strip().splitlines()
        assert len(said) == 1, said
        return said[0]

    monkeypatch.setattr("uvicorn.Server.run", lambda *_, **__: pytest.fail("it was served"))
    train(tiny(steps=1), tmp_path / "sine", "cpu", lambda line: None)
    assert "the page needs a model that tells images apart" in said("sine")
    assert "no model 'nowhere'; there are: " in said("nowhere")
    with listen(0) as taken:
        port = str(taken.getsockname()[1])
        assert f"port {port}: Address already in use; name another" in said(
            novices["pn"], "--port", port
        )
    monkeypatch.setattr("onepass.demo.roster.shipped", list)
    assert "no model comes with this onepass: name the folder of one" in said()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "onepass[demo]"' in said()


def test_models_are_named_by_their_folders_where_that_tells_them_apart(novices, tmp_path):
    (tmp_path / "pn").symlink_to(novices["pn"])
    given = [novices["pn"], str(tmp_path / "pn"), novices["transformer"], novices["pn"]]
    assert list(open_roster(given)) == [given[0], given[1], "transformer"]
