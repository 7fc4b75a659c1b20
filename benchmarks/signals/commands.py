"""The commands that are interrupted: their words, what they find in their folder, and how a signal may end them.

``{port}`` stands for a free port, ``{coordinator}`` and ``{south}`` for fingerprints of the seed.
"""

from __future__ import annotations

from dataclasses import dataclass

TORCHRUN = "torchrun"  # the first word of a command that torchrun starts


@dataclass(frozen=True)
class Command:
    """A command line of users.

    Attributes:
        words: behind `dpfed`, or all of them where the first is `TORCHRUN`.
        needs: files and folders of the seed that are copied into its folder.
        codes: exit codes of a command that ends by itself.
        until_stopped: whether a signal is its ordinary end, with 0: ``"both"``, ``"ctrl-c"``, or neither.
        heavy: it starts many processes, so one start of it runs at a time.
        late: further signals at random moments of the 50 seconds behind the first 20.
        then: what works afterwards, by the path that decides: the first one that is there, or has no path.
    """

    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0,)
    until_stopped: str = ""
    heavy: bool = False
    late: int = 0
    then: tuple[tuple[str, str], ...] = ()


def _words(line: str) -> tuple[str, ...]:
    return tuple(line.split())


def _finish(run: str, otherwise: str) -> tuple[tuple[str, str], ...]:
    return ((run, f"resume {run}"), ("", otherwise))


_RUN = ("tiny.toml",)
_NEW = "pretrain tiny.toml --run runs/new --set privacy.steps=60"
_SETUP = "site setup chest/kits/chest-north.kit.json --coordinator {coordinator} --store stores/north --into mine"
_FIGURES = " ".join(
    f"--assume {figure}"
    for figure in ("throughput=1000", "bandwidth=1e10", "latency=1e-4", "noise=1e9", "bookkeeping=0.01", "price=2")
)
_SITE = ("sites", "budgets")

COMMANDS: dict[str, Command] = {
    "config list": Command(_words("config list")),
    "config show": Command(_words("config show quickstart")),
    "config keys": Command(_words("config keys privacy")),
    "reproduce list": Command(_words("reproduce --list")),
    "privacy calibrate": Command(_words("privacy calibrate --records 60000 --batch 2048 --steps 1200 --epsilon 10")),
    "privacy account": Command(_words("privacy account --records 60000 --batch 2048 --steps 1200 --noise-multiplier 1")),
    "privacy ledger": Command(_words("privacy ledger runs/done"), ("runs/done",)),
    "privacy verify": Command(_words("privacy verify runs/done/privacy_card.md runs/done"), ("runs/done",)),
    "data import": Command(
        _words("data import pictures out/stores/mine --size 64 --validation 100"),
        ("pictures",),
        late=8,
        then=(
            ("out/stores/mine", "data inspect out/stores/mine --check"),
            ("", "data import pictures out/stores/mine --size 64"),
        ),
    ),
    "data inspect": Command(_words("data inspect stores/records --check"), ("stores/records",)),
    "budget set": Command(
        _words("budget set stores/records --epsilon 20 --delta 1e-4"),
        ("stores/records", "budgets"),
        then=(("", "budget set stores/records --epsilon 20 --delta 1e-4"), ("", "budget show stores/records")),
    ),
    "budget show": Command(_words("budget show stores/budgeted"), ("stores/budgeted", "budgets")),
    "budget history": Command(_words("budget history stores/budgeted"), ("stores/budgeted", "budgets")),
    "budget settle": Command(_words("budget settle runs/begun"), ("runs/begun", "budgets"), (0, 2)),
    "forecast": Command(_words("forecast tiny.toml"), _RUN, late=4),
    "rehearse": Command(
        _words("rehearse tiny.toml --public-records 200 --out rehearsal"),
        _RUN,
        late=6,
        then=(("", "rehearse tiny.toml --public-records 200 --out rehearsal"),),
    ),
    "start": Command(_words("start tiny.toml --set training.device=cpu"), _RUN, late=6),
    "pretrain": Command(_words(_NEW), _RUN, late=8, then=_finish("runs/new", _NEW)),
    "resume": Command(_words("resume runs/open"), ("runs/open",), late=8, then=_finish("runs/open", "")),
    "sweep": Command(
        _words("sweep tiny.toml sweep.toml --runs sweeps"),
        ("tiny.toml", "sweep.toml"),
        late=8,
        then=(("", "sweep tiny.toml sweep.toml --runs sweeps"),),
    ),
    "evaluate": Command(_words("evaluate runs/done"), ("runs/done",), then=(("", "evaluate runs/done"),)),
    "report": Command(_words("report runs/done"), ("runs/done",), then=(("", "report runs/done"),)),
    "report of several": Command(
        _words("report runs/done runs/begun --out comparison.html"), ("runs/done", "runs/begun"), (0, 2)
    ),
    "export": Command(
        _words("export runs/done out/model"),
        ("runs/done",),
        then=(("out/model", "config list"), ("", "export runs/done out/model")),
    ),
    "embed": Command(
        _words("embed runs/done pictures --out features.parquet"),
        ("runs/done", "pictures"),
        then=(("features.parquet", "config list"), ("", "embed runs/done pictures --out features.parquet")),
    ),
    "search": Command((*_words("search runs/done --pictures stores/public"), "a red circle"), ("runs/done", "stores/public")),
    "watch": Command(_words("watch runs/begun"), ("runs/begun",), until_stopped="ctrl-c"),
    "watch once": Command(_words("watch runs/done --once --json"), ("runs/done",)),
    "serve": Command(_words("serve runs --port 0"), ("runs/done", "runs/begun"), until_stopped="ctrl-c"),
    "audit privacy": Command(_words("audit privacy tiny.toml --experiments 1000 --out audited"), _RUN, (0, 1, 2)),
    "audit membership": Command(_words("audit membership runs/done"), ("runs/done",), (0, 1, 2)),
    "cluster cost": Command(_words(f"cluster cost imagenet --records 1000000 --workers 8 {_FIGURES}")),
    "cluster status": Command(_words("cluster status"), (), (0, 1, 2)),
    "federation provision": Command(
        _words("federation provision project.toml --folder other"),
        ("project.toml", "fed.toml"),
        then=(("", "federation provision project.toml --folder other"),),
    ),
    "federation terms": Command(
        _words("federation provision project.toml"),
        ("project.toml", "fed.toml", "unset/chest:chest"),
        then=(("", "federation provision project.toml"),),
    ),
    "federation show": Command(_words("federation show chest/federation/terms.json"), ("chest",)),
    "federation run": Command(_words("federation run chest --port {port}"), ("chest",), (0, 1, 2)),
    "federation demo": Command(
        _words("federation demo fed.toml --run runs/demo --sites 2"), ("fed.toml",), heavy=True, late=12
    ),
    "site setup": Command(
        _words(_SETUP),
        ("chest", "stores/north", "budgets"),
        then=(("mine/chest-north/reply.json", "config list"), ("", _SETUP)),
    ),
    "site confirm": Command(
        (*_words("site confirm sites/chest-west"), "{south}"), _SITE, then=(("", "site confirm sites/chest-west {south}"),)
    ),
    "site join": Command(
        _words("site join sites/chest-west chest/kits/chest-west.kit.json --yes --unconfirmed"),
        (*_SITE, "chest"),
        then=(("", "site join sites/chest-west chest/kits/chest-west.kit.json --yes --unconfirmed"),),
    ),
    "site doctor": Command(_words("site doctor sites/chest-north"), _SITE, (0, 1)),
    "site ledger": Command(_words("site ledger sites/chest-north"), _SITE, (0, 2)),
    "site leave": Command(
        _words("site leave sites/chest-north"), _SITE, (0, 1, 2), then=(("", "site leave sites/chest-north"),)
    ),
    "site serve": Command(_words("site serve sites/chest-north --socket door"), _SITE, until_stopped="both"),
    "site app": Command(
        _words("site app --runtime-api-address 127.0.0.1:{port} --superexec-auth-secret-file secret"), ("secret",), (0, 1, 2)
    ),
    "site supernode": Command(
        _words("site supernode --insecure --superlink 127.0.0.1:{port} --host 127.0.0.1 --port {port} --isolation process"),
        (),
        (0, 1, 2),
        until_stopped="both",
    ),
    "pretrain on Ray": Command(
        _words(f"{_NEW} --cluster ray --workers 2"), _RUN, heavy=True, late=12, then=_finish("runs/new", _NEW)
    ),
    "pretrain by torchrun": Command(
        _words(f"torchrun --standalone --nproc-per-node 2 -m -- dpfed {_NEW} --cluster torchrun"),
        _RUN,
        (0, 1),
        heavy=True,
        late=12,
        then=_finish("runs/new", _NEW),
    ),
}
