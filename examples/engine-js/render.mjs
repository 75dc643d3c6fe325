// An example engine. Node 22, or Node 20 with --experimental-websocket:
//
//   TENURE_TOKEN=tnr_... node render.mjs ws://127.0.0.1:8080/engine
import { runEngine } from "./engine.mjs";

const handlers = {
  async render({ payload, progress }) {
    progress(50, "half");
    if (!payload.scene) throw Object.assign(new Error("the scene has no name"), { name: "BadAsset", permanent: true });
    return `${payload.scene}.png`;
  },
};

const engine = runEngine({ url: process.argv[2] ?? "ws://127.0.0.1:8080/engine", handlers });
process.once("SIGTERM", () => engine.stop());
process.once("SIGINT", () => engine.stop());
