// Reads {"root": folder, "texts": [diagram, ...]} from standard input and writes one answer per diagram to standard
// output: null where Mermaid's own parser accepts it, else {"line": n or 0, "message": text}. The build that the
// reader's browser loads does the parsing. jsdom stands in for the browser: without it some diagram types cannot be
// read at all.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

console.log = console.info = console.debug = console.error; // standard output carries the answers and nothing else

const { root, texts } = JSON.parse(readFileSync(0, "utf8"));
const { JSDOM } = createRequire(join(root, "package.json"))("jsdom");
const { window } = new JSDOM("");
globalThis.window = window;
globalThis.document = window.document;
const build = join(root, "node_modules", "mermaid", "dist", "mermaid.esm.min.mjs");
const { default: mermaid } = await import(pathToFileURL(build));

// Mermaid takes front matter, directives and comments out before it parses, so its line numbers count what is left.
// These are the same cuts, made on lines that remember where they stood.
const CUTS = [
  /^([^\S\n\r]*)-{3}\s*[\n\r](.*?)[\n\r]\1-{3}\s*[\n\r]+/s,
  /%{2}{\s*(?:(\w+)\s*:|(\w+))\s*(?:(\w+)|((?:(?!}%{2}).|\r?\n)*))?\s*(?:}%{2})?/gi,
  /^\s*%%(?!{)[^\n]+\n?/gm,
  /^\s+/,
];

function originalLine(text, parsedLine) {
  let rest = text;
  let lines = [];
  let line = 1;
  for (const unit of text.split("")) {
    lines.push(line);
    if (unit === "\n") line += 1;
  }
  const last = lines[text.trimEnd().length - 1] ?? 1;
  for (const cut of CUTS) {
    const kept = [];
    let from = 0;
    rest = rest.replace(cut, (match, ...groups) => {
      const at = groups.find((group) => typeof group === "number");
      kept.push(...lines.slice(from, at));
      from = at + match.length;
      return "";
    });
    lines = kept.concat(lines.slice(from));
  }
  let seen = 1;
  for (let at = 0; at < rest.length; at += 1) {
    if (seen === parsedLine) return Math.min(lines[at], last);
    if (rest[at] === "\n") seen += 1;
  }
  return last; // some grammars report the end of the text one line too far
}

function lineOf(text, error) {
  // A YAML error of the front matter counts from the line after its opening dashes, from 0.
  if (typeof error.mark?.line === "number") return error.mark.line + 2;
  const said = /\bon line (\d+)/.exec(error.message);
  if (!said) return 0;
  // Where the grammar knows the place of the offending token, that place is better than the line it had read to.
  const token = error.message.startsWith("Parse error") ? error.hash?.loc?.first_line : undefined;
  return originalLine(text, token ?? Number(said[1]));
}

const answers = [];
for (const given of texts) {
  const text = given.replace(/\r\n?/g, "\n");
  try {
    await mermaid.parse(text);
    answers.push(null);
  } catch (error) {
    answers.push({ line: lineOf(text, error), message: String(error.message ?? error) });
  }
}
process.stdout.write(JSON.stringify(answers), () => process.exit(0));
