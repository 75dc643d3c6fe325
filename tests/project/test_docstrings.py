"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import tenure

IN_A_PROJECT = {"tenure.contrib.django.project", "tenure.contrib.django.tasks"}
"""Importable only with the settings of a Django project. They have no examples; tests/contrib imports them."""
MODULES = [
    module.name
    for module in pkgutil.walk_packages(tenure.__path__, "tenure.")
    if "__main__" not in module.name and module.name not in IN_A_PROJECT
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_a_module_run(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0


def test_there_are_examples_to_run() -> None:
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(found) >= 5
