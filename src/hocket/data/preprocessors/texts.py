"""Texts as lists of words, and as vectors that count words."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

import numpy as np

from hocket.data import blocks, columns, dataset, reading
from hocket.data.preprocessors import base, inputs, learning, single, stateless

Tokenize: TypeAlias = Callable[[str], list[str]]


def split_at_spaces(text: str) -> list[str]:
    """Return the words of a text, which single spaces separate."""
    return text.split(" ")


def list_tokens(
    block: blocks.Block, name: str, who: str, function: Callable[[str], object] | None
) -> list[list[str] | None]:
    """Return the words of each text of a column; None for a missing text."""
    call = function or split_at_spaces
    found: list[list[str] | None] = []
    for text in inputs.get_texts(block, name, who):
        tokens = None if text is None else call(text)
        if tokens is not None and not (
            isinstance(tokens, list | tuple) and all(isinstance(token, str) for token in tokens)
        ):
            raise TypeError(
                f"tokenization_fn of {who} must return a list of texts, but returned {tokens!r:.80} for {text!r:.40}. "
                "Write return text.split(), for example."
            )
        found.append(None if tokens is None else list(tokens))
    return found


def _check_function(who: str, function: object) -> None:
    if function is not None and not callable(function):
        raise TypeError(f"tokenization_fn of {who} must be a function, but received {function!r:.80}. Write str.split.")


def _count(documents: Sequence[list[str] | None], find: Callable[[str], int | None], size: int) -> object:
    """Count the places of each document's tokens; None for a missing document."""
    counts = np.zeros((len(documents), size), np.int64)
    for row, tokens in enumerate(documents):
        for token in tokens or ():
            place = find(token)
            if place is not None:
                counts[row, place] += 1
    if None not in documents:
        return counts
    return [None if tokens is None else row for tokens, row in zip(documents, counts.tolist(), strict=True)]


@final
@dataclass(repr=False, eq=False)
class Tokenizer(stateless.StatelessPerColumn):
    """Replace each text by the list of its words. A missing text stays missing.

    Args:
        columns: The columns, which hold texts.
        tokenization_fn: Takes a text and returns its words. Default: split the text at each space.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        TypeError: `tokenization_fn` cannot be called.
        ValueError: No column is named, or `output_columns` has another length.

    Example:
        >>> from hocket.data.preprocessors import Tokenizer
        >>> Tokenizer(["text"]).transform_row({"text": "to be or not"})
        {'text': ['to', 'be', 'or', 'not']}
    """

    columns: Sequence[str]
    tokenization_fn: Tokenize | None = None
    output_columns: Sequence[str] | None = None

    def _check_arguments(self) -> None:
        super()._check_arguments()
        _check_function("Tokenizer", self.tokenization_fn)

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        return {
            output: list_tokens(block, column, "Tokenizer", self.tokenization_fn)
            for column, output in self._list_pairs()
        }


@final
@dataclass(repr=False, eq=False)
class CountVectorizer(single.PerColumn):
    """Replace each text by a vector that counts its words.

    The first place is that of the most frequent word in all texts; equally frequent words stay in their order. Unknown
    words are not counted. A missing text stays missing.

    Args:
        columns: The columns, which hold texts.
        tokenization_fn: Takes a text and returns its words. Default: split the text at each space.
        max_features: The greatest length of the vector; the most frequent words have places. Default: all words have.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        TypeError: `tokenization_fn` cannot be called.
        ValueError: No column is named, `output_columns` has another length, or `max_features` is less than 1.

    Example:
        >>> from hocket import data
        >>> from hocket.data.preprocessors import CountVectorizer
        >>> vectorizer = CountVectorizer(["text"])
        >>> rows = data.from_items([{"text": "the cat"}, {"text": "the dog saw the cat"}])
        >>> vectorizer.fit_transform(rows).take_batch()["text"].tolist()
        [[1, 1, 0, 0], [2, 1, 1, 1]]
        >>> vectorizer.stats_
        {'token_counts(text)': {'the': 3, 'cat': 2, 'dog': 1, 'saw': 1}}
    """

    columns: Sequence[str]
    tokenization_fn: Tokenize | None = None
    max_features: int | None = None
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        _check_function("CountVectorizer", self.tokenization_fn)
        reading.check_count("max_features", self.max_features, 1)

    def _fit(self, ds: dataset.Dataset) -> base.Stats:
        stats = {}
        for name in self.columns:
            read = functools.partial(_list_all_tokens, name=name, function=self.tokenization_fn)
            counts = learning.count_values(self, ds, name, read)
            kept = learning.keep_most(counts, self.max_features)
            stats[f"token_counts({name})"] = {token: counts[token] for token in kept}
        return stats

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        made = {}
        for column, output in self._list_pairs():
            places = {token: at for at, token in enumerate(self.stats_[f"token_counts({column})"])}
            documents = list_tokens(block, column, "CountVectorizer", self.tokenization_fn)
            made[output] = _count(documents, places.get, len(places))
        return made


def _list_all_tokens(block: blocks.Block, name: str, function: Tokenize | None) -> list[str]:
    documents = list_tokens(block, name, "CountVectorizer", function)
    return [token for tokens in documents for token in tokens or ()]


@final
@dataclass(repr=False, eq=False)
class HashingVectorizer(stateless.StatelessPerColumn):
    """Replace each text by a vector that counts its words, at places chosen by the words' hashes.

    The preprocessor learns nothing, and several words may share a place. The places are Ray's. A missing text stays
    missing.

    Args:
        columns: The columns, which hold texts.
        num_features: The length of the vector.
        tokenization_fn: Takes a text and returns its words. Default: split the text at each space.
        output_columns: Names of the results. Default: the results replace the columns.

    Raises:
        TypeError: `tokenization_fn` cannot be called.
        ValueError: No column is named, `output_columns` has another length, or `num_features` is less than 1.

    Example:
        >>> from hocket.data.preprocessors import HashingVectorizer
        >>> HashingVectorizer(["text"], num_features=4).transform_row({"text": "the cat"})["text"].sum()
        np.int64(2)
    """

    columns: Sequence[str]
    num_features: int
    tokenization_fn: Tokenize | None = None
    output_columns: Sequence[str] | None = field(default=None, kw_only=True)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        _check_function("HashingVectorizer", self.tokenization_fn)
        _check_size(self.num_features)

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        find = functools.lru_cache(maxsize=None)(functools.partial(_find_place, size=self.num_features))
        made = {}
        for column, output in self._list_pairs():
            documents = list_tokens(block, column, "HashingVectorizer", self.tokenization_fn)
            made[output] = _count(documents, find, self.num_features)
        return made


def _find_place(name: str, size: int) -> int:
    """Return the place of a name in a vector. It is the same in every process, and in Ray."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest(), "big") % size


def _check_size(num_features: int) -> None:
    """Raise if a vector cannot have this length."""
    if num_features is None:
        raise ValueError("num_features must be a whole number from 1, but received None. Write num_features=64.")
    reading.check_count("num_features", num_features, 1)


@final
@dataclass(repr=False, eq=False)
class FeatureHasher(stateless.Stateless):
    """Add up columns of numbers in a vector, at places chosen by the hashes of the columns' names.

    The input is a table of word counts, with a column for each word. Several columns may share a place. A missing
    number makes the sum at its place NaN.

    Args:
        columns: The columns, which hold numbers.
        num_features: The length of the vector.
        output_column: The name of the result.

    Raises:
        ValueError: No column is named, or `num_features` is less than 1.

    Example:
        >>> from hocket.data.preprocessors import FeatureHasher
        >>> hasher = FeatureHasher(["cat", "dog"], num_features=4, output_column="words")
        >>> hasher.transform_row({"cat": 2, "dog": 1})["words"].sum()
        np.int64(3)
    """

    columns: Sequence[str]
    num_features: int
    output_column: str

    def _check_arguments(self) -> None:
        self.columns = single.check_names(self, "columns", self.columns)
        single.check_names(self, "output_column", [self.output_column])
        _check_size(self.num_features)

    def get_input_columns(self) -> list[str]:
        return list(self.columns)

    def get_output_columns(self) -> list[str]:
        return [self.output_column]

    def _compute(self, block: blocks.Block) -> Mapping[str, object]:
        found = {name: inputs.get_numbers(block, name, "FeatureHasher") for name in self.columns}
        whole = all(columns.to_numpy(block.columns[name]).dtype.kind in "biu" for name in self.columns)
        sums = np.zeros((block.num_rows, self.num_features), np.int64 if whole else np.float64)
        for name, numbers in found.items():
            sums[:, _find_place(name, self.num_features)] += numbers.astype(sums.dtype)
        return {self.output_column: sums}
