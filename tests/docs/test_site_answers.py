"""What strangers ask is answered by the site alone: found by its search, near its start, and said on the page.

The questions are such as people ask in issues of Opacus, open_clip, lightly, Flower and NVFlare, in our words.
"""

import functools
import html
import http.server
import re
import shutil
import threading
from collections import deque
from urllib.parse import quote, unquote, urlsplit

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SEARCHED = {  # what is typed -> the page that answers, and words of the answer
    "own model": ("library.html", "dpfed.Trainer"),
    "TensorBoard": ("watching.html", "--report-to tensorboard"),
    "epsilon meaning": ("for-data-protection-officers.html", "Epsilon says how alike the worlds are"),
    "GPU out of memory": ("on-a-gpu.html", "Halve bounding.pass_records"),
    "resume": ("commands.html", "dpfed resume runs/mine"),
    "hospital": ("start-hospital.html", "a site in 15 minutes"),
}
ASKED = {  # a question -> what its asker types, the page that answers, and words of the answer
    "Opacus refuses my model because of BatchNorm. What do I do?": ("BatchNorm", "coming-from.html", "with_group_norm"),
    "Is epsilon = 8 any good? How do I explain it to my boss?": (
        "epsilon 8",
        "for-data-protection-officers.html",
        "At 8 the promise alone is weak",
    ),
    "What must train_data.csv look like, to fine-tune CLIP on my own pairs?": ("csv captions", "data.html", "CSV"),
    "My training stopped. How do I go on from the checkpoint?": ("resume checkpoint", "commands.html", "dpfed resume"),
    "How do I train my own backbone on grayscale images?": ("grayscale images", "library.html", "in_chans=1"),
    "How do I get features of the trained encoder for a linear classifier?": (
        "features scikit-learn",
        "commands.html",
        r"encoder.transformer\(\)",
    ),
    "Our hospital is behind a firewall. Which ports must IT open?": (
        "firewall ports",
        "a-site-in-15-minutes.html",
        "one outgoing connection",
    ),
    "What happens when a client drops out in the middle of a round?": (
        "client drops out",
        "a-site-in-15-minutes.html",
        "without the site if --drops allows it",
    ),
    "Is there a real example with provisioning on several computers?": (
        "provision",
        "a-site-in-15-minutes.html",
        "dpfed federation provision project.toml",
    ),
    "Our cluster has Slurm, and no internet on its nodes. Does it run?": ("Slurm", "cluster.html", "sbatch"),
}
BESIDE = 3  # results that somebody reads
CLICKS = 2


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def search(site):
    """What a browser shows first for some words: pages, in order."""
    sync = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no browser is installed")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])

        def found(words):
            page = browser.new_page()
            page.goto(f"http://127.0.0.1:{server.server_address[1]}/index.html?q={quote(words)}")
            page.wait_for_selector(".md-search-result__item a", timeout=60_000)
            page.wait_for_timeout(500)
            items = "items => items.map(item => item.querySelector('a').href)"
            pages = [
                unquote(urlsplit(link).path).lstrip("/") for link in page.eval_on_selector_all(".md-search-result__item", items)
            ]
            page.close()
            return list(dict.fromkeys(pages))[:BESIDE]

        yield found
        browser.close()
    server.shutdown()


def article(site, page):
    """The part of a page that is not navigation."""
    return (site / page).read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]


def said(site, page):
    text = re.sub(r"<[^>]+>", "", article(site, page))
    return " ".join(html.unescape(text).split())


def clicks(site, wanted):
    """How many links of articles lead from the first page to another one."""
    far, waiting = {"index.html": 0}, deque(["index.html"])
    while waiting:
        page = waiting.popleft()
        for link in re.findall(r'href="([^"#:]+\.html)', article(site, page)):
            target = (site / page).parent.joinpath(unquote(link)).resolve()
            name = target.relative_to(site.resolve()).as_posix() if target.is_relative_to(site.resolve()) else ""
            if name and target.is_file() and name not in far:
                far[name] = far[page] + 1
                waiting.append(name)
    return far.get(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("words", SEARCHED)
def test_the_search_finds_the_page_that_answers(search, site, words):
    page, answer = SEARCHED[words]
    assert page in search(words) and re.search(answer, said(site, page))


@pytest.mark.slow
@pytest.mark.parametrize("question", ASKED, ids=lambda question: question[:50])
def test_a_strangers_question_is_answered(search, site, question):
    words, page, answer = ASKED[question]
    assert re.search(answer, said(site, page))
    assert page in search(words) and clicks(site, page) <= CLICKS
