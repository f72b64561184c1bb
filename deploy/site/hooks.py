"""Hooks of the documentation site: formulas as MathML, drawn by the browser; a start page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latex2mathml.converter import convert


def on_config(config: Any) -> Any:
    """Have blocks of ```math become formulas, as GitHub does."""
    fences = config["mdx_configs"].setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "math", "class": "math", "format": _formula}]
    return config


def on_post_build(config: Any) -> None:
    """Redirect the site's root to its first page."""
    page = '<!DOCTYPE html><meta http-equiv="refresh" content="0; url=fit.html"><a href="fit.html">'
    Path(config["site_dir"], "index.html").write_text(f"{page}moca-service</a>\n")


def _formula(source: str, *_: Any, **__: Any) -> str:
    return convert(source, display="block")
