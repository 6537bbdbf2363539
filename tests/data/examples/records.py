"""TensorFlow's records, as other programs write them, after Ray Data's guide "Loading data"."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hocket import data

EXPECTED: Any = {
    "count": 20,
    "first": {"name": b"n0", "number": 0, "share": 0.0},
    "total": 190,
    "last": {"name": b"n19", "number": 19, "share": 9.5},
}


def make_example(number: int) -> bytes:
    features = {
        "number": tf.train.Feature(int64_list=tf.train.Int64List(value=[number])),
        "share": tf.train.Feature(float_list=tf.train.FloatList(value=[number / 2])),
        "name": tf.train.Feature(bytes_list=tf.train.BytesList(value=[f"n{number}".encode()])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    encoded: bytes = example.SerializeToString()
    return encoded


def main(folder: str) -> Any:
    for part in range(2):
        with tf.io.TFRecordWriter(f"{folder}/{part}.tfrecords") as writer:
            for number in range(10 * part, 10 * part + 10):
                writer.write(make_example(number))
    read = data.read_tfrecords(folder).materialize()
    found = sorted(read.take_all(), key=lambda row: row["number"])
    return {
        "count": read.count(),
        "first": dict(sorted(found[0].items())),
        "total": read.sum("number"),
        "last": dict(sorted(found[-1].items())),
    }
