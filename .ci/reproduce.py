"""Reproduce: the commit at HEAD builds the same bytes anywhere, on any day, and a site that was touched is found out.

`python .ci/reproduce.py` needs git, faketime and npm's packages. It builds two clones on two simulated days, in two
time zones, homes, temporary folders, locales and hash seeds: one by `mkdocs build`, the other by `bookproof verify`,
which compares both byte by byte. The first is compared with the site of this checkout too, if that is of the same
commit. Then a site with one byte flipped and one with a file added must be found out.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Circumstances:
    """What must not matter."""

    folder: str
    day: str
    zone: str
    locale: str
    seed: str
    temporary: str


HERE = Circumstances(
    "one", "2027-02-28 23:59:40", "Pacific/Kiritimati", "C", "1", "t"
)  # midnight passes while it builds
THERE = Circumstances(
    "an other/place", "2031-07-14 09:10:11", "America/St_Johns", "C.UTF-8", "4242", "where/temporary files/go"
)


def main() -> None:
    """Build, compare, verify; end with what went wrong."""
    commit = output("git", "rev-parse", "HEAD")
    with tempfile.TemporaryDirectory(prefix="reproduce-") as name:
        scratch = Path(name)
        one = build(scratch, commit)
        record = f'"commit": "{commit}",'
        here = ROOT / "site" / "provenance.json"
        if here.is_file() and record in here.read_text("utf-8") and '"draft": false' in here.read_text("utf-8"):
            equal("a build that remembers and one that does not", ROOT / "site", one)
        verdict(scratch, one, "verified")
        flipped = shutil.copytree(one, scratch / "flipped")
        page = flipped / "index.html"
        page.write_bytes(page.read_bytes().replace(b"a", b"b", 1))
        verdict(scratch, flipped, "altered: ", "1 file changed (index.html)")
        more = shutil.copytree(one, scratch / "more")
        (more / "extra.html").touch()
        verdict(scratch, more, "altered: ", "1 file added (extra.html)")


def build(scratch: Path, commit: str) -> Path:
    """Clone the commit, build it in the first circumstances, and return its site."""
    clone = scratch / HERE.folder / "clone"
    output("git", "clone", "--quiet", "--no-checkout", str(ROOT), str(clone))
    output("git", "-C", str(clone), "checkout", "--quiet", "--detach", commit)
    # On the simulated day no certificate would be valid; afterwards, npm has kept what `verify` will ask for.
    install = "import pathlib, bookproof.diagrams as d; d.ensure_node_modules(pathlib.Path())"
    output(sys.executable, "-c", install, cwd=clone)
    environment = within(scratch, HERE) | {"PYTHONPATH": str(clone / "src"), "SITE_COMMIT": commit}
    command = ["faketime", HERE.day, sys.executable, "-m", "mkdocs", "build", "--strict"]
    output(*command, cwd=clone, environment=environment)
    return clone / "site"


def within(scratch: Path, circumstances: Circumstances) -> dict[str, str]:
    """Return the environment of some circumstances."""
    home = scratch / circumstances.folder / "home"
    temporary = home / circumstances.temporary
    temporary.mkdir(parents=True, exist_ok=True)
    dropped = ("SOURCE_DATE_EPOCH", "SITE_URL", "GITHUB_ACTIONS", "LC_ALL", "LANGUAGE")
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    return environment | {
        "HOME": str(home),
        "LANG": circumstances.locale,
        "PYTHONHASHSEED": circumstances.seed,
        "TMPDIR": str(temporary),
        "TZ": circumstances.zone,
        "npm_config_cache": output("npm", "config", "get", "cache"),
    }


def equal(what: str, one: Path, other: Path) -> None:
    """End if two sites differ in a single byte."""
    ours, theirs = contents(one), contents(other)
    differing = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
    if differing:
        sys.exit(f"{what} differ in {len(differing)} files:\n" + "\n".join(differing[:20]))
    print(f"{what}: {len(ours)} files, byte for byte the same", flush=True)  # noqa: T201 (read in CI's log)


def contents(site: Path) -> dict[str, bytes]:
    """Return every file of a site."""
    return {path.relative_to(site).as_posix(): path.read_bytes() for path in site.rglob("*") if path.is_file()}


def verdict(scratch: Path, site: Path, *expected: str) -> None:
    """End if `bookproof verify`, in the other circumstances, does not say what is expected, with its exit code."""
    start = time.monotonic()
    bookproof = str(Path(sys.executable).with_name("bookproof"))
    command = ["faketime", THERE.day, bookproof, "verify", str(site), "--repo", str(ROOT)]
    environment = within(scratch, THERE)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    right = done.returncode == (0 if expected == ("verified",) else 1) and done.stdout.startswith(expected[0])
    if not right or not all(text in done.stdout for text in expected):
        sys.exit(f"verify said {done.stdout}{done.stderr} ({done.returncode}), not {' ... '.join(expected)}")
    print(f"verify: {done.stdout.strip()} ({time.monotonic() - start:.0f} s)", flush=True)  # noqa: T201 (likewise)


def output(*command: str, cwd: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed; end if it fails."""
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
