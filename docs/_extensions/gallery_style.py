"""The style of the gallery's pictures, reset for each script."""

from __future__ import annotations

from typing import Any


def reset(gallery_conf: dict[str, Any], fname: str) -> None:
    """Choose sizes that are readable on a phone."""
    import matplotlib

    matplotlib.rcParams.update({"figure.figsize": (6.0, 3.8), "font.size": 12})
