// RemoteClaw's own Claude runtime on the fake CLI: one run for each line on stdin, its seconds on stdout.
//   node remoteclaw.mjs BUNDLE     BUNDLE: src/middleware/runtimes/claude.ts of a checkout, bundled as an ES module
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { ClaudeCliRuntime } = await import(pathToFileURL(process.argv[2]).href);

async function run() {
  const runtime = new ClaudeCliRuntime();
  let events = 0;
  let last;
  const before = process.cpuUsage();
  const start = performance.now();
  for await (const event of runtime.execute({ prompt: "go" })) {
    events += 1;
    last = event;
  }
  const wall = (performance.now() - start) / 1000;
  const used = process.cpuUsage(before);
  if (last?.type !== "done" || last.result.aborted) throw new Error(`the run did not end well: ${last?.type}`);
  return { events, wall, cpu: (used.user + used.system) / 1e6 };
}

for await (const line of createInterface({ input: process.stdin })) {
  if (line) console.log(JSON.stringify(await run()));
}
