"""The page shows what the terminal shows, to nobody without the token, and lets nothing of a run act in a browser."""

import asyncio
import base64
import io
import json
import os
import re
from urllib.parse import quote

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from dpfed.data.store.record import RecordInput
from dpfed.data.store.writing import StoreWriter
from dpfed.data.views.preprocessing import Preprocessing
from dpfed.errors import UserError
from dpfed.live.figures import details, overview
from dpfed.live.scan import Scan
from dpfed.live.terminal import view
from dpfed.privacy.ledger import Ledger
from dpfed.protocol.journal import Journal
from tests.live.conftest import FIGURE, advance, finish

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from starlette.testclient import TestClient

from dpfed.live.access import Access
from dpfed.live.app import _READERS, _Views, application
from dpfed.live.rendering import Pages
from dpfed.live.retrieval import Retrieval

TOKEN = "t" * 24
SITES = ("north", "south")


def client(place, **options):
    app = application(Scan(place), Access(0, TOKEN), Retrieval())
    return TestClient(app, base_url="http://127.0.0.1", follow_redirects=False, **options)


@pytest.fixture
def known(make, tmp_path):
    """A client with the token, and two runs."""
    make("one", done=3)
    make("fed", done=3, sites=SITES)
    return client(tmp_path / "runs", headers={"Authorization": f"Bearer {TOKEN}"})


def plain(text):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def test_terminal_and_page_show_the_same_figures(make):
    run = make(done=3, sites=SITES)
    with run.locked():
        seen = Scan(run.path).one("one")
        out = io.StringIO()
        Console(file=out, width=200).print(view([seen], single=True))
        page = plain(Pages("here").run(seen))
    figures = [figure for figure in (*overview(seen), *details(seen)) if figure.value is not None]
    assert len(figures) > 15
    for figure in figures:
        if figure.key in ("up", "steps_planned", "epsilon_planned", "evaluation") or "site" in figure.labels:
            continue
        number = figure.shown.split(" ")[0].removeprefix("about")
        assert figure.label in page and number in page, figure
        assert f"{figure.label}  {figure.shown.replace(' %', '%')}" in out.getvalue(), figure  # no line begins with "%"


ADDRESSES = ["/", "/runs/one", "/events?view=runs", "/search?run=one&text=a", "/live.js", "/none"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_nothing_without_the_token(make, tmp_path, address):
    make("one")
    for headers in ({}, {"Authorization": "Bearer x"}, {"Cookie": f"{Access(0, TOKEN).cookie}=x"}):
        answer = client(tmp_path / "runs", headers=headers).get(address)
        assert (
            answer.status_code == 401
            and answer.text == "this page needs its token: open the address that `dpfed serve` printed\n"
        )


def test_the_token_leaves_the_address_and_becomes_a_cookie(known):
    del known.headers["Authorization"]
    entered = known.get(f"/search?run=one&token={TOKEN}&text=a")
    assert entered.status_code == 303 and entered.headers["location"] == "/search?run=one&text=a"
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie and "secure" not in cookie
    assert known.get("/").status_code == 200  # with the cookie alone
    assert known.get(f"http://127.0.0.1//evil.org/?token={TOKEN}").headers["location"] == "/evil.org/"


def test_it_is_for_reading_and_for_this_machine(known):
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert known.request(method, "/").status_code == 405
    assert known.get("/", headers={"Host": "evil.org"}).status_code == 421


def test_browsers_are_told_to_load_nothing_from_elsewhere(known):
    answer = known.get("/")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'") and "script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["cache-control"] == "no-store" and answer.headers["referrer-policy"] == "no-referrer"
    for address in ("/", "/runs/one"):
        text = known.get(address).text
        assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", text)
        assert "<script>" not in text and not re.findall(r"\son\w+=", text)


@pytest.mark.parametrize("name", ["..", "../one", "%2e%2e/secret", "/etc/passwd", "one/../one", "none", "one%00"])
def test_no_name_leads_out_of_the_folder(known, name):
    assert known.get(f"/runs/{name}").status_code in (404, 200) and "root:" not in known.get(f"/runs/{name}").text
    assert known.get("/events", params={"view": "other", "run": name}).status_code == 404


def test_whatever_a_run_says_is_text(make, tmp_path):
    bad = "<script>alert(1)</script>"
    run = make("<img src=x onerror=alert(1)>", done=1, sites=(bad,))
    Journal(run.journal).write("opened", 1)
    Journal(run.journal).write("discarded", 1, reason=bad, arrived=[], missing={bad: bad})
    finish(run, {}, f"# Privacy card of {bad}\n\n**{bad}**\n\n[a](javascript:alert(1)) <b>x</b>\n")
    known = client(tmp_path / "runs", headers={"Authorization": f"Bearer {TOKEN}"})
    pages = [known.get("/").text, known.get("/runs/" + "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E").text]
    for page in pages:
        assert "<script>alert" not in page and "<img src=x" not in page and "<b>x</b>" not in page
        assert 'href="javascript' not in page
    assert "&lt;script&gt;" in pages[1]


def test_names_that_are_no_text_hide_no_run_and_steer_nothing(make, tmp_path, dpfed):
    make("good")
    half, steering = json.loads('"\\ud800"'), "\x1b]0;x\x07"
    make("other").path.rename(tmp_path / "runs" / os.fsdecode(b"\xff"))
    run = make(steering, sites=(half, steering))
    run.append(run.metrics, {"step": 3, "evaluation": FIGURE | {"name": half, "split": half, "model": "trained"}})
    Journal(run.journal).write("discarded", 3, reason=steering, arrived=[], missing={half: half, steering: steering})
    known = client(tmp_path / "runs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert "good" in known.get("/").text and known.get("/healthz").status_code == 503  # one cannot be opened
    assert known.get("/metrics").text.count("dpfed_up{") == 3
    for name in known.get("/healthz").json()["runs"]:
        assert "\x1b" not in name and known.get("/runs/" + quote(name)).status_code == 200
    for words in (["watch", tmp_path / "runs"], ["watch", run.path], ["watch", tmp_path / "runs", "--json"]):
        code, out, _ = dpfed(*words)
        assert code == 0 and "\x1b]" not in out and "\x07" not in out


def test_a_damaged_run_is_a_sentence(make, tmp_path):
    run = make("bad")
    make("good")
    run.ledger.write_text("{}\n")
    known = client(tmp_path / "runs", headers={"Authorization": f"Bearer {TOKEN}"})
    assert "damaged at line 1" in known.get("/").text and "damaged at line 1" in known.get("/runs/bad").text


def test_epsilon_of_a_void_run_is_on_no_page(make, tmp_path, plan):
    make("void", marks={"fixed_seed": True})
    make("good")
    known = client(tmp_path / "runs", headers={"Authorization": f"Bearer {TOKEN}"})
    page = plain(known.get("/runs/void").text)
    assert "&#34;" not in known.get("/live.css").text
    assert "none: no guarantee holds" in page and "8.00" not in page and "Epsilon over steps" not in page
    assert "Epsilon over steps" in plain(known.get("/runs/good").text)


def test_changes_are_sent_and_nothing_else(make):
    """The stream is driven by hand: an HTTP client of this process would read it to its end."""
    run = make(done=2)
    ledger = Ledger.open(run.ledger)
    views = _Views(Scan(run.path), Retrieval())

    class Reader:
        async def is_disconnected(self):
            return False

    async def read():
        stream = views._stream(lambda: views._one("one"), Reader())
        first = json.loads((await anext(stream)).removeprefix("data: "))
        advance(run, ledger, 2)
        second = json.loads((await anext(stream)).removeprefix("data: "))
        await stream.aclose()
        return first, second

    first, second = asyncio.run(read())
    assert ">2<" in first and ">3<" in second


def test_too_many_readers_are_refused(known):
    views = known.app._app.routes[4].endpoint.__self__
    views._readers = _READERS
    assert known.get("/events?view=runs").status_code == 503


@pytest.fixture
def private_store(tmp_path):
    with StoreWriter(tmp_path / "private", name="private", kind="image-text", size=16, public=False) as writer:
        for number in range(20):
            image = np.full((16, 16, 3), number, np.uint8)
            writer.add(RecordInput(str(number), image, captions=("a patient",), split="train"))
    return tmp_path / "private"


def test_pictures_of_private_records_are_never_shown(make, tiny, private_store):
    tiny["data"] |= {"path": str(private_store)}
    run = make(done=6)
    assert "cannot be read" in Retrieval().find(run.path, "a patient").trouble  # it is not finished
    run.results.write_text("{}")
    answer = Retrieval().find(run.path, "a patient")
    assert not answer.pictures and "search-store-private" in answer.trouble
    with pytest.raises(UserError, match="search-store-private"):
        Retrieval(private_store)


def test_a_text_finds_the_public_pictures_nearest_to_it(make, tiny, monkeypatch, public_store):
    """With a model that knows what the captions say: the answers are the pictures with the highest scores, best first."""
    run = make(done=6)
    (run.path / "results.json").write_text("{}")
    store = public_store
    order = np.arange(len(store))[::-1].copy()

    class Knowing:
        size, preprocessing = 16, Preprocessing()

        def embed_images(self, images):
            return torch.eye(len(store))[: len(images)]

        def embed_text(self, text):
            return torch.from_numpy(order[None].astype(np.float32))

    monkeypatch.setattr("dpfed.encoder.load", lambda folder: Knowing())
    answer = Retrieval(store.path).find(run.path, "anything")
    assert answer.searched == 60 and len(answer.pictures) == 12 and not answer.trouble
    pixels = store.images(np.sort(store.smallest(store.within("train"), 60))[:1], 16, "crop", "bicubic")[0]
    first = Image.open(io.BytesIO(base64.b64decode(answer.pictures[0].partition(",")[2])))
    assert np.array_equal(np.asarray(first), pixels.permute(1, 2, 0).numpy())
    assert "Enter a text" in Retrieval(store.path).find(run.path, "  ").trouble
