"""A payment that is booked at most once: the booking, the result and the end of the job are one transaction.

Jobs and bookings are in one database, SQLite or PostgreSQL:

    export TENURE_DATABASE=postgresql://localhost/shop
    tenure migrate
    python examples/pay_once.py
"""

from __future__ import annotations

import asyncio

import tenure

app = tenure.App()


@app.job(lease_seconds=30, on_exhausted="dead_letter")
async def pay(ctx: tenure.Context, order: str, cents: int) -> str:
    receipt = f"receipt for {order}"  # Everything before the commit block may run again.
    async with ctx.commit(result=receipt) as tx:
        # All of it takes effect together, once, or not at all, also if the worker is killed here.
        await tx.execute("insert into bookings (order_name, cents) values ($1, $2)", order, cents)
    return receipt


async def main() -> None:
    async with app:
        store = await app.store()
        async with store.transaction(deadline_seconds=10) as tx:
            await tx.execute("create table if not exists bookings (order_name text, cents integer)")

        once = pay.options(request_id="order-7")  # Enqueued twice, it is one job.
        first, second = await once.enqueue("order-7", 1200), await once.enqueue("order-7", 1200)
        print(f"one job: {first.id == second.id}")

        worker = app.worker()
        working = asyncio.create_task(worker.run())
        print(await first.result(timeout_seconds=30))
        worker.stop()
        await working

        async with store.transaction(deadline_seconds=10) as tx:
            bookings = await tx.fetch("select order_name, cents from bookings")
        print(f"booked: {bookings}")


if __name__ == "__main__":
    asyncio.run(main())
