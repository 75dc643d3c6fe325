// A remote engine in JavaScript without dependencies; render.mjs is an example of its use. A handler is called with
//
//   { payload, progress(percent, message), signal, trace, job }
//
// and returns the result. `signal` is aborted once the engine no longer holds the job, `trace` is the W3C traceparent for
// calls of the handler's own, and an error with `permanent: true` is not retried.
//
// The engine connects again after a lost connection, and goes on with the jobs that it still holds.
import { randomBytes } from "node:crypto";

const CONNECT_AGAIN_MS = 500;
const RESULT_LENGTH_MAX = 1_000_000; // Bytes. A larger message would close the socket.
const FINAL = new Set(["unknown_kinds", "invalid_message"]); // Errors that the next connection would meet as well.

export function runEngine({ url, handlers, token = process.env.TENURE_TOKEN, engineId, capacity = 4 }) {
  const engine_id = engineId ?? process.env.ENGINE_ID ?? "engine-js";
  const session = randomBytes(32).toString("hex"); // The leases are derived from it: keep it secret.
  const running = new Map(); // Jobs that this engine holds, by id.
  const unacknowledged = new Map(); // Ends of jobs, which are sent until the gateway has recorded them.
  let [epoch, lastClaim, lastId, socket, heartbeats, heardAt] = [0, 0, 0, null, null, 0];
  let [stopping, welcomed, failures] = [false, false, 0];

  const write = (message) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));
  const send = (message) => welcomed && write(message); // Before the welcome the gateway expects nothing but hello.

  function report(type, { job_id, claim }, fields = {}) {
    const message = { type, id: ++lastId, job_id, claim, ...fields };
    if (type === "job_complete" || type === "job_failed") unacknowledged.set(message.id, message);
    send(message);
    return message;
  }

  async function run(job) {
    const held = { job, abort: new AbortController() };
    running.set(job.job_id, held);
    const holds = () => running.get(job.job_id) === held;
    // A span of this attempt: the enqueuer's trace with a span id of its own.
    const trace = job.trace?.replace(/^(\w{2}-\w{32})-\w{16}-/, `$1-${randomBytes(8).toString("hex")}-`);
    const progress = (percent, message) => holds() && report("job_progress", job, { percent, message });
    report("job_ack", job);
    held.started = report("job_started", job, { trace });
    try {
      const { signal } = held.abort;
      const result = await handlers[job.kind]({ payload: job.payload, progress, signal, trace, job });
      const length = Buffer.byteLength(JSON.stringify(result ?? null));
      if (length > RESULT_LENGTH_MAX) throw Object.assign(new Error(`a result of ${length} bytes`), { permanent: true });
      if (holds()) report("job_complete", job, { trace, result: result ?? null });
    } catch (error) {
      const text = (value) => String(value).slice(0, 16_000);
      const { name, message = error, stack = null } = error ?? {};
      const facts = { type: text(name || "Error"), message: text(message), traceback: stack && text(stack) };
      if (holds()) report("job_failed", job, { trace, error: facts, action: error?.permanent ? "fail" : "retry" });
    }
    if (holds()) running.delete(job.job_id);
  }

  function abandon(job_id) {
    running.get(job_id)?.abort.abort();
    running.delete(job_id);
  }

  function beat(silence_seconds) {
    endIfStopped();
    send({ type: "heartbeat", id: ++lastId });
    // Each heartbeat is acknowledged, so that a gateway which replies nothing is lost.
    if (Date.now() - heardAt > silence_seconds * 1000) lost(socket, "the gateway is silent");
  }

  const receive = {
    welcome({ heartbeat_seconds, silence_seconds, jobs }) {
      welcomed = true;
      failures = 0;
      const kept = new Set(jobs.map((job) => job.job_id));
      for (const id of running.keys()) if (!kept.has(id)) abandon(id);
      // A start may have been lost with the last connection. Sent again, it changes nothing.
      for (const { started } of running.values()) send(started);
      for (const message of unacknowledged.values()) send(message);
      if (stopping) send({ type: "drain", id: ++lastId });
      heartbeats = setInterval(beat, heartbeat_seconds * 1000, silence_seconds);
    },
    job_dispatch(job) {
      lastClaim = Math.max(lastClaim, job.claim);
      if (running.get(job.job_id)?.job.claim === job.claim) return;
      abandon(job.job_id);
      run(job);
    },
    cancel({ job_id, hard }) {
      if (hard) abandon(job_id); // Nothing more of it is recorded. A soft cancel may be ignored.
    },
    ack({ id, outcome, reason }) {
      const end = unacknowledged.get(id);
      if (end && outcome !== "recorded") console.error(`end of job ${end.job_id} not recorded (${outcome}): ${reason}`);
      unacknowledged.delete(id);
      endIfStopped();
    },
    drain() {}, // The gateway stops: it dispatches nothing more, and still records ends.
    error({ code, message }) {
      console.error(`the gateway ends the connection (${code}): ${message}`);
      if (FINAL.has(code)) process.exit(1);
    },
  };

  function endIfStopped() {
    if (stopping && running.size === 0 && unacknowledged.size === 0) process.exit(0);
  }

  function lost(which, reason) {
    if (which !== socket) return;
    clearInterval(heartbeats);
    if (failures++ === 0) console.error(`connection to ${url} lost or refused (${reason}); connecting again`);
    [socket, welcomed] = [null, false];
    which.close();
    setTimeout(connect, CONNECT_AGAIN_MS * (1 + Math.random()));
  }

  function connect() {
    const opened = new WebSocket(url, ["tenure.v1", `bearer.${token}`]);
    socket = opened;
    opened.onopen = () => {
      heardAt = Date.now();
      const jobs = [...running.values()].map(({ job: { job_id, claim } }) => ({ job_id, claim }));
      const kinds = Object.keys(handlers);
      write({ type: "hello", engine_id, session, kinds, capacity, epoch: ++epoch, claim: lastClaim, jobs });
    };
    opened.onmessage = ({ data }) => {
      if (opened !== socket) return;
      heardAt = Date.now();
      const message = JSON.parse(data);
      receive[message.type]?.(message); // Types of a later version are ignored.
    };
    opened.onclose = ({ code, reason }) => lost(opened, reason || `code ${code}: is the token right?`);
    opened.onerror = () => {}; // onclose follows.
  }

  connect();
  return {
    stop() {
      stopping = true;
      send({ type: "drain", id: ++lastId });
      endIfStopped();
    },
  };
}
