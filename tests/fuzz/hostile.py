"""What a hurried, mistaken or hostile user could write where a configuration or a command wants something else."""

from __future__ import annotations

from hypothesis import strategies as st

from dpfed.config import Config
from dpfed.files.toml_file import leaves

KEYS = sorted({*leaves(Config().model_dump()), "data.path", "data.size", "bounding.options", "bounding.options.x"})

TEXTS = st.one_of(
    st.sampled_from(
        ["", " ", "nul\0nul", "line\nbreak", "x = 1\n[privacy]\nepsilon = 1e9", "\x1b[31mred", "é" * 300, "\ufeff", "\ud800"]
        + """.. / a/../../b ~ -1 --set [ ]] ' \""" { ${HOME} %s null None inf 1e999 0x10""".split()
        + ["http://127.0.0.1:9/x", "s3://bucket/x", "file:///etc/passwd", "memory://x", "local-dir:", "local-dir:/", "x.json"]
    ),
    st.text(max_size=20),
)
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2, 3, 2**31, 2**63, 2**64, 10**12, 10**30, -(10**18), 10**400]),
    st.sampled_from(
        [0.0, -0.0, 0.5, 1.0, 1e-300, 5e-324, 1e300, -1e300, 1e16, 1e9, 1e-9, float("inf"), float("-inf"), float("nan")]
    ),
    st.integers(),
    st.floats(),
)
VALUES = st.recursive(
    st.one_of(TEXTS, NUMBERS, st.booleans()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=4,
)


def spelt(value: object) -> str:
    """A value as somebody would write it behind ``--set KEY=``: TOML, or nearly."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(spelt, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {spelt(item)}" for key, item in value.items()) + "}"
    return str(value)
