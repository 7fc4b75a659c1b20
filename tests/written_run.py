"""What stands in every results.json beside a run's own figures, for tests that write one."""

from __future__ import annotations

from typing import Any

CLIPPED: dict[str, Any] = {"clip_norm": 1.0, "clipping": "fixed"}
MADE: dict[str, Any] = {
    "id": "0123456789abcdef",
    "ledger": "ab",
    "began": "2026-01-01",
    "data": {"name": "scans", "fingerprint": None, "keyed": True, "generated": None},
    "environments": [{"commit": None, "hardware": "2 cores", "versions": {"dpfed": "1"}}],
}
