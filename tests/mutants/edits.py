"""Applies a mutant to the real code: one text of a function or statement is replaced by another.

An edit whose text no longer exists fails, so that a mutant is updated with the code. Everything is restored at the end,
also cached statements.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from types import CodeType, FunctionType
from typing import Any

from tenure.stores import sql_files
from tenure.stores.sqlite import statements


class Stale(Exception):
    """The text that an edit replaces does not exist, or exists more than once: update the mutant."""


class Edits:
    """The edits of one mutant, undone at the end."""

    def __init__(self) -> None:
        self._undo = ExitStack()
        self._statements: dict[tuple[str, str], str] = {}
        self._sources: dict[FunctionType, str] = {}

    def python(self, function: Callable[..., Any], old: str, new: str) -> None:
        """Replace a text in the source of a function. The code is replaced inside the function
        object, so that every reference runs it. What the function has cached is cleared before and after."""
        target: Any = inspect.unwrap(function)
        assert isinstance(target, FunctionType), f"{function!r} is not a function with source"
        source = self._sources.get(target) or textwrap.dedent(inspect.getsource(target))
        self._sources[target] = edited(source, old, new, where=target.__qualname__)
        clear: Callable[[], None] = getattr(function, "cache_clear", lambda: None)
        self._undo.callback(clear)
        self.attribute(target, "__code__", _compiled(target, self._sources[target]))
        clear()

    def sql(self, package: str, name: str, old: str, new: str = "", *, times: int = 1) -> None:
        """Replace a text in a statement of a store, or remove it, at all of its `count` places."""
        if not self._statements:
            self._take_over_the_files()
        text = self._statements.get((package, name)) or sql_files.named(package, name)
        self._statements[package, name] = edited(text, old, new, where=f"{package} {name}.sql", times=times)
        _forget()

    def _take_over_the_files(self) -> None:
        read = sql_files.named

        def named(package: str, name: str) -> str:
            return self._statements.get((package, name)) or read(package, name)

        self._undo.callback(_forget)
        self.attribute(sql_files, "named", named)

    def attribute(self, owner: Any, name: str, value: Any) -> None:
        """Replace an existing attribute."""
        self._undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    def item(self, table: Any, key: Any, value: Any) -> None:
        """Replace an existing entry."""
        assert isinstance(table, MutableMapping), f"{table!r} cannot be edited"
        self._undo.callback(table.__setitem__, key, table[key])
        table[key] = value

    def undo(self) -> None:
        self._undo.close()


@contextmanager
def editing(apply: Callable[[Edits], None]) -> Iterator[None]:
    """The code with the mutant applied."""
    edits = Edits()
    try:
        apply(edits)
        yield
    finally:
        edits.undo()


def edited(text: str, old: str, new: str, *, where: str, times: int = 1) -> str:
    """The text with its one place changed, or with as many as expected."""
    if text.count(old) != times:
        raise Stale(f"{where} has {old!r} {text.count(old)} times, and should have it {times} times")
    return text.replace(old, new)


def _compiled(function: FunctionType, source: str) -> CodeType:
    """The code of the edited source, as a function of the same module, without its decorators."""
    definition = ast.parse(source).body[0]
    assert isinstance(definition, ast.FunctionDef | ast.AsyncFunctionDef), f"{function.__qualname__} has no definition"
    definition.decorator_list = []
    module = ast.Module([definition], [])
    compiled = compile(
        module, f"<mutant of {function.__qualname__}>", "exec", __future__.annotations.compiler_flag, dont_inherit=True
    )
    [code] = [part for part in compiled.co_consts if isinstance(part, CodeType)]
    return code.replace(co_qualname=function.__qualname__)


def _forget() -> None:
    """The cached forms of a statement."""
    held = statements.sql, statements.parameters, statements._shared, statements._for_rows
    for kept in (sql_files.named, sql_files.numbered, *held):
        getattr(kept, "cache_clear", lambda: None)()
