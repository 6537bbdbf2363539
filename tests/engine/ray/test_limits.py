"""The page about clusters says what Ray cannot promise: all of it, in the engine's own words."""

from __future__ import annotations

from pathlib import Path

from hocket.engine.ray import engine

PAGE = Path(__file__).parents[3] / "docs" / "cluster.md"


def build_table() -> str:
    rows = [f"| `{name}` | {text} |" for name, text in engine.RayEngine.limits.items()]
    return "\n".join(["| limit | what it means |", "|---|---|", *rows])


def test_the_page_has_the_engine_s_limits() -> None:
    """When it fails, what is on the left belongs between the two comments on the page."""
    text = PAGE.read_text().partition("<!-- limits -->\n")[2].partition("\n<!-- end -->")[0]
    assert build_table() == text
