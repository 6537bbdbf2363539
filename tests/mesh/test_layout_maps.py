"""Which parameter is spread how."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hocket.mesh import UNSHARDED, Layout, LayoutMap, Mesh

MESH = Mesh({"data": 2, "model": 4})


def make_map() -> LayoutMap:
    return LayoutMap(
        MESH,
        {r".*/kernel": [UNSHARDED, "model"], "last/kernel": Layout(["model", UNSHARDED], MESH), r".*/bias": ["model"]},
    )


def test_expressions_match_whole_names_and_a_name_itself_comes_first() -> None:
    rules = make_map()
    assert rules.find("first/kernel", (8, 8)).sharding_specs == [UNSHARDED, "model"]
    assert rules.find("last/kernel", (8, 8)).sharding_specs == ["model", UNSHARDED]
    assert rules.match("first/kernel/scale") is None
    assert rules.find("first/kernel/scale", (2, 3, 4)).is_fully_replicated
    assert rules.match("bias") is None


def test_it_is_a_dict_of_layouts() -> None:
    rules = make_map()
    assert list(rules) == [".*/kernel", "last/kernel", ".*/bias"]
    assert rules[".*/bias"] == Layout(["model"], MESH)
    del rules[".*/bias"]
    rules[".*/bias"] = Layout([UNSHARDED], MESH)
    assert (len(rules), rules.mesh) == (3, MESH)
    assert "'.*/bias': ['unsharded']" in repr(rules)


def test_bad_rules_are_refused() -> None:
    rules: Any = make_map()
    with pytest.raises(ValueError, match=r"There is a rule '\.\*/bias' already"):
        rules[".*/bias"] = ["data"]
    with pytest.raises(re.error):
        rules["*"] = ["data"]
    with pytest.raises(TypeError, match="one spec for each dim, but received 'data'"):
        rules["x"] = "data"
    with pytest.raises(ValueError, match="but a layout names 'rows'"):
        rules["x"] = ["rows"]
    with pytest.raises(ValueError, match=r"on Mesh\(\{'data': 2\}\), but the map is for"):
        rules["x"] = Layout(["data"], Mesh({"data": 2}))
    rules["a/.*"] = ["data", UNSHARDED]
    with pytest.raises(ValueError, match=r"The rules '\.\*/kernel' and 'a/\.\*' both match the parameter 'a/kernel'"):
        rules.match("a/kernel")
    with pytest.raises(ValueError, match=r"layout of the parameter 'b/kernel' does not fit it\. .* has length 6"):
        rules.find("b/kernel", (8, 6))
    with pytest.raises(ValueError, match=r"'b/bias' does not fit it\. A layout of 1 dims"):
        rules.find("b/bias", (8, 6))
