"""Words of a folder of texts, counted, after Ray Data's guide "Working with text"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hocket import data

EXPECTED: Any = {
    "lines": 40,
    "words": 200,
    "top": [("the", 60), ("a", 20), ("cat", 20), ("now", 20)],
    "long": ["sees"],
}


def split(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"word": word.strip(".").lower()} for word in row["text"].split()]


def main(folder: str) -> Any:
    texts = Path(folder, "texts")
    texts.mkdir(parents=True)
    for number in range(10):
        lines = ["The cat sees the dog.", "", "A bird sings loudly now.", "A cat sees the mice.", "the the the end now"]
        (texts / f"{number}.txt").write_text("\n".join(lines) + "\n")
    rows = data.read_text(str(texts))
    words = rows.flat_map(split).materialize()
    counts = words.groupby("word").count().sort(["count()", "word"], descending=[True, False]).materialize()
    return {
        "lines": rows.count(),
        "words": words.count(),
        "top": [(row["word"], row["count()"]) for row in counts.take(4)],
        "long": [row["word"] for row in counts.filter(lambda row: len(row["word"]) == 4).take_all()][:1],
    }
