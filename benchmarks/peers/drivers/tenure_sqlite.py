"""tenure on a SQLite file, by the same driver."""

from __future__ import annotations

from contextlib import AbstractContextManager

from benchmarks.peers.drivers.protocol import Ledger, main
from benchmarks.peers.drivers.sqlite import Books, ledger
from benchmarks.peers.drivers.tenure import CONCURRENCY, Tenure

BOOKS = Books(
    left="select count(*) from tenure_jobs where status <> 'succeeded'",
    done="select count(*) from tenure_jobs where status = 'succeeded'",
    first_claim="select 1000 * min(at) from tenure_events where type = 'claimed'",
)


class TenureOnSqlite(Tenure):
    configuration = f"synchronous=FULL, uvloop, concurrency {CONCURRENCY} a process; event log and guards on"

    def ledger(self, url: str) -> AbstractContextManager[Ledger]:
        return ledger(url, BOOKS)


if __name__ == "__main__":
    main(TenureOnSqlite())
