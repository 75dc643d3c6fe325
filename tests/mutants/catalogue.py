"""All mutants, in the order of the house: the policy, the stores, the workers."""

from __future__ import annotations

from tests.mutants import policy, ruling, storing, storing_in_postgres, working
from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *policy.MUTANTS,
    *storing.MUTANTS,
    *storing_in_postgres.MUTANTS,
    *ruling.MUTANTS,
    *working.MUTANTS,
)
