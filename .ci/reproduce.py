"""Reproduce: the commit at HEAD builds the same bytes anywhere, on any day, and a site that was touched is found out.

`python .ci/reproduce.py --build` builds this checkout, which has to be a clean clone, on one simulated day, in a time
zone, home, temporary folder, locale and hash seed of its own. `python .ci/reproduce.py` then lets `bookproof verify`
build another clone in other circumstances and compare the two byte by byte; a site with one byte flipped and one with a
file added must be found out. It needs git, faketime and npm's packages.
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
BOOKPROOF = str(Path(sys.executable).with_name("bookproof"))


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
    """Build, or verify; end with what went wrong."""
    with tempfile.TemporaryDirectory(prefix="reproduce-") as name:
        if "--build" in sys.argv:
            build(Path(name))
        else:
            verify(Path(name))


def build(scratch: Path) -> None:
    """Build the checkout in the first circumstances."""
    # On the simulated day no certificate would be valid; afterwards, npm has kept what `verify` will ask for.
    output(
        sys.executable, "-c", "import pathlib, bookproof.diagrams as d; d.ensure_node_modules(pathlib.Path(), dev=True)"
    )
    output("faketime", HERE.day, BOOKPROOF, "build", environment=within(scratch, HERE))


def verify(scratch: Path) -> None:
    """Build another clone in the other circumstances and compare it with the site of the checkout."""
    site, commit = ROOT / "site", output("git", "rev-parse", "HEAD")
    if f'"commit": "{commit}",' not in (site / "provenance.json").read_text("utf-8"):
        sys.exit(f"the site is not one of {commit[:12]}: build it first")
    verdict(scratch, site, "verified")
    flipped = shutil.copytree(site, scratch / "flipped")
    page = flipped / "index.html"
    page.write_bytes(page.read_bytes().replace(b"a", b"b", 1))
    verdict(scratch, flipped, "altered: ", "1 file changed (index.html)")
    more = shutil.copytree(site, scratch / "more")
    (more / "extra.html").touch()
    verdict(scratch, more, "altered: ", "1 file added (extra.html)")


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


def verdict(scratch: Path, site: Path, *expected: str) -> None:
    """End if `bookproof verify`, in the other circumstances, does not say what is expected, with its exit code."""
    start = time.monotonic()
    command = ["faketime", THERE.day, BOOKPROOF, "verify", str(site), "--repo", str(ROOT)]
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
