// An engine of the tests, on the engine of examples/. A scene is the name of a file in the folder: the job ends once the
// file exists. The job of the scene "memory" then fills the memory of the process instead, and "huge" has a large result.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { runEngine } from "../../examples/engine-js/engine.mjs";

const [url, folder] = process.argv.slice(2);
const filled = [];

async function render({ payload, signal }) {
  while (!existsSync(join(folder, payload.scene)) && !signal.aborted) await new Promise((next) => setTimeout(next, 20));
  while (payload.scene === "memory") filled.push(new Array(1_000_000).fill({ scene: payload.scene }));
  if (payload.scene === "huge") return "x".repeat(2_000_000);
  return `${payload.scene} by ${process.pid}`;
}

runEngine({ url, handlers: { render } });
