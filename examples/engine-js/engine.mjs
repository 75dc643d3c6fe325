// A remote engine in JavaScript without dependencies: Node 22, or Node 20 with --experimental-websocket.
//
//   TENURE_TOKEN=tnr_... node engine.mjs ws://127.0.0.1:8080/engine
//
// It connects again after a lost connection, and goes on with the jobs that it still holds.
import { randomBytes } from "node:crypto";

const handlers = {
  async render({ payload, progress }) {
    progress(50, "half");
    return `${payload.scene}.png`;
  },
};

const url = process.argv[2] ?? "ws://127.0.0.1:8080/engine";
const session = randomBytes(32).toString("hex"); // The leases are derived from it: keep it secret.
const running = new Map(); // Jobs that this engine holds, by id.
const unacknowledged = new Map(); // Ends of jobs, which are sent until the gateway has recorded them.
let [epoch, lastClaim, lastId, socket, heartbeats] = [0, 0, 0, null, null];

const send = (message) => socket?.readyState === WebSocket.OPEN && socket.send(JSON.stringify(message));

function report(type, { job_id, claim }, fields = {}) {
  const message = { type, id: ++lastId, job_id, claim, ...fields };
  if (type === "job_complete" || type === "job_failed") unacknowledged.set(message.id, message);
  send(message);
}

async function run(job) {
  running.set(job.job_id, job);
  report("job_ack", job);
  report("job_started", job);
  const holds = () => running.get(job.job_id) === job;
  try {
    const progress = (percent, message) => holds() && report("job_progress", job, { percent, message });
    // job.trace is the W3C traceparent of the enqueuer: continue it in calls of your own.
    const result = await handlers[job.kind]({ payload: job.payload, trace: job.trace, job, progress });
    if (holds()) report("job_complete", job, { result: result ?? null });
  } catch (error) {
    const facts = { type: error.name, message: String(error.message), traceback: error.stack };
    if (holds()) report("job_failed", job, { error: facts, action: error.permanent ? "fail" : "retry" });
  }
  if (holds()) running.delete(job.job_id);
}

const receive = {
  welcome({ heartbeat_seconds, jobs }) {
    const kept = new Set(jobs.map((job) => job.job_id));
    for (const id of running.keys()) if (!kept.has(id)) running.delete(id);
    for (const message of unacknowledged.values()) send(message);
    heartbeats = setInterval(() => send({ type: "heartbeat", id: ++lastId }), heartbeat_seconds * 1000);
  },
  job_dispatch(job) {
    lastClaim = Math.max(lastClaim, job.claim);
    if (running.get(job.job_id)?.claim !== job.claim) run(job);
  },
  cancel({ job_id, hard }) {
    if (hard) running.delete(job_id); // Nothing more of it is recorded.
  },
  ack({ id }) {
    unacknowledged.delete(id);
  },
  drain() {},
  error({ code, message }) {
    console.error(`${code}: ${message}`);
  },
};

function connect() {
  socket = new WebSocket(url, ["tenure.v1", `bearer.${process.env.TENURE_TOKEN}`]);
  socket.onopen = () => {
    const jobs = [...running.values()].map(({ job_id, claim }) => ({ job_id, claim }));
    const engine_id = process.env.ENGINE_ID ?? "engine-js";
    const kinds = Object.keys(handlers);
    send({ type: "hello", engine_id, session, kinds, capacity: 4, epoch: ++epoch, claim: lastClaim, jobs });
  };
  socket.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    receive[message.type]?.(message);
  };
  socket.onclose = () => {
    clearInterval(heartbeats);
    setTimeout(connect, 500 + Math.random() * 500);
  };
  socket.onerror = () => {};
}

connect();
