// The labs' interpreter: Python in a worker, so that an endless loop leaves the page alive and can be ended.
//
// It answers one order at a time. What it says: `progress` while it loads, `ready`, `event` while an order runs,
// `answer`, `error`, and `killed` with the bytes of the scratch folder when the code killed its own process. After
// that it waits to be terminated.
const base = new URL("./", import.meta.url);
const SCRATCH = "/scratch";
let lab;
let python;
let facts;
let tools;
let order = 0;

const say = (kind, more) => self.postMessage({ kind, id: order, ...more });

// Count what arrives, whoever fetches it.
let loaded = 0;
const realFetch = self.fetch.bind(self);
self.fetch = async (...given) => {
  const response = await realFetch(...given);
  if (!response.ok || !response.body) return response;
  const counted = response.body.pipeThrough(
    new TransformStream({
      transform(chunk, controller) {
        loaded += chunk.byteLength;
        say("progress", { loaded });
        controller.enqueue(chunk);
      },
    }),
  );
  return new Response(counted, { status: response.status, headers: response.headers });
};

async function bytes(name) {
  const response = await fetch(new URL(name, base));
  if (!response.ok) throw new Error(`${name}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

async function load({ files }) {
  const [{ loadPyodide }, project, about] = await Promise.all([
    import(new URL("pyodide/pyodide.mjs", base)),
    bytes("project.zip"),
    realFetch(new URL("lab.json", base)).then((response) => response.json()),
  ]);
  facts = about;
  python = await loadPyodide({
    indexURL: new URL("pyodide/", base).href,
    env: {
      HOME: "/home/pyodide",
      LANG: "C.UTF-8",
      LC_ALL: "C.UTF-8",
      TZ: "UTC",
      COLUMNS: "100",
      LINES: "40",
      TERM: "dumb",
      PYTHONHASHSEED: "0",
      PYTHONUTF8: "1",
    },
  });
  python.unpackArchive(project, "zip", { extractDir: "/" });
  for (const [path, data] of files ?? []) {
    python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
    python.FS.writeFile(path, data);
  }
  lab = python.runPython(`
import sys
sys.path.insert(0, "/lab")
from bookproof.labrun import Lab
Lab
`)("/project", SCRATCH, facts.src, (event) => say("event", { event: JSON.parse(event) }), end);
  say("ready", { ...JSON.parse(lab.versions()), pyodide: python.version });
}

// What a killed process leaves is what its disk holds.
function end() {
  say("killed", { files: saved(SCRATCH) });
  for (;;);
}

function saved(folder) {
  const found = [];
  for (const name of python.FS.readdir(folder)) {
    if (name === "." || name === "..") continue;
    const path = `${folder}/${name}`;
    const { mode } = python.FS.lstat(path);
    if (python.FS.isDir(mode)) found.push(...saved(path));
    else if (python.FS.isFile(mode)) found.push([path, python.FS.readFile(path)]);
  }
  return found;
}

async function answer({ needsTests, request }) {
  if (needsTests) {
    tools ??= bytes("tools.zip").then((archive) => python.unpackArchive(archive, "zip", { extractDir: "/" }));
    await tools;
  }
  return JSON.parse(lab.answer(JSON.stringify(request)));
}

self.onmessage = async ({ data }) => {
  order = data.id;
  try {
    if (data.kind === "load") await load(data);
    else say("answer", { answer: await answer(data) });
  } catch (error) {
    tools = undefined;
    say("error", { message: String(error?.message ?? error).trim(), loading: data.kind === "load" });
  }
};
