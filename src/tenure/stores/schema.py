"""Where a database stands against this code: what is applied, what is pending, and whether they fit each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tenure.errors import SchemaMismatch
from tenure.stores.contract import MigrationRecord, SchemaState


def compare(known: Sequence[MigrationRecord], applied: Mapping[int, str], *, min_code_version: int) -> SchemaState:
    """`applied` maps the number of each migration in the database to its checksum there."""
    by_number = {migration.number: migration for migration in known}
    return SchemaState(
        applied=sorted(applied),
        pending=[migration for migration in known if migration.number not in applied],
        unknown=sorted(number for number in applied if number not in by_number),
        changed=sorted(n for n, checksum in applied.items() if n in by_number and by_number[n].checksum != checksum),
        min_code_version=min_code_version,
        code_version=code_version(known),
    )


def code_version(known: Sequence[MigrationRecord]) -> int:
    """The newest schema that this code knows."""
    return known[-1].number if known else 0


def require_ours(state: SchemaState, *, where: str) -> None:
    """Refuse a database that this code must not even migrate; the error has the remedy. A newer one is accepted if its
    `min_code_version` allows it."""
    if state.min_code_version > state.code_version:
        raise SchemaMismatch(
            f"{where} needs code that knows schema {state.min_code_version}, and this tenure knows only "
            f"{state.code_version}; upgrade tenure before it touches this database"
        )
    if state.changed:
        raise SchemaMismatch(
            f"{where} was migrated with other files than this tenure brings (migration {state.changed[0]} differs); "
            f"install the tenure that migrated it, or restore the file"
        )


def require_fit(state: SchemaState, *, where: str, url: str) -> None:
    """Refuse a database that this code must not use; the error has the remedy. `url` has no password."""
    require_ours(state, where=where)
    if not state.applied:
        raise SchemaMismatch(f"{where} has no tenure schema yet; run `tenure migrate --database '{url}'`")
    if state.pending:
        names = ", ".join(f"{migration.number:04d}_{migration.name}" for migration in state.pending)
        raise SchemaMismatch(f"{where} lacks {names}; run `tenure migrate --database '{url}'`")
