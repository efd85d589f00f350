// llama.cpp as a process that decodes when asked to.
//
//     node with_llama_cpp.mjs NODE_MODULES JOB

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [packages, text] = process.argv.slice(2);
const job = JSON.parse(text);
const home = join(packages, "node-llama-cpp");
const { getLlama } = await import(pathToFileURL(join(home, "dist/index.js")));
const { version } = JSON.parse(await readFile(join(home, "package.json")));

const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });
const model = await llama.loadModel({ modelPath: job.file });
const prompt = model.tokenize(job.prompt);
const context = await model.createContext({
  contextSize: prompt.length + job.tokens + 1,
  threads: { ideal: job.threads, min: job.threads },
});
const sequence = context.getSequence();
const say = (what) => console.log(JSON.stringify(what));

say({ ready: `node-llama-cpp ${version}, ${model.typeDescription ?? "the file"}` });
for await (const _ of createInterface({ input: process.stdin })) {
  await sequence.clearHistory();
  let tokens = 0;
  let first;
  for await (const _ of sequence.evaluate(prompt, { temperature: 0, yieldEogToken: true })) {
    first ??= performance.now();
    tokens += 1;
    if (tokens === job.tokens) break;
  }
  say({ tokens, seconds: (performance.now() - first) / 1e3 });
}
