"""Each kind of planted fault is red, at its line, and leaves no site behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import TinySite

pytestmark = pytest.mark.site

# name: (page, line that is to be named, a part of the message). Pages begin at line 1.
FAULTS = {
    "raises": ('```python exec="on"\nx = 1\nraise ValueError("empty")\n```', 3, "failed: ValueError: empty"),
    "raises in the package": ('```python exec="on"\n\nimport pack\npack.fail()\n```', 4, "failed: KeyError: 'deep'"),
    "raises in a thread": (
        '```python exec="on"\nimport threading\ndef f():\n    1 / 0\nthreading.Thread(target=f).start()\n```',
        4,
        "failed in a thread: ZeroDivisionError",
    ),
    "does not compile": ('```python exec="on"\nx = 1\ndef f(:\n```', 3, "SyntaxError"),
    "calls sys.exit(0)": ('```python exec="on"\nimport sys\nsys.exit(0)\n```', 3, "called sys.exit"),
    "argparse exits": (
        '```python exec="on"\nimport argparse\nargparse.ArgumentParser().parse_args(["-h"])\n```',
        3,
        "called sys.exit",
    ),
    "calls os._exit": (
        '```python exec="on"\nimport os\nos._exit(0)\n```',
        1,
        "ended its own process with the exit code 0",
    ),
    "kills itself": (
        '```python exec="on"\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n```',
        1,
        "ended its own process with signal SIGKILL",
    ),
    "hangs": ('```python exec="on" timeout="0.3"\nwhile True: pass\n```', 1, "was stopped after 0.3 s (timeout)"),
    "hangs in a thread": (
        '```python exec="on" timeout="0.3"\nfrom threading import *\nThread(target=Event().wait).start()\n```',
        1,
        "was stopped after 0.3 s (timeout)",
    ),
    "shell hangs": ('```bash exec="on" timeout="0.3"\nsleep 60\n```', 1, "was stopped after 0.3 s (timeout)"),
    "shell fails in the middle": ('```bash exec="on"\ntrue\nfalse\necho done\n```', 3, "ended with exit code 1"),
    "shell fails inside a pipe": ('```bash exec="on"\nfalse | cat\n```', 2, "ended with exit code 1"),
    "shell uses an unset variable": ('```bash exec="on"\necho $NOWHERE\n```', 1, "unbound variable"),
    "console fails in the middle": ('```console exec="on"\n$ true\n$ false\n$ true\n```', 3, "ended with exit code 1"),
    "console with written output": ('```console exec="on"\n$ echo a\na\n```', 1, "output is computed"),
    "expected exception does not come": ('```python exec="on" raises="ValueError"\npass\n```', 1, "raised nothing"),
    "another exception comes": (
        '```python exec="on" raises="ValueError"\nint\n{}[1]\n```',
        3,
        "but raised KeyError: 1",
    ),
    "expected exit code does not come": ('```bash exec="on" returncode="3"\ntrue\n```', 1, "but ended with 0"),
    "another exit code comes": ('```bash exec="on" returncode="3"\nexit 4\n```', 1, "but ended with 4"),
    "neither on nor off": ("```python\npass\n```", 1, 'say whether this block runs: exec="on"'),
    "off without a reason": ('```bash exec="off"\nrm -rf x\n```', 1, "says why it is not run"),
    "misspelt option": (
        '```python exec="on" sesion="a"\npass\n```',
        1,
        "unknown option sesion (did you mean session?)",
    ),
    "misspelt exec": ('```python exce="on"\npass\n```', 1, "unknown option exce (did you mean exec?)"),
    "unquoted option": ("```python exec=on\npass\n```", 1, 'not quoted: write exec="on"'),
    "option without a value": ('```python exec="on" id\npass\n```', 1, "option id has no value"),
    "option twice": ('```python exec="on" id="a" id="b"\npass\n```', 1, "option id stands twice"),
    "option of another language": ('```bash exec="on" raises="X"\ntrue\n```', 1, "belongs to python"),
    "lab of another language": ('```bash exec="on" lab\ntrue\n```', 1, "unknown option lab (it belongs to python)"),
    "lab without a name": ('```python exec="on" lab\npass\n```', 1, "a lab is found by its name"),
    "lab without source": ('```python exec="on" id="a" lab source="none"\nprint(1)\n```', 1, "a lab shows its source"),
    "unknown lab": ('```python exec="on" id="a" lab="game"\nprint(1)\n```', 1, "lab is one of run, knobs, crash"),
    "knobs without a knob": ('```python exec="on" id="a" lab="knobs"\nx = 1\n```', 1, "no knob was found"),
    "knob out of its range": (
        '```python exec="on" id="a" lab="knobs"\nx = 7  # 1 to 5 by 1\n```',
        1,
        "knob x stands at 7, which its range does not reach",
    ),
    "question without a lab": (
        '```python exec="on" predict="What?"\nprint(1)\n```',
        1,
        "predict is the question of a lab",
    ),
    "crash with a session": (
        '```python exec="on" id="a" lab="crash" session="s"\nprint(1)\n```',
        1,
        "a block that is killed has a process of its own",
    ),
    "braces": ('```{.python exec="on"}\npass\n```', 1, "without braces"),
    "unknown source": ('```python exec="on" source="bogus"\npass\n```', 1, "source is one of"),
    "unknown result": ('```python exec="on" result="bogus"\npass\n```', 1, "result is one of"),
    "returncode is no number": ('```bash exec="on" returncode="abc"\ntrue\n```', 1, "returncode is a whole number"),
    "timeout is no number": ('```bash exec="on" timeout="soon"\ntrue\n```', 1, "timeout is a number"),
    "unknown host fact": ('```bash exec="on" host="moon"\ntrue\n```', 1, "unknown host fact 'moon'"),
    "unknown rule": ('```bash exec="on" normalise="all"\ntrue\n```', 1, "unknown normalisation rule 'all'"),
    "other name of the language": ('```py exec="on"\npass\n```', 1, "py is not run: write python"),
    "misspelt language": ('```pyhton exec="on"\npass\n```', 1, "pyhton is no language that is run"),
    "same id twice": ('```bash exec="on" id="a"\ntrue\n```\n\n```bash exec="on" id="a"\ntrue\n```', 5, "has the id a"),
    "never closed": ('```python exec="on"\npass\n', 1, "the fence is never closed"),
    "stray fences before it": (
        '    ~~~python exec="on"\n    ~~~\n    ~~~\n\n```bash exec="on"\n```\n```\n\n```bash exec="on"\ntrue\n```\n```',
        3,
        "disagree about where its fences end",
    ),
    "closed by a longer fence": ('```python exec="on"\npass\n````\n\ntext', 1, "would not have run"),
    "not indented enough": ('!!! note\n\n    ```python exec="on"\n  pass\n    ```', 3, "would not have run"),
    "on the line of a list marker": ('- ```python exec="on"\n  pass\n  ```', 1, "cannot begin on the line of a list"),
    "in a comment": ('<!--\n\n```python exec="on"\npass\n```\n\n-->', 3, "does not show it"),
    "in an indented code block": ('text\n\n    ```python exec="on"\n    pass\n    ```', 3, "does not show it"),
    "empty block": ('```python exec="on"\n```', 1, "the block is empty"),
    "unquoted snippet": ("text\n\n--8<-- src/pack.py", 3, "would be printed, not followed"),
    "missing snippet": ('text\n\n--8<-- "absent.py"', 3, "'absent.py' could not be found"),
    "missing section of a snippet": ('text\n\n--8<-- "src/pack.py:part"', 3, "'part' could not be located"),
    "writes to standard error beside Markdown": (
        '```python exec="on" result="markdown"\nimport sys\nprint("x", file=sys.stderr)\n```',
        1,
        "wrote to standard error",
    ),
    "prints a fence that asks to be run": (
        '```python exec="on" result="markdown"\nprint(\'```python exec="on"\\npass\\n```\')\n```',
        1,
        "printed a fence that asks to be run",
    ),
    "unknown directive": ("text\n\n<!-- bookproof: production-mop -->", 3, "unknown directive 'production-mop'"),
    "mutation directive without a name": ("<!-- bookproof: mutation -->", 1, "names one mutation"),
    "unknown option of a diagram": ('```mermaid title="x"\ngraph LR\n```', 1, "unknown option title"),
    "session of another page": ('```python exec="on" session="s"\nprint(theirs)\n```', 2, "NameError"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_red_at_its_line(site: TinySite, name: str) -> None:
    page, line, message = FAULTS[name]
    site.write("src/pack.py", "def fail() -> None:\n    {}['deep']\n")
    site.write("docs/index.md", page.replace("\\\n", "\n") + "\n")
    if "session" in name:
        site.write("docs/a.md", '```python exec="on" session="s"\ntheirs = 1\n```\n')
    built = site.build("-q")
    assert built.returncode == 1, built.log
    told = [text for text in built.log.split("\ndocs/") if text.startswith(f"index.md:{line}: ")]
    assert any(message in text for text in told), built.log
    assert not list(built.site.rglob("*.*"))
