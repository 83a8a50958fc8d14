"""The page and what it asks for. Forward passes run in threads, one at a time for each visitor."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, BeforeValidator
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from onepass.demo import limits
from onepass.demo.guard import Guard, Refused
from onepass.demo.lesson import Example, Lesson, answers, empty_lesson, taught, without
from onepass.demo.play import QUERIES, SHOTS, Play, SymbolSet, next_symbol
from onepass.demo.roster import Roster
from onepass.demo.sessions import Clock, Session, Sessions

PAGE = Path(__file__).parent / "page"
HOSTS = ["127.0.0.1", "localhost"]
T = TypeVar("T")
Json = dict[str, Any]

Drawing = Annotated[bytes, BeforeValidator(limits.drawing)]
Label = Annotated[str, BeforeValidator(limits.label)]
router = APIRouter(prefix="/api")


class Demo(NamedTuple):
    """What all visitors share."""

    roster: Roster
    sets: dict[str, SymbolSet]
    sessions: Sessions
    passes: asyncio.Semaphore  # forward passes at once


def create_app(
    roster: Roster, sets: dict[str, SymbolSet], clock: Clock = time.monotonic
) -> FastAPI:
    # no pages about the interface: they would load from elsewhere
    app = FastAPI(openapi_url=None, lifespan=_tidied)
    app.state.demo = Demo(roster, sets, Sessions(clock), asyncio.Semaphore(limits.AT_ONCE))
    app.include_router(router)
    app.add_api_route("/", lambda: FileResponse(PAGE / "index.html"), include_in_schema=False)
    app.mount("/page", StaticFiles(directory=PAGE))
    app.add_middleware(Guard)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _failed)
    return app


@asynccontextmanager
async def _tidied(app: FastAPI) -> AsyncIterator[None]:
    """Sessions that are idle go while nobody asks for anything, too."""

    async def look() -> None:
        while True:
            await asyncio.sleep(limits.LOOK)
            app.state.demo.sessions.drop_idle()

    looking = asyncio.create_task(look())
    try:
        yield
    finally:
        looking.cancel()


def _refused(request: Request, error: Any) -> Response:
    return JSONResponse({"error": error.word}, error.status)


def _invalid(request: Request, error: Any) -> Response:
    """The first thing that is wrong; what was sent is not repeated."""
    first = error.errors()[0]
    field = first["loc"][-1] if first["type"] != "json_invalid" else "body"
    word = first["msg"].removeprefix("Value error, ")
    return JSONResponse({"error": f"{field}: {word}"}, 422)


def _failed(request: Request, error: Any) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _demo(request: Request) -> Demo:
    return request.app.state.demo


Here = Annotated[Demo, Depends(_demo)]


async def _visitor(request: Request, demo: Here) -> Session | None:
    """Who asks, if they have taught anything yet."""
    session = demo.sessions.find(request.cookies.get(_cookie(request)))
    if session and not session.bucket.take(demo.sessions.clock()):
        raise Refused(429, f"too many requests: expected at most {limits.RATE:.0f} a second")
    return session


Visitor = Annotated[Session | None, Depends(_visitor)]


def _cookie(request: Request) -> str:
    """Cookies know no ports, and there may be two of these pages on one machine."""
    return f"onepass-{request.url.port}"


def _welcome(demo: Demo, request: Request, response: Response) -> Session:
    """A session for someone new. A look at the page opens none, so that no other site can."""
    session = demo.sessions.open(empty_lesson(demo.roster))
    if session is None:
        raise Refused(429, "too many visitors at once: expected a moment's patience")
    response.set_cookie(_cookie(request), session.key, httponly=True, samesite="strict")
    return session


async def _work(demo: Demo, function: Callable[..., T], *arguments: Any) -> T:
    """In a thread; what a learner cannot do is the visitor's to know."""
    try:
        async with demo.passes:
            return await asyncio.to_thread(function, *arguments)
    except (ValueError, ArithmeticError) as error:
        raise Refused(422, str(error)) from error


class Shown(BaseModel):
    label: Label
    image: Drawing


class Question(BaseModel):
    model: str
    image: Drawing


class Named(BaseModel):
    label: Label


class Choice(BaseModel):
    model: str
    set: str


@router.get("/about")
async def about(demo: Here) -> Json:
    """What stays the same as long as this runs."""
    models = [
        {"name": name, "growth": entry.growth, "room": entry.room}
        for name, entry in demo.roster.items()
    ]
    return {
        "models": models,
        "sets": [{"name": each.name, "symbols": each.symbols} for each in demo.sets.values()],
        "examples": limits.EXAMPLES,
        "shots": SHOTS,
        "queries": QUERIES,
    }


@router.get("/lesson")
async def lesson(demo: Here, visitor: Visitor) -> Json:
    """All that was taught, drawings included."""
    if visitor is None:
        return _summary(demo, empty_lesson(demo.roster), False, True)
    return _summary(demo, visitor.lesson, bool(visitor.past), True)


@router.post("/ask")
async def ask(asked: Question, demo: Here, visitor: Visitor) -> Json:
    model = _chosen("model", asked.model, demo.roster)
    if visitor is None:
        return {"answers": [], "ms": 0.0}
    async with visitor.lock:
        learner = visitor.lesson.learners[model]
        found, seconds = await _work(demo, answers, learner, asked.image)
    best = [{"label": name, "share": share} for name, share in found]
    return {"answers": best, "ms": 1_000 * seconds}


@router.post("/teach")
async def teach(
    shown: Shown, demo: Here, visitor: Visitor, request: Request, response: Response
) -> Json:
    session = visitor or _welcome(demo, request, response)
    async with session.lock:
        example = Example(session.count, shown.label, shown.image)
        session.change(await _work(demo, taught, session.lesson, example))
        session.count += 1
        return _summary(demo, session.lesson, True)


@router.post("/undo")
async def undo(demo: Here, visitor: Visitor) -> Json:
    if visitor is None:
        raise Refused(409, "there is nothing to undo")
    async with visitor.lock:
        if not visitor.undo():
            raise Refused(409, "there is nothing to undo")
        return _summary(demo, visitor.lesson, bool(visitor.past))


@router.post("/forget")
async def forget(named: Named, demo: Here, visitor: Visitor) -> Json:
    unknown = Refused(404, "label: expected one that was taught")
    if visitor is None:
        raise unknown
    async with visitor.lock:
        if all(example.label != named.label for example in visitor.lesson.examples):
            raise unknown
        visitor.change(await _work(demo, without, visitor.lesson, named.label, demo.roster))
        return _summary(demo, visitor.lesson, True)


@router.post("/clear")
async def clear(demo: Here, visitor: Visitor) -> Json:
    if visitor is None:
        return _summary(demo, empty_lesson(demo.roster), False)
    async with visitor.lock:
        visitor.change(empty_lesson(demo.roster))
        return _summary(demo, visitor.lesson, True)


@router.post("/play")
async def play(
    choice: Choice, demo: Here, visitor: Visitor, request: Request, response: Response
) -> Json:
    entry = demo.roster[_chosen("model", choice.model, demo.roster)]
    chosen = demo.sets[_chosen("set", choice.set, demo.sets)]
    session = visitor or _welcome(demo, request, response)
    async with session.lock:
        session.play = await _work(demo, Play.of, entry, chosen)
        first = session.play.drawings[:, 0]
    return {"side": first.shape[-1], "symbols": [_text(image.tobytes()) for image in first]}


@router.post("/next")
async def next_(demo: Here, visitor: Visitor) -> Json:
    if visitor is None:
        raise Refused(409, "nothing is being played")
    async with visitor.lock:
        if visitor.play is None or visitor.play.shown == visitor.play.symbols:
            raise Refused(409, "nothing is being played")
        visitor.play, asked = await _work(demo, next_symbol, visitor.play)
    return {"wrong": asked.wrong, "bytes": asked.held}


def _chosen(field: str, name: str, there: dict[str, Any]) -> str:
    if name not in there:
        raise Refused(422, f"{field}: expected one of {', '.join(there)}")
    return name


def _summary(demo: Demo, lesson: Lesson, undo: bool, images: bool = False) -> Json:
    examples = [{"number": each.number, "label": each.label} for each in lesson.examples]
    if images:
        for told, each in zip(examples, lesson.examples, strict=True):
            told["image"] = _text(each.image)
    held = {
        name: lesson.learners[name].state_bytes_ if examples else entry.empty
        for name, entry in demo.roster.items()
    }
    ms = {name: 1_000 * seconds for name, seconds in lesson.seconds.items()}
    return {"examples": examples, "undo": undo, "bytes": held, "ms": ms}


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()
