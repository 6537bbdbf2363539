"""HTML tables, in which notebooks show the value of a cell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hocket._base import texts

MOST_LETTERS = 200
"""The most letters in a cell. A guess: two lines on a screen."""


def write_grid(headings: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Return a table with headings, and a note below it.

    Example:
        >>> from hocket._base import markup
        >>> markup.write_grid(["a<b"], [["x"]])
        '<table><thead><tr><th>a&lt;b</th></tr></thead><tbody><tr><td>x</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{_escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{_escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    below = f"<p>{_escape(note)}</p>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def write_facts(title: str, facts: Mapping[str, object]) -> str:
    """Return a title, and a table with one row for each fact.

    Example:
        >>> from hocket._base import markup
        >>> markup.write_facts("Result", {"loss": 0.5})
        '<b>Result</b><table><tbody><tr><th>loss</th><td>0.5</td></tr></tbody></table>'
    """
    rows = "".join(f"<tr><th>{_escape(name)}</th><td>{_escape(value)}</td></tr>" for name, value in facts.items())
    return f"<b>{_escape(title)}</b><table><tbody>{rows}</tbody></table>"


def _escape(value: object) -> str:
    text = texts.escape(texts.cut(value if isinstance(value, str) else texts.safe_repr(value), MOST_LETTERS))
    import html  # here, because only notebooks need it

    return html.escape(text)
