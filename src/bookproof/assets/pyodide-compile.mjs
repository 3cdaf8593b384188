// Compiles Python's library for the labs: what they load at once, so that no reader's browser has to.
//
// node pyodide-compile.mjs FOLDER_OF_PYODIDE NAMES: writes to standard output a copy of python_stdlib.zip in which every
// file that Pyodide has loaded once it has started and imported the NAMES (a JSON list) is bytecode; the others stay as
// they are. The same files and names give the same bytes.
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, names] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(resolve(folder, "pyodide.mjs")));
const env = { PYTHONHASHSEED: "0", PYTHONNODEBUGRANGES: "1" };
const python = await loadPyodide({ indexURL: join(resolve(folder), "/"), env });
python.FS.writeFile("/library.zip", readFileSync(join(folder, "python_stdlib.zip")));
python.globals.set("names", names);
python.runPython(`
import contextlib, importlib.util, json, marshal, sys, zipfile

for name in json.loads(names):
    with contextlib.suppress(ImportError):  # not every module is there in a browser
        importlib.import_module(name)
places = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
library = next(path for path in sys.path if path.endswith(".zip")) + "/"
loaded = {place.removeprefix(library) for place in places if place.startswith(library)}
with zipfile.ZipFile("/library.zip") as source, zipfile.ZipFile("/compiled.zip", "w") as target:
    for name in sorted(source.namelist()):
        data, shown = source.read(name), name
        if name in loaded:
            plain = name.partition("/")[0] in ("pyodide", "_pyodide")  # they read their own docstrings
            code = marshal.dumps(compile(data, library + name, "exec", dont_inherit=True, optimize=0 if plain else 2))
            head = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")  # by hash, and never checked: PEP 552
            data, shown = head + importlib.util.source_hash(data) + code, name + "c"
        entry = zipfile.ZipInfo(shown, (1980, 1, 1, 0, 0, 0))
        entry.external_attr, entry.create_system = 0o644 << 16, 3
        target.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)
`);
process.stdout.write(python.FS.readFile("/compiled.zip"), () => process.exit(0));
