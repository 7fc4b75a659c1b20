"""The page in a real browser without a screen: desktop and phone, light and dark."""

import itertools
import json
import os
import shutil
import threading
import time

import pytest

from dpfed.budgets.spending import set_budget
from dpfed.data.store.records import RecordStore
from dpfed.live.access import Access
from dpfed.live.retrieval import Retrieval
from dpfed.live.scan import Scan
from dpfed.privacy.ledger import Ledger
from dpfed.protocol.journal import Journal
from tests.live.conftest import advance, finish
from tests.patience import at_most
from tests.sparing import sparing

pytest.importorskip("starlette")
uvicorn = pytest.importorskip("uvicorn")
playwright = pytest.importorskip("playwright.sync_api")

CHROMIUM = os.environ.get("DPFED_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SITES = ("north", "south", "west")
SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def served(make, tmp_path, shapes):
    """A federation that goes on, a finished run under a budget, one more, and their page: the run and the address."""
    run, done = make("fed", done=3, sites=SITES), make("done", done=6)
    make("a-third-run-with-a-long-name", done=2)
    store = RecordStore.open(shutil.copytree(shapes.path, tmp_path / "store"))
    budget = set_budget(store, 10.0, 1e-5)
    done.budget.write_text(json.dumps({"store": str(store.path), "budgets": [{"id": budget.head.id}]}))
    table = "| | |\n|---|---|\n| N | 600 |\n"
    card = f"# Privacy card of tiny\n\n**This run is (8.00, 1e-3)-differentially private.**\n\n{table}"
    finish(done, {"epsilon": 8.0, "delta": 1e-3}, card)
    journal = Journal(run.journal)
    journal.write("opened", 3)
    journal.write(
        "discarded",
        3,
        reason="1 of 3 sites answered, 2 sites are needed",
        arrived=["north"],
        missing={"south": "gone", "west": "gone"},
    )
    from dpfed.live.app import application  # needs what may not be installed

    app = application(Scan(tmp_path / "runs"), Access(0, "t" * 24), Retrieval())
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]

    def stop():
        server.should_exit = True
        thread.join()

    yield run, f"http://127.0.0.1:{port}", stop
    stop()


@pytest.fixture
def opened(browser, served):
    """Opens pages of one screen and one scheme; what the browser complains of, or fetches from elsewhere, fails the test."""
    complaints, contexts = [], []

    def make(screen="desktop", scheme="light"):
        width, height = SCREENS[screen]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, has_touch=screen == "phone"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: complaints.append(request.url) if not request.url.startswith((served[1], "data:")) else None,
        )
        page.goto(f"{served[1]}/?token={'t' * 24}", wait_until="load")
        return page

    yield make
    for context in contexts:
        context.close()
    assert not [words for words in complaints if "net::ERR_" not in words]  # a server that is gone


@pytest.mark.long
@pytest.mark.parametrize(
    ("screen", "scheme"), sparing(itertools.product(SCREENS, ("light", "dark")), ("desktop", "light"), ("phone", "dark"))
)
def test_every_page_fits_the_screen_and_can_be_read(opened, served, screen, scheme):
    page = opened(screen, scheme)
    for address in ("/", "/runs/fed", "/runs/done"):
        page.goto(served[1] + address, wait_until="load")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), address
        assert page.evaluate(WIDEST) <= SCREENS[screen][0], address
        assert page.evaluate(CONTRAST) >= 4.5, address
        assert page.evaluate(SCALE) >= 0.7, address
        assert "token" not in page.url


@pytest.mark.long
def test_the_page_follows_the_run(opened, served):
    run, *_ = served
    page = opened()
    page.get_by_role("link", name="fed", exact=True).click()
    playwright.expect(page.locator("#line")).to_have_text("live")
    playwright.expect(page.locator(".tile b").first).to_have_text("3")
    advance(run, Ledger.open(run.ledger), 3 + 1, SITES)
    playwright.expect(page.locator(".tile b").first).to_have_text("5", timeout=at_most(20_000))
    assert page.locator("#sites td.past").count() == 3 and "1 of 3 sites answered" in page.locator("#discarded").inner_text()


@pytest.mark.slow
def test_what_a_reader_opened_stays_open(opened, served):
    page = opened()
    page.goto(f"{served[1]}/runs/done", wait_until="load")
    page.locator("#card summary").click()
    page.evaluate("replace(live.innerHTML.replace('finished', 'FINISHED'))")
    assert page.locator("#card[open]").count() == 1 and "600" in page.locator("#card").inner_text()


@pytest.mark.slow
def test_a_server_that_is_gone_is_said(opened, served):
    page = opened()
    playwright.expect(page.locator("#line")).to_have_text("live")
    served[2]()
    playwright.expect(page.locator("#line")).to_have_text("not live: the server is gone", timeout=at_most(20_000))


# How far a table goes to the right, also where it would scroll.
WIDEST = "Math.max(0, ...Array.from(document.querySelectorAll('th, td'), (one) => one.getBoundingClientRect().right))"

# The smallest size of a chart beside the one that it was drawn in: its letters shrink with it.
CHARTS = "Array.from(document.querySelectorAll('.plots svg'), (one) => one.clientWidth / one.viewBox.baseVal.width)"
SCALE = f"Math.min(1, ...{CHARTS})"

# The smallest contrast of any text with what is behind it (WCAG 2), SVG aside.
CONTRAST = """() => {
  const light = (rgb) => rgb.map((one) => (one /= 255) <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
    .reduce((sum, one, at) => sum + one * [0.2126, 0.7152, 0.0722][at], 0);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const behind = (one) => { for (; one; one = one.parentElement) { const c = parse(getComputedStyle(one).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  let least = 21;
  for (const one of document.body.querySelectorAll("*")) {
    const said = Array.from(one.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
    if (!said || !one.checkVisibility() || one.closest("svg")) continue;
    const [a, b] = [light(parse(getComputedStyle(one).color).slice(0, 3)), light(behind(one).slice(0, 3))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
}"""
