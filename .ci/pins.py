"""Pins: write every dependency, direct and transitive, exactly into pyproject.toml and, with hashes, requirements.txt.

`python .ci/pins.py` keeps the pins and adds what is missing; `--upgrade` resolves all afresh. It needs uv and
the package registry. uv.lock stays out of the repository because it holds download addresses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXPORT = ["--no-header", "--no-emit-project", "--all-groups", "--all-extras", "--quiet"]


def lock(pyproject: str, folder: Path) -> dict[str, str]:
    """Resolve a pyproject.toml in a folder of its own and return name -> version of every package from the registry."""
    (folder / "pyproject.toml").write_text(pyproject)
    for package in ("sovereign_agent", "bookproof"):
        (folder / "src" / package).mkdir(parents=True, exist_ok=True)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    uv("lock", "--quiet", "--project", str(folder))
    found: dict[str, str] = {}
    for package in tomllib.loads((folder / "uv.lock").read_text())["package"]:
        if "registry" in package["source"]:
            if found.get(package["name"], package["version"]) != package["version"]:
                raise SystemExit(f"{package['name']} resolves to two versions; add a bound to pyproject.toml")
            found[package["name"]] = package["version"]
    return dict(sorted(found.items()))


def build_pins(pyproject: str, folder: Path, constraints: list[str]) -> dict[str, str]:
    """Resolve the build back end and what it needs."""
    (folder / "build.in").write_text("\n".join(tomllib.loads(pyproject)["build-system"]["requires"]))
    (folder / "build.constraints").write_text("\n".join(constraints))
    out = uv(
        "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--universal", "--python-version", "3.11.5",
        "--constraint", str(folder / "build.constraints"), str(folder / "build.in"),
    )  # fmt: skip
    return dict(sorted(re.findall(r"^([\w.-]+)==([\w.]+)", out, flags=re.MULTILINE)))


def uv(*arguments: str) -> str:
    """Run uv and return what it printed."""
    done = subprocess.run(["uv", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout


def without_pins(pyproject: str) -> str:
    """Return a pyproject.toml without its `[tool.uv]` table."""
    return re.sub(r"\n\[tool\.uv\]\n.*?(?=\n\[|\Z)", "", pyproject, flags=re.DOTALL)


def with_pins(pyproject: str, pins: dict[str, str], build: dict[str, str]) -> str:
    """Return a pyproject.toml whose `[tool.uv]` table holds these pins."""
    table = "\n[tool.uv]\n# Written by `python .ci/pins.py`; a test locks afresh and compares.\n"
    for name, versions in (("constraint-dependencies", pins), ("build-constraint-dependencies", build)):
        table += f"{name} = [\n" + "".join(f'    "{k}=={v}",\n' for k, v in versions.items()) + "]\n"
    return without_pins(pyproject).rstrip("\n") + "\n" + table


def resolved(*, upgrade: bool) -> tuple[str, str]:
    """Return the texts that pyproject.toml and requirements.txt should have."""
    text = (ROOT / "pyproject.toml").read_text()
    start = without_pins(text) if upgrade else text
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pins = lock(start, folder)
        kept = (
            []
            if upgrade
            else tomllib.loads(text).get("tool", {}).get("uv", {}).get("build-constraint-dependencies", [])
        )
        build = build_pins(start, folder, kept or [f"{k}=={v}" for k, v in pins.items()])
        pinned = with_pins(text, pins, build)
        lock(pinned, folder)
        requirements = uv("export", *EXPORT, "--project", str(folder))
    return pinned, requirements


if __name__ == "__main__":
    pyproject, requirements = resolved(upgrade="--upgrade" in sys.argv)
    (ROOT / "pyproject.toml").write_text(pyproject)
    (ROOT / "requirements.txt").write_text(requirements)
