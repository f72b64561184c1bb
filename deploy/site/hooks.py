"""What the site of documents needs beside mkdocs.yml: formulas as MathML, drawn by the browser."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def on_config(config: Any) -> Any:
    """Have blocks of ```math become formulas, as GitHub does."""
    fences = config["mdx_configs"].setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "math", "format": _formula}]
    return config


def _formula(source: str, *_: Any, **__: Any) -> str:
    return convert(source, display="block")
