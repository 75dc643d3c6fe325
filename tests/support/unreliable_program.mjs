// An engine of the tests, as unreliable_program.py in JavaScript.
import { runEngine } from "../../examples/engine-js/engine.mjs";

async function render({ payload }) {
  await new Promise((next) => setTimeout(next, Math.random() * 500));
  if (Number(payload.scene) % 50 === 0) throw Object.assign(new Error("no such asset"), { permanent: true });
  if (Math.random() < 0.05) throw new Error("the asset server hiccuped");
  return payload.scene;
}

runEngine({ url: process.argv[2], handlers: { render }, capacity: 20 });
