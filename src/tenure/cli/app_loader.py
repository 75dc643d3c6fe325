"""Loads an app from `module:app`, `folder/file.py:app`, or a module with one app."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tenure.errors import InvalidInput, TenureError
from tenure.observe.tracebacks import without_leading_frames
from tenure.seams import importing

if TYPE_CHECKING:
    from tenure.app import App

WHERE = "app"


class AppImportFailed(TenureError):
    """Importing the user's module raised. `traceback_text` starts at that module."""

    def __init__(self, module: str, error: BaseException) -> None:
        self.traceback_text = "".join(
            traceback.format_exception(
                type(error), error, without_leading_frames(error.__traceback__, _is_of_the_import)
            )
        )
        raised = f"{type(error).__name__}: {error}".splitlines()[0]
        super().__init__(f"importing {module} failed: {raised}")


def load_app(target: str, *, database: str | None = None) -> App:
    """The app of `MODULE:NAME`, `MODULE`, `FILE.py:NAME` or `FILE.py`, on this database if one is given. The current
    folder is importable.

    A wrong target is InvalidInput; an error inside the module is AppImportFailed.
    """
    place, colon, name = target.partition(":")
    if not place or (colon and not name):
        raise InvalidInput(WHERE, f"{target!r} is not MODULE:APP, such as shop.jobs:app or shop/jobs.py:app")
    module = _imported(place)
    app = _attribute(module, name) if name else _only_app(module)
    if database is not None:
        app.database = database
    return app


def _imported(place: str) -> ModuleType:
    folder, module = (str(Path.cwd()), place)
    if place.endswith(".py") or "/" in place:
        folder, module = _module_of(Path(place))
    elif not all(part.isidentifier() for part in place.split(".")):
        raise InvalidInput(WHERE, f"{place!r} is neither a module nor a Python file")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        with importing(module):
            found = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and f"{module}.".startswith(f"{missing.name}."):
            raise InvalidInput(
                WHERE,
                f"module {missing.name!r} not found in {folder} and sys.path; run the "
                "command where it can be imported, or name its file, such as shop/jobs.py:app",
            ) from None
        raise AppImportFailed(module, missing) from missing
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may raise anything, including SystemExit
        raise AppImportFailed(module, error) from error
    _require_file(found, place)
    return found


def _module_of(path: Path) -> tuple[str, str]:
    """The folder to import from, and the module's name; the file may be part of a package."""
    if not path.is_file():
        raise InvalidInput(WHERE, f"file {path} does not exist")
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise InvalidInput(WHERE, f"{path} is not an importable Python file")
    path = path.resolve()
    folder, module = path.parent, path.stem
    while (folder / "__init__.py").is_file():
        folder, module = folder.parent, f"{folder.name}.{module}"
    return str(folder), module


def _require_file(module: ModuleType, place: str) -> None:
    """Refuse another module of the same name that was imported in place of the file."""
    found = getattr(module, "__file__", None)
    if place.endswith(".py") and found is not None and Path(found).resolve() != Path(place).resolve():
        problem = f"importing {place} as {module.__name__!r} finds {found} instead; rename the file"
        raise InvalidInput(WHERE, problem)


def _attribute(module: ModuleType, name: str) -> App:
    from tenure.app import App

    found: Any = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise InvalidInput(WHERE, f"{module.__name__} has no {name!r}; {_known(module)}") from None
        except TenureError:
            raise
        except Exception as error:
            raise AppImportFailed(module.__name__, error) from error
    if not isinstance(found, App):
        is_a = f"{module.__name__}:{name} is {type(found).__name__}, not a tenure.App"
        raise InvalidInput(WHERE, f"{is_a}; {_known(module)}")
    return found


def _only_app(module: ModuleType) -> App:
    apps = _apps(module)
    if len({id(app) for app in apps.values()}) != 1:
        raise InvalidInput(WHERE, f"give the name of the app, {module.__name__}:NAME; {_known(module)}")
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, App]:
    from tenure.app import App

    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _known(module: ModuleType) -> str:
    names = ", ".join(_apps(module))
    return f"its apps are: {names}" if names else "it has no tenure.App"


def _is_of_the_import(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")
