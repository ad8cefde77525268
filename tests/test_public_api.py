"""The public names: few, listed, loadable, documented, and known to type checkers."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import jumok

ROOT = Path(__file__).parents[1]


def test_names_are_sorted_and_listed_once() -> None:
    assert list(jumok.__all__) == sorted(set(jumok.__all__))
    assert dir(jumok) == sorted([*jumok.__all__, "__version__"])


def test_type_checkers_and_the_interpreter_find_the_same_objects() -> None:
    tree = ast.parse(Path(jumok.__file__).read_text(encoding="utf-8"))
    typed = {
        alias.asname or alias.name: (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    loaded = {name: (home, jumok._RENAMED.get(name, name)) for name, home in jumok._HOMES.items()}
    assert typed == loaded
    assert sorted(typed) == list(jumok.__all__)


@pytest.mark.parametrize("name", jumok.__all__)
def test_name_resolves_to_a_documented_object(name: str) -> None:
    value = getattr(jumok, name)
    home = import_module(jumok._HOMES[name])
    assert value is getattr(home, jumok._RENAMED.get(name, name))
    assert value.__doc__ is not None
    assert len(value.__doc__.split()) > 3


@pytest.mark.parametrize("name", jumok.__all__)
def test_public_members_are_documented(name: str) -> None:
    value = getattr(jumok, name)
    if not inspect.isclass(value):
        return
    undocumented = [
        member
        for member, thing in vars(value).items()
        if not member.startswith("_")
        and (inspect.isfunction(thing) or isinstance(thing, property | classmethod | staticmethod))
        and not inspect.getdoc(getattr(value, member))
    ]
    assert undocumented == []


@pytest.mark.parametrize("name", jumok.__all__)
def test_name_is_in_the_reference(name: str) -> None:
    overview = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    home, own_name = jumok._HOMES[name], jumok._RENAMED.get(name, name)
    # The build checks that the link leads somewhere.
    assert re.search(rf"\[`jumok\.{name}`\]\[{re.escape(home)}\.{own_name}\]", overview)
