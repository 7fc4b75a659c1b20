"""The same figures for a monitor: the text format of Prometheus, and whether all is well."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from dpfed.live.figures import figures
from dpfed.live.gathering import Seen

if TYPE_CHECKING:
    from prometheus_client import Metric

_STATES = ("running", "stopped", "finished", "damaged")


class _Collector:
    """Makes metrics of figures; each has the run's name as a label."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        """See `prometheus_client.registry.Collector`."""
        from prometheus_client.core import GaugeMetricFamily

        state = GaugeMetricFamily("dpfed_state", "1 for the state that the run is in", labels=["run", "state"])
        families: dict[str, GaugeMetricFamily] = {}
        for one in self._seen:
            for name in _STATES:
                state.add_metric([one.name, name], float(one.state == name))
            for figure in figures(one):
                if figure.value is None:
                    continue
                key = f"dpfed_{figure.key}"
                labels = ["run", *figure.labels]
                family = families.setdefault(key, GaugeMetricFamily(key, figure.help, labels=labels))
                family.add_metric([one.name, *map(_in_utf8, figure.labels.values())], figure.value)
        return iter([state, *families.values()])


def exposition(seen: Sequence[Seen]) -> bytes:
    """The figures of runs in the text format of Prometheus."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(seen))
    return generate_latest(registry)


def _in_utf8(text: str) -> str:
    """A label without halves of surrogate pairs, which JSON can hold and no answer can."""
    return text.encode("utf-8", "backslashreplace").decode()


def health(seen: Iterable[Seen]) -> tuple[bool, dict[str, str]]:
    """Whether every run is finished or at work, and the state of each."""
    states = {one.name: one.state for one in seen}
    return all(state in ("running", "finished") for state in states.values()), states
