// The labs of a page: fetched when a reader presses a button of one, and kept while the reader walks through the site.
//
// `open(place, action)` is all that the page's script calls. Everything runs in one worker; what it says is shown, and
// compared with what the build of this site said. Edits stay in this browser, tied to the text that they were made of.
const base = new URL("./", import.meta.url);
const facts = fetchJson("lab.json");
const pages = new Map();
const labs = new WeakMap();
let count = 0;

export async function open(place, action) {
  try {
    await loadStyle();
    if (!labs.has(place)) labs.set(place, build(place));
    const lab = await labs.get(place);
    await lab.act(action);
  } catch (error) {
    labs.delete(place);
    place.append(element("p", { role: "alert" }, `The lab could not be opened: ${error.message}`));
  }
}

async function build(place) {
  const { bookproofLab: kind, name, page } = place.dataset;
  if (!pages.has(page)) pages.set(page, fetchJson(`pages/${page}.json`));
  const known = await pages.get(page).catch((error) => {
    pages.delete(page);
    throw error;
  });
  const Kind = { run: Run, knobs: Knobs, crash: Crash, mutation: Mutation, agree: Agree }[kind];
  const lab = new Kind(place, name, page, known, await facts);
  await lab.prepare();
  return lab;
}

// The interpreter

class Stopped extends Error {}

// One worker for the whole site: orders wait for each other, and stopping one ends the worker and starts another.
class Host {
  #worker;
  #ready;
  #current;
  #waiting = Promise.resolve();
  #orders = 0;
  versions;

  // Give an order; `watch` has `progress(text)` and `event(event)`. `stop()` ends it, whether it runs or waits.
  order(request, watch, { needsTests = false } = {}) {
    const entry = { id: ++this.#orders, watch, stopped: false };
    const result = this.#waiting.then(async () => {
      if (entry.stopped) throw new Stopped();
      entry.cancelled = new Promise((_, reject) => (entry.reject = reject));
      entry.cancelled.catch(() => {});
      this.#current = entry;
      try {
        await Promise.race([this.#start(), entry.cancelled]);
        const answered = new Promise((resolve) => (entry.resolve = resolve));
        this.#worker.postMessage({ kind: "order", id: entry.id, needsTests, request });
        return await Promise.race([answered, entry.cancelled]);
      } finally {
        this.#current = undefined;
      }
    });
    this.#waiting = result.catch(() => {});
    const stop = () => {
      entry.stopped = true;
      if (this.#current !== entry) return;
      this.#end();
      this.#start().catch(() => {});
      entry.reject(new Stopped());
    };
    return { result, stop };
  }

  #start() {
    return (this.#ready ??= this.#load([]));
  }

  #end() {
    this.#worker?.terminate();
    this.#worker = this.#ready = undefined;
  }

  async #load(files) {
    const worker = (this.#worker = new Worker(new URL("lab-worker.mjs", base), { type: "module", name: "lab" }));
    const total = (await facts).bytes;
    const starting = performance.now();
    return new Promise((resolve, reject) => {
      const failed = (message) => {
        if (this.#worker === worker) this.#end();
        reject(new Error(message));
      };
      worker.onerror = (event) => {
        event.preventDefault?.();
        failed(event.message || "its script could not be loaded");
      };
      worker.onmessage = ({ data }) => {
        const entry = this.#current;
        if (data.kind === "progress") {
          const part = (data.loaded / 1e6).toFixed(1);
          const all = ((data.loaded > total.first ? total.first + total.tests : total.first) / 1e6).toFixed(1);
          const done = Number(part) >= Number(all) ? "; starting it" : "";
          entry?.watch.progress(`Loading Python into this page: ${part} of ${all} MB${done}`);
        } else if (data.kind === "ready") {
          this.versions = { python: data.python, sqlite: data.sqlite, pyodide: data.pyodide };
          performance.measure("bookproof lab: load", { start: starting });
          resolve();
        } else if (data.kind === "event") {
          if (data.event.event === "killed") entry.killed = data.event;
          entry?.watch.event?.(data.event);
        } else if (data.kind === "answer") {
          entry?.resolve(data.answer);
        } else if (data.kind === "killed") {
          // The process is gone for good: a new one starts on the bytes that the old one left.
          this.#end();
          this.#ready = this.#load(data.files);
          this.#ready.catch(() => {});
          entry?.resolve({ killed: entry.killed, files: data.files });
        } else if (data.loading) {
          failed(data.message);
        } else {
          entry?.reject(new Error(data.message));
        }
      };
      worker.postMessage({ kind: "load", id: 0, files });
    });
  }
}

const host = new Host();

// What all labs have

class Lab {
  constructor(place, name, page, known, about) {
    Object.assign(this, { place, name, page, known, about, id: `lab-${++count}` });
  }

  // Replace the first buttons with the lab's own.
  prepare() {
    this.bar = element("div", { class: "bookproof-lab-bar", role: "group", "aria-label": `Lab ${this.name}` });
    this.state = element("span", { class: "bookproof-lab-state", role: "status" });
    this.body = element("div", { class: "bookproof-lab-body" });
    this.place.replaceChildren(this.bar, this.body);
    this.buttons = {};
    for (const label of [...this.actions, "Stop"]) {
      const button = element("button", { type: "button", class: "bookproof-lab-button" }, label);
      button.addEventListener("click", () => this.act(label));
      this.buttons[label] = button;
      this.bar.append(button);
    }
    this.buttons.Stop.disabled = true;
    this.bar.append(this.state);
    if (this.bar.parentElement === this.place) this.buttons[this.actions[0]].focus({ preventScroll: true });
  }

  async act(label) {
    if (label === "Stop") return this.running?.stop();
    // Whoever runs from the editor goes on typing there.
    if (!this.body.contains(document.activeElement)) this.buttons[label]?.focus({ preventScroll: true });
    await this.run[label].call(this);
  }

  // Give an order, with Stop, progress and Retry; undefined if it was stopped or could not be carried out.
  async order(request, { event, needsTests, retry, busy = "Running" } = {}) {
    this.running?.stop();
    const order = host.order(request, { progress: (text) => (this.state.textContent = text), event }, { needsTests });
    this.running = order;
    this.buttons.Stop.disabled = false;
    this.say(busy, "");
    const start = performance.now();
    try {
      const answer = await order.result;
      performance.measure(`bookproof lab: ${this.name}`, { start });
      if (this.running === order) this.say("", "");
      return answer;
    } catch (error) {
      if (this.running !== order) return undefined;
      if (error instanceof Stopped) this.say("Stopped", "bad");
      else this.failed(error, retry);
      return undefined;
    } finally {
      if (this.running === order) {
        this.running = undefined;
        this.buttons.Stop.disabled = true;
      }
    }
  }

  failed(error, retry) {
    this.say(`This did not work: ${error.message} `, "bad");
    if (!retry) return;
    const button = element("button", { type: "button", class: "bookproof-lab-button" }, "Retry");
    button.addEventListener("click", () => retry.call(this));
    this.state.append(button);
  }

  say(text, tone) {
    this.state.textContent = text;
    this.state.dataset.tone = tone;
  }

  // Show an editor with its hint; `key` and `digest` tie what is typed to the text that it was made of.
  async edit({ text, label, key, digest, run }) {
    const { createEditor } = await import(new URL("editor.mjs", base));
    const kept = recall(key);
    const hint = element("p", { id: `${this.id}-keys`, class: "bookproof-lab-hint" });
    hint.textContent = "Ctrl-Enter or Cmd-Enter runs. Tab indents; Escape, then Tab leaves the editor.";
    const parent = element("div", { class: "bookproof-lab-editor" });
    this.body.prepend(parent, hint);
    const editor = createEditor({
      parent,
      text: kept?.digest === digest ? kept.text : text,
      label,
      describedBy: hint.id,
      run,
      change: (typed) => remember(key, typed === text ? undefined : { digest, text: typed }),
    });
    if (kept && kept.digest !== digest) this.offer(parent, editor, kept, { text, key, digest });
    return editor;
  }

  // The page has a newer text than the reader's edit: the new one is shown, and the reader decides about the old one.
  offer(parent, editor, kept, { text, key }) {
    const box = element("p", { class: "bookproof-lab-offer", role: "status" });
    box.append("This page has changed since you edited this block. You see its new text. ");
    const old = element("button", { type: "button", class: "bookproof-lab-button" }, "Show my edit");
    const drop = element("button", { type: "button", class: "bookproof-lab-button" }, "Keep the new text");
    old.addEventListener("click", () => {
      editor.text = kept.text;
      box.remove();
    });
    drop.addEventListener("click", () => {
      editor.text = text;
      remember(key, undefined);
      box.remove();
    });
    box.append(old, " ", drop);
    parent.before(box);
  }

  // A panel in which outputs appear.
  panel(label) {
    const shown = element("div", { class: "bookproof-lab-output", role: "region", "aria-label": label, tabindex: "0" });
    this.body.append(shown);
    return shown;
  }
}

// Blocks

class Blocks extends Lab {
  prepare() {
    super.prepare();
    this.example = this.known.examples.find((one) => one.id === this.name);
    this.output = this.panel(`Output of ${this.name} in your browser`);
    this.output.hidden = true;
    this.text = recall(this.key)?.digest === this.example.digest ? recall(this.key).text : this.example.code;
  }

  get key() {
    return `bookproof:${base.pathname}:${this.page}#${this.name}`;
  }

  get code() {
    return this.editor ? this.editor.text : this.text;
  }

  // The blocks of this page's session that stand above, which the block needs.
  get earlier() {
    const { session } = this.example.options;
    const before = this.known.examples.slice(0, this.known.examples.indexOf(this.example));
    return session ? before.filter((one) => one.code && !one.skip && one.options.session === session) : [];
  }

  async openEditor() {
    if (this.editor) return;
    this.editor = await this.edit({
      text: this.example.code,
      label: `Code of ${this.name}`,
      key: this.key,
      digest: this.example.digest,
      run: () => this.act(this.actions[0]),
    });
    this.source ??= [...this.place.parentElement.querySelectorAll(".highlight")].find(
      (one) => one.querySelector("code")?.textContent.trim() === this.example.code.trim(),
    );
    if (this.source) this.source.hidden = true;
  }

  reset() {
    this.running?.stop();
    remember(this.key, undefined);
    this.text = this.example.code;
    this.editor?.destroy();
    this.editor = undefined;
    this.body.replaceChildren(this.output);
    this.output.hidden = true;
    if (this.source) this.source.hidden = false;
    this.say("", "");
  }

  // Show a block's output as it arrives; return what is to be called with what the block did.
  stream() {
    this.output.hidden = false;
    const text = element("pre", {});
    this.output.replaceChildren(text);
    let waiting = "";
    return {
      event: (event) => {
        if (event.event !== "text" || event.id !== this.example.id) return;
        if (!waiting) requestAnimationFrame(flush);
        waiting += event.text;
      },
      end: (result) => {
        flush();
        if (result) this.show(result);
      },
    };
    function flush() {
      // A loop that prints without end must not fill the page.
      text.textContent = (text.textContent + waiting).slice(-100_000);
      waiting = "";
    }
  }

  show(result, block = this.example) {
    this.output.replaceChildren(...rendered(result.output, result.failure ? "text" : block.options.result));
    if (result.failure) {
      this.output.append(element("pre", { class: "bookproof-lab-failure" }, result.failure));
      this.editor?.mark(result.line, { scroll: true });
    } else {
      this.editor?.mark(0);
    }
  }

  // What the comparison with the build says, in words.
  compare(result, edited) {
    if (result.failure) {
      return this.say(result.line ? `An error in line ${result.line}` : "An error", "bad");
    }
    if (edited) return this.say("Done. You changed the code, so there is nothing to compare with.", "");
    if (result.output === this.example.output) return this.say("Equal to what the build of this page computed", "good");
    return this.say("Not equal to what the build of this page computed", "bad");
  }
}

class Run extends Blocks {
  actions = ["Run", "Edit", "Reset"];
  run = {
    async Run() {
      const code = this.code;
      const stream = this.stream();
      const blocks = [...this.earlier, { ...this.example, code }].map(asked);
      const request = { kind: "blocks", blocks };
      const answer = await this.order(request, { event: stream.event, retry: this.run.Run });
      const result = answer?.killed ? undefined : answer?.at(-1);
      stream.end(result);
      if (answer?.killed) this.say("The code killed its own process", "bad");
      else if (result) this.compare(result, code !== this.example.code);
    },
    async Edit() {
      await this.openEditor();
      this.editor.focus();
    },
    async Reset() {
      this.reset();
    },
  };
}

class Knobs extends Blocks {
  actions = ["Reset"];
  run = {
    "Turn the knobs": function () {
      this.inputs[0].focus();
    },
    async Reset() {
      this.reset();
      await this.prepare();
      this.inputs[0].focus();
    },
  };

  async prepare() {
    super.prepare();
    this.values = new Map(this.example.knobs.map((knob) => [knob.name, knob.value]));
    const panel = element("fieldset", { class: "bookproof-lab-knobs" });
    panel.append(element("legend", {}, "Turn a knob, and the package answers"));
    this.inputs = this.example.knobs.map((knob) => this.control(knob, panel));
    this.revealed = !this.example.predict;
    if (!this.revealed) panel.append(this.prediction());
    this.body.prepend(panel);
  }

  control(knob, panel) {
    const id = `${this.id}-${knob.name}`;
    const label = element("label", { for: id }, knob.label);
    const shown = element("output", { for: id }, knob.value.replaceAll('"', ""));
    let input;
    if (knob.choices.length) {
      input = element("select", { id });
      for (const choice of knob.choices) input.append(new Option(choice.replaceAll('"', ""), choice));
      input.value = knob.value;
      shown.hidden = true;
    } else {
      input = element("input", { id, type: "range", min: knob.low, max: knob.high, step: knob.step });
      input.value = knob.value;
    }
    input.dataset.knob = knob.name;
    input.addEventListener("input", () => {
      this.values.set(knob.name, input.value);
      shown.textContent = input.value;
      if (this.revealed) this.turn();
      else this.say("Say what you expect, then reveal.", "");
    });
    panel.append(element("div", { class: "bookproof-lab-knob" }, label, input, shown));
    return input;
  }

  prediction() {
    const id = `${this.id}-prediction`;
    const said = element("input", { id, type: "text", class: "bookproof-lab-said", autocomplete: "off" });
    const button = element("button", { type: "button", class: "bookproof-lab-button" }, "Reveal");
    const reveal = () => {
      this.revealed = true;
      if (said.value.trim()) this.predicted = said.value.trim();
      this.turn();
    };
    button.addEventListener("click", reveal);
    said.addEventListener("keydown", (event) => event.key === "Enter" && reveal());
    return element("div", { class: "bookproof-lab-predict" }, element("label", { for: id }, "What do you expect?"), said, button);
  }

  // Compute with the knobs as they stand; of many turns the last one counts.
  async turn() {
    if (this.turning) return void (this.again = true);
    this.turning = true;
    do {
      this.again = false;
      await this.compute();
    } while (this.again);
    this.turning = false;
  }

  async compute() {
    let code = this.example.code;
    for (const [name, value] of this.values) {
      code = code.replace(new RegExp(`^(${name} = )\\S+(?=  #)`, "m"), (_, start) => start + value);
    }
    const request = { kind: "blocks", blocks: [...this.earlier, { ...this.example, code }].map(asked) };
    const answer = await this.order(request, { retry: this.turn });
    const result = answer?.at?.(-1);
    if (!result) return;
    this.output.hidden = false;
    this.show(result);
    if (this.predicted) this.output.prepend(element("p", {}, `You expected: ${this.predicted}`));
    if (result.failure) this.say("The package refuses these values", "bad");
    else if (code === this.example.code) this.compare(result, false);
    else this.say("Computed by the package with your values", "good");
  }
}

class Crash extends Blocks {
  actions = ["Crash it", "Edit", "Reset"];
  run = {
    async "Crash it"() {
      const code = this.code;
      const edited = code !== this.example.code;
      const stream = this.stream();
      const retry = this.run["Crash it"];
      const first = { kind: "blocks", blocks: [asked({ ...this.example, code })] };
      const answer = await this.order(first, { event: stream.event, retry });
      stream.end();
      if (!answer) return;
      if (!answer.killed) {
        this.show(answer.at(-1));
        return this.say("This code did not kill its process", "bad");
      }
      const files = answer.files.map(([path, data]) => `${path.replace("/scratch/work/", "")}: ${data.length} bytes`);
      const told = element("p", {}, `The process is gone. What it left: ${files.join(", ") || "nothing"}.`);
      this.output.append(told);
      const next = this.known.examples[this.known.examples.indexOf(this.example) + 1];
      if (!next?.code || next.skip) return this.say("Killed, as it should be", "good");
      const busy = "Starting a new process on what was left";
      const again = { kind: "blocks", blocks: [asked(next)], fresh: false };
      const results = await this.order(again, { busy, retry });
      if (!results) return;
      const result = results.at(-1);
      this.output.append(element("p", {}, "A new process opened it:"), ...rendered(result.output + result.failure, next.options.result));
      const equal = answer.killed.output === this.example.output && result.output === next.output && !result.failure;
      if (edited) this.say("Done. You changed the code, so there is nothing to compare with.", "");
      else if (equal) this.say("Both halves are equal to what the build of this page computed", "good");
      else this.say("Not equal to what the build of this page computed", "bad");
    },
    async Edit() {
      await this.openEditor();
      this.editor.focus();
    },
    async Reset() {
      this.reset();
    },
  };
}

// All of a page at once

class Agree extends Lab {
  actions = ["Run this page's examples here"];
  run = {
    async "Run this page's examples here"() {
      this.body.replaceChildren();
      const found = new Map();
      let left = this.known.examples.filter((one) => !one.skip && one.code);
      let fresh = true;
      while (left.length) {
        const request = { kind: "blocks", blocks: left.map(asked), fresh };
        const event = (event) => event.event === "block" && found.set(event.id, event);
        const answer = await this.order(request, { event, retry: this.run[this.actions[0]] });
        if (!answer) return;
        if (!answer.killed) break;
        found.set(answer.killed.id, { ...answer.killed, failure: "" });
        left = left.slice(left.findIndex((one) => one.id === answer.killed.id) + 1);
        fresh = false;
      }
      this.show(found);
    },
  };

  show(found) {
    const count = { equal: 0, different: 0, "not run": 0 };
    const rows = this.known.examples.map((one) => {
      const result = found.get(one.id);
      const verdict = !result ? "not run" : result.output === one.output && !result.failure ? "equal" : "different";
      count[verdict] += 1;
      const cell = element("td", {}, element("span", { "data-verdict": verdict }, verdict));
      if (!result) cell.append(`: ${one.skip}`);
      if (verdict === "different") {
        cell.append(element("pre", {}, `build:\n${one.output}\nbrowser:\n${result.output}${result.failure}`));
      }
      return element("tr", {}, element("th", { scope: "row" }, one.id), cell);
    });
    const head = element("tr", {}, element("th", { scope: "col" }, "Example"), element("th", { scope: "col" }, "Verdict"));
    const versions = `The build had Python ${this.about.build.python} and SQLite ${this.about.build.sqlite}, your browser has Python ${host.versions.python} and SQLite ${host.versions.sqlite} (Pyodide ${this.about.pyodide}).`;
    const table = element("table", { "aria-label": "Examples of this page" }, element("thead", {}, head), element("tbody", {}, ...rows));
    this.body.replaceChildren(element("p", {}, versions), element("div", { class: "md-typeset__table" }, table));
    const told = `${count.equal} equal, ${count.different} different, ${count["not run"]} not run here`;
    this.say(told, count.different ? "bad" : "good");
  }
}

// Mutations

class Mutation extends Lab {
  actions = ["Break it", "Restore", "Repair"];
  run = {
    async "Break it"() {
      await this.test({ before: this.mutation.before, after: this.mutation.after }, this.run["Break it"]);
    },
    async Restore() {
      this.close();
      await this.test({}, this.run.Restore);
    },
    async Repair() {
      if (this.editor) return this.editor.focus();
      const { file, before, after } = this.mutation;
      const answer = await this.order({ kind: "source", file, before, after }, { retry: this.run.Repair });
      if (!answer) return;
      this.hide(true);
      this.editor = await this.edit({
        text: answer.text,
        label: `${file}, with the change in it`,
        key: this.key,
        digest: await digest(answer.text),
        run: () => this.mend(),
      });
      this.editor.mark(answer.line, { scroll: true });
      const mend = element("button", { type: "button", class: "bookproof-lab-button" }, "Run the test");
      const reveal = element("button", { type: "button", class: "bookproof-lab-button" }, "Reveal the change");
      mend.addEventListener("click", () => this.mend());
      reveal.addEventListener("click", () => this.hide(false));
      this.tools = element("div", { class: "bookproof-lab-bar" }, mend, reveal);
      this.body.insertBefore(this.tools, this.output);
      this.editor.focus();
    },
  };

  prepare() {
    super.prepare();
    this.mutation = this.known.mutations[this.name];
    this.output = this.panel(`What the test of ${this.name} said`);
    this.output.hidden = true;
  }

  get key() {
    return `bookproof:${base.pathname}:mutation:${this.name}`;
  }

  mend() {
    return this.test({ text: this.editor.text }, this.mend, true);
  }

  async test(change, retry, mending = false) {
    const { file, test } = this.mutation;
    const answer = await this.order({ kind: "test", file, test, ...change }, { needsTests: true, retry, busy: "Running the test" });
    if (!answer) return;
    const broken = Boolean(change.before);
    if (this.editor && answer.file === file) this.editor.mark(answer.line, { scroll: true });
    this.output.hidden = false;
    this.output.replaceChildren(element("p", {}, element("code", {}, test.split("::").at(-1))));
    if (!answer.green) {
      const where = answer.file ? `${answer.file}:${answer.line}` : answer.detail;
      this.output.append(element("p", {}, element("code", {}, where)));
      if (answer.code) this.output.append(element("pre", {}, answer.code));
      this.output.append(element("pre", { class: "bookproof-lab-failure" }, answer.text || answer.detail));
    }
    const verdict = answer.green ? `Green: ${answer.cases === 1 ? "1 test" : `${answer.cases} cases`} passed` : "Red";
    if (broken && answer.verdict === "killed") this.say(`${verdict}: the test caught the change`, "bad");
    else if (broken) this.say(`${verdict}: ${answer.verdict}, ${answer.detail}`, "bad");
    else if (answer.green) this.say(mending ? `${verdict}. You mended it.` : verdict, "good");
    else this.say(`${verdict}: ${answer.verdict}. ${answer.detail}`, "bad");
  }

  hide(hidden) {
    const change = this.place.closest("figure")?.querySelector(".bookproof-diff");
    if (change) change.hidden = hidden;
  }

  close() {
    this.hide(false);
    this.editor?.destroy();
    this.editor = undefined;
    remember(this.key, undefined);
    this.body.replaceChildren(this.output);
  }
}

// Helpers

function asked({ id, code, options }) {
  return { id, code, options };
}

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

async function fetchJson(name) {
  const response = await fetch(new URL(name, base));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response.json();
}

let styled;
function loadStyle() {
  return (styled ??= new Promise((resolve, reject) => {
    const link = element("link", { rel: "stylesheet", href: new URL("lab.css", base) });
    link.onload = resolve;
    link.onerror = () => {
      styled = undefined;
      reject(new Error("its style sheet is missing"));
    };
    document.documentElement.append(link); // not in the head: see lab-load.js
  }));
}

async function digest(text) {
  const bytes = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Storage may be full, or switched off; an edit then lives as long as the page.
function recall(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

function remember(key, value) {
  try {
    if (value === undefined) localStorage.removeItem(key);
    else localStorage.setItem(key, JSON.stringify(value));
  } catch {
    // see above
  }
}

// Return nodes for an output: HTML and tables as the page shows them, everything else as text.
function rendered(output, kind) {
  if (kind === "html") return [...cleaned(output)];
  if (kind !== "markdown") return [element("pre", {}, output)];
  const shown = [];
  for (const part of output.trim().split(/\n\s*\n/)) {
    const lines = part.split("\n");
    if (lines.length > 1 && lines[0].startsWith("|") && /^\|[\s:|-]+\|$/.test(lines[1])) shown.push(tableOf(lines));
    else shown.push(element("p", {}, ...inline(part)));
  }
  return shown;
}

function tableOf([head, _, ...rows]) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((text) => text.trim().replaceAll("\\|", "|"));
  const row = (line, name) => element("tr", {}, ...cells(line).map((text) => element(name, {}, ...inline(text))));
  const table = element("table", {}, element("thead", {}, row(head, "th")), element("tbody", {}, ...rows.map((line) => row(line, "td"))));
  return element("div", { class: "md-typeset__table" }, table);
}

function inline(text) {
  return text.split(/(`[^`]+`)/).map((part) => (/^`.+`$/.test(part) ? element("code", {}, part.slice(1, -1)) : part));
}

// What a block printed as HTML, without anything that runs, and with ids of its own.
function cleaned(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const prefix = `lab-${++count}-`;
  for (const one of parsed.querySelectorAll("*")) {
    if (/^(script|iframe|object|embed|link|meta|base|form)$/i.test(one.localName)) one.remove();
    for (const { name, value } of [...one.attributes]) {
      if (/^on/i.test(name) || /^\s*javascript:/i.test(value)) one.removeAttribute(name);
      else if (["id", "aria-labelledby", "aria-describedby", "for"].includes(name)) one.setAttribute(name, prefix + value);
    }
  }
  return parsed.body.childNodes;
}
