"""Layout maps: they assign layouts to parameters, by regular expressions on the parameters' names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TypeAlias, final

from hocket.mesh import layouts, meshes

Rule: TypeAlias = layouts.Layout | Sequence[layouts.Spec]
"""The layout in a rule: a layout, or one spec for each dim."""


@final
class LayoutMap(MutableMapping[str, layouts.Layout]):
    """Layouts by regular expressions that match whole names of parameters. Other parameters are replicated.

    Names and rules are those of ``keras.distribution.LayoutMap``: a parameter whose name is itself a key has that key's
    layout. Otherwise at most one expression may match the name.

    Args:
        mesh: The mesh of all layouts.
        rules: The first rules; add others like items of a dict. Default: none.

    Raises:
        re.error: A key is no regular expression.
        TypeError: A rule is no layout.
        ValueError: A key comes twice, a layout is of another mesh, or several expressions match a name.

    Example:
        >>> from hocket.mesh import LayoutMap, Mesh, UNSHARDED
        >>> rules = LayoutMap(Mesh({"data": 2, "model": 2}), {r".*dense.*/kernel": [UNSHARDED, "model"]})
        >>> rules[r".*dense.*/bias"] = ["model"]
        >>> rules.find("params/dense_1/kernel", (8, 4)).sharding_specs
        ['unsharded', 'model']
        >>> rules.find("params/norm/scale", (8,)).sharding_specs
        ['unsharded']
    """

    def __init__(self, mesh: meshes.Mesh, rules: Mapping[str, Rule] | None = None) -> None:
        self._mesh = mesh
        self._rules: dict[str, layouts.Layout] = {}
        for pattern, rule in (rules or {}).items():
            self[pattern] = rule

    @property
    def mesh(self) -> meshes.Mesh:
        """The mesh of all layouts."""
        return self._mesh

    def find(self, name: str, shape: Sequence[int]) -> layouts.Layout:
        """Return the layout of a parameter.

        Raises:
            ValueError: Several expressions match the name, or the layout does not fit the shape.
        """
        layout = self.match(name)
        if layout is None:
            return layouts.Layout.replicated(self._mesh, len(shape))
        try:
            layout.local_shape_from_global_shape(shape)
        except ValueError as error:
            raise ValueError(f"The layout of the parameter {name!r} does not fit it. {error}") from error
        return layout

    def match(self, name: str) -> layouts.Layout | None:
        """Return the layout of the rule that matches a name; None if no rule does.

        Raises:
            ValueError: Several rules match.
        """
        if name in self._rules:
            return self._rules[name]
        found = [pattern for pattern in self._rules if self.matches(pattern, name)]
        if len(found) > 1:
            raise ValueError(
                f"The rules {found[0]!r} and {found[1]!r} both match the parameter {name!r}. Make one of them "
                "narrower, or add a rule with the name itself."
            )
        return self._rules[found[0]] if found else None

    @staticmethod
    def matches(pattern: str, name: str) -> bool:
        """Tell whether a rule's key matches a name: the key equals the name, or is an expression for all of it."""
        return pattern == name or re.fullmatch(pattern, name) is not None

    def __getitem__(self, pattern: str) -> layouts.Layout:
        return self._rules[pattern]

    def __setitem__(self, pattern: str, rule: Rule) -> None:
        if pattern in self._rules:
            raise ValueError(f"There is a rule {pattern!r} already. Delete it first: del layout_map[{pattern!r}].")
        re.compile(pattern)
        layout = rule if isinstance(rule, layouts.Layout) else layouts.Layout(rule, self._mesh)
        if layout.mesh != self._mesh:
            raise ValueError(
                f"The rule {pattern!r} has a layout on {layout.mesh!r}, but the map is for {self._mesh!r}. Use one "
                "mesh."
            )
        self._rules[pattern] = layout

    def __delitem__(self, pattern: str) -> None:
        del self._rules[pattern]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __repr__(self) -> str:
        rules = {pattern: layout.sharding_specs for pattern, layout in self._rules.items()}
        return f"LayoutMap({self._mesh!r}, {rules})"
