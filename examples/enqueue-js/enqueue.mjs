// Enqueues a job and sends a signal from JavaScript, through the SQL functions of tenure (PostgreSQL). Needs `npm install`.
//
//   PGHOST=... PGUSER=shop_caller node enqueue.mjs render '{"scene": "intro"}'
//   PGHOST=... PGUSER=shop_caller node enqueue.mjs signal JOB_ID NAME '{"by": "ada"}'
import pg from "pg";

const client = new pg.Client(); // The connection comes from PGHOST, PGPORT, PGUSER, PGDATABASE and so on.
await client.connect();
const [first, ...rest] = process.argv.slice(2);
try {
  if (first === "signal") {
    const sent = await client.query("select tenure.signal($1, $2, $3::jsonb) as rev", rest);
    console.log(sent.rows[0].rev);
  } else {
    // In a transaction of your own, the job exists once that is committed.
    const enqueued = await client.query(
      "select tenure.enqueue($1, $2::jsonb, queue => $3, policy => $4::jsonb) as id",
      [first, rest[0] ?? "{}", "render", { max_attempts: 3, on_lost: "fail" }],
    );
    console.log(enqueued.rows[0].id);
  }
} catch (error) {
  console.error(`${error.code}: ${error.message}`); // 22023, TN001, TN004 or TN005: see docs/guides/sql.md.
  process.exitCode = 1;
} finally {
  await client.end();
}
