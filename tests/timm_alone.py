"""timm without wandb, which it imports for summaries that no test asks for: that takes as long as all the rest of timm."""

import sys
from importlib.abc import MetaPathFinder


class _OnlyForOthers(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        asking = sys.modules.get("timm.utils.summary")
        if name == "wandb" and asking is not None and not hasattr(asking, "update_summary"):  # it is just being imported
            raise ImportError("timm does without")


def import_timm_alone() -> None:
    """From now on, in this process; whoever else imports wandb gets it."""
    sys.meta_path.insert(0, _OnlyForOthers())
