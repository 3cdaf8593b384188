"""Isolation: four questions answered separately, and a fifth only by proof.

A policy decides which paths, hosts, credentials and tools are allowed; what it does not list it refuses. These are
checks inside this process: they bind code that asks. They do not contain code that does not ask, so the status of the
process plane stays `UNAVAILABLE` until a probe says otherwise. `authorize_path` alone is advisory, because a link may
be swapped in between check and use; `open_path` makes both one step. Neither sees hard links or bind mounts.
"""

from __future__ import annotations

import errno
import hashlib
import ipaddress
import json
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import IO, Any

from .clock import as_utc, system_clock, to_text
from .errors import Category, Refusal, shorten, shown
from .text import canonical_name, is_plain_name

BASE_ENVIRONMENT = {
    "HOME": "/nonexistent",  # Debian's home of `nobody`: no dot file that another user planted is ever read
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "TMPDIR": "/tmp",  # noqa: S108 - the name of the convention, not a file of ours
    "TZ": "UTC",
}
"""What every child gets besides its credentials: fixed values, none of them taken from this process."""

PROBE_MAX_AGE_SECONDS = 3600
"""A `ProbeReport` older than this, in seconds, proves nothing any more."""


class Plane(StrEnum):
    """What is isolated, in the order in which `explain` answers."""

    PROCESS = "process"
    FILESYSTEM = "filesystem"
    NETWORK = "network"
    CREDENTIALS = "credentials"
    TOOLS = "tools"


class Verdict(StrEnum):
    """Whether a plane's rule holds."""

    ENFORCED = "ENFORCED"
    UNAVAILABLE = "UNAVAILABLE"


class Enforcement(StrEnum):
    """Who makes a plane's rule hold."""

    NOBODY = "nobody"
    CALLERS_WORD = "caller's word"
    IN_PROCESS = "in process"
    KERNEL = "kernel"


class Act(StrEnum):
    """The negative experiments: what a sandboxed child tries, and must not be able to do."""

    READ_FILE = "read a file outside the roots"
    CONNECT = "connect to a listener of the parent"
    READ_SECRET = "read a secret of the parent's environment"  # noqa: S105 - the name of an experiment
    SIGNAL = "signal the parent"


@dataclass(frozen=True, slots=True)
class PlaneStatus:
    """What holds on one plane, and what the verdict does not claim."""

    plane: Plane
    verdict: Verdict
    enforcement: Enforcement
    detail: str
    """One line. The four policy planes begin with `deny all`, `allow some` or `unbounded`."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One act, tried twice: outside the sandbox, where it must succeed, and inside, where it must not."""

    act: Act
    control: bool
    """The act succeeded outside; without that, a refusal inside says nothing."""
    refused: bool
    """The child inside tried, reported its failure, and the parent saw no effect."""
    detail: str
    """What the child met inside, such as the operating system's error."""

    @property
    def passed(self) -> bool:
        """Tell whether the experiment shows what it should."""
        return self.control is True and self.refused is True


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """What the negative experiments met, under which sandbox and kernel, and when."""

    sandbox: str
    kernel: str
    at: datetime
    """Aware instant at which the experiments began."""
    experiments: tuple[Experiment, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", as_utc("at", self.at))

    @property
    def passed(self) -> bool:
        """Tell whether every act of `Act` was tried exactly once, and each attempt passed."""
        acts = [experiment.act for experiment in self.experiments]
        return sorted(acts) == sorted(Act) and all(experiment.passed for experiment in self.experiments)


@dataclass(frozen=True, slots=True)
class PinnedRoot:
    """A directory as it was when the policy was made."""

    path: Path
    """Absolute, free of links."""
    device: int = field(repr=False)
    """Left out of the text, like the inode: they are facts of a machine, and texts are compared between machines."""
    inode: int = field(repr=False)

    def is_same(self, status: os.stat_result) -> bool:
        """Tell whether a status describes the directory that was pinned."""
        return stat.S_ISDIR(status.st_mode) and (status.st_dev, status.st_ino) == (self.device, self.inode)

    def is_in_place(self) -> bool:
        """Tell whether the directory that was pinned still stands at its path."""
        try:
            return self.is_same(os.lstat(self.path))
        except OSError:
            return False


@dataclass(frozen=True, slots=True)
class Host:
    """A host in its normal form; `str()` gives that form back."""

    name: str
    """Lower-case A-labels without final dot, dotted IPv4, or IPv6 as RFC 5952 writes it."""
    port: int | None = None
    """None in a policy: every port; None in a question: no particular port, so only such an entry covers it."""
    wildcard: bool = False
    """The entry covers every name below `name`, not `name` itself."""

    def __str__(self) -> str:
        name = f"*.{self.name}" if self.wildcard else self.name
        if self.port is None:
            return name
        return f"[{name}]:{self.port}" if ":" in name else f"{name}:{self.port}"

    def covers(self, asked: Host) -> bool:
        """Tell whether this entry of a policy allows what is asked."""
        if self.port is not None and self.port != asked.port:
            return False
        # No address ends in a name (`parse_host` sees to that), so a wildcard never covers an address.
        return asked.name.endswith(f".{self.name}") if self.wildcard else asked.name == self.name


@dataclass(frozen=True, slots=True, init=False)
class IsolationPolicy:
    """What an agent may touch. A policy without arguments allows nothing.

    Parameters:
        filesystem_roots: Existing directories, pinned now: absolute path, device and inode. A relative one is taken
            from the current directory of this moment.
        network_hosts: `host`, `host:port`, an address, or `*.example.com` (every subdomain, not the apex).
        credential_names: Names of environment variables; never their values.
        allowed_tools: Names of tools, compared in one canonical form (`text.canonical_name`).
        denied_tools: Names that stay denied, whatever is allowed.

    Raises:
        TypeError: A string stands where a set belongs, or a member is no text.
        ValueError: A member is empty or malformed.
        Refusal: `category="filesystem"` when a root is missing or no directory.
    """

    roots: tuple[PinnedRoot, ...]
    hosts: tuple[Host, ...]
    credential_names: frozenset[str]
    allowed_tools: frozenset[str]
    denied_tools: frozenset[str]

    def __init__(
        self,
        *,
        filesystem_roots: Iterable[str | Path] = (),
        network_hosts: Iterable[str] = (),
        credential_names: Iterable[str] = (),
        allowed_tools: Iterable[str] = (),
        denied_tools: Iterable[str] = (),
    ) -> None:
        roots = {_pin(root) for root in _members("filesystem_roots", filesystem_roots)}
        hosts = {_entry(host) for host in _members("network_hosts", network_hosts)}
        values = {
            "roots": tuple(sorted(roots, key=lambda root: root.path)),
            "hosts": tuple(sorted(hosts, key=str)),
            "credential_names": frozenset(_variable(name) for name in _members("credential_names", credential_names)),
            "allowed_tools": frozenset(_tool("allowed_tools", n) for n in _members("allowed_tools", allowed_tools)),
            "denied_tools": frozenset(_tool("denied_tools", n) for n in _members("denied_tools", denied_tools)),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def filesystem_roots(self) -> tuple[Path, ...]:
        """The absolute paths of the roots, sorted."""
        return tuple(root.path for root in self.roots)

    @property
    def network_hosts(self) -> tuple[str, ...]:
        """The normal forms of the hosts, sorted."""
        return tuple(str(host) for host in self.hosts)

    def authorize_path(self, path: str | Path) -> Path:
        """Resolve every link of a path, then check that what it names lies inside a root.

        The answer is advisory: a link may be swapped in before the path is used. `open_path` has no such gap.

        Parameters:
            path: Any path; a relative one starts at the current directory. What it names need not exist yet.

        Returns:
            The absolute path without links.

        Raises:
            Refusal: `category="filesystem"` for every other path: outside, empty, with NUL, in a loop, unreadable.
            TypeError: `path` is neither text nor a path.
        """
        return self._locate(path)[1]

    def open_path(self, path: str | Path, mode: str = "rb") -> IO[Any]:
        """Open a regular file beneath a root, following no link once the path has been resolved.

        Links that stay inside a root work, because they are resolved first; one that is swapped in afterwards is
        refused by the kernel. A file that this call creates gets mode 0666 less the umask.

        Parameters:
            path: As for `authorize_path`.
            mode: As for `open`: one of `r`, `w`, `a`, `x`, with `+`, and `b` or `t`. Text is UTF-8.

        Raises:
            Refusal: `category="filesystem"` where the path is not allowed, or the operating system refuses to open it.
            TypeError: `path` is neither text nor a path, or `mode` is no text.
            ValueError: `mode` is not one of those.
        """
        if not isinstance(mode, str):
            raise TypeError(f"mode must be text, not {type(mode).__name__}: {shown(mode)}")
        if not re.fullmatch(r"[rwax](\+?[bt]?|[bt]\+)", mode):
            raise ValueError(f"mode must be r, w, a or x, with + and b or t as for open: {shown(mode)}")
        root, target = self._locate(path)
        relative = str(target.relative_to(root.path))

        def opener(_path: str, flags: int) -> int:
            return _open_beneath(root, relative, flags)

        try:
            return open(target, mode, encoding=None if "b" in mode else "utf-8", opener=opener)
        except OSError as error:
            raise _unusable(path, error) from error

    def authorize_network(self, host: str) -> str:
        """Return a host in normal form if an entry covers it. No name is looked up and no connection is made.

        Parameters:
            host: `host` or `host:port`; an IPv6 address with a port stands in brackets.

        Returns:
            The normal form of what was asked, with its port if it had one: what the caller should connect to.

        Raises:
            Refusal: `category="network"` where no entry covers it, or it is no host.
            TypeError: `host` is no text.
        """
        if not isinstance(host, str):
            raise TypeError(f"host must be text, not {type(host).__name__}: {shown(host)}")
        try:
            asked = parse_host(host)
        except ValueError as error:
            # What stands before an @ may be a password.
            why, remedy = str(error), "ask for a host or host:port"
            raise Refusal(Category.NETWORK, host, why, remedy, secret="@" in host) from None
        if not any(entry.covers(asked) for entry in self.hosts):
            why = "no entry of the policy covers it"
            raise Refusal(Category.NETWORK, host, why, "add it to network_hosts or ask for a listed host")
        return str(asked)

    def authorize_credential(self, name: str) -> str:
        """Return the name of a credential if it is listed, letter for letter.

        Raises:
            Refusal: `category="credentials"`; the name is shortened, since it may be a pasted secret.
            TypeError: `name` is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be text, not {type(name).__name__}")
        if name not in self.credential_names:
            why, remedy = "the policy does not list it", "add its name to credential_names"
            raise Refusal(Category.CREDENTIALS, name, why, remedy, secret=True)
        return name

    def environment(self) -> dict[str, str]:
        """Return the whole environment of a child: `BASE_ENVIRONMENT` and the allowed credentials that are set.

        Nothing else is inherited. A listed name wins over the base, so that `PATH` can be passed on by listing it.
        """
        return BASE_ENVIRONMENT | {name: os.environ[name] for name in self.credential_names if name in os.environ}

    def authorize_tool(self, name: str) -> str:
        """Return a tool's name in canonical form if it is allowed and not denied.

        Raises:
            Refusal: `category="tools"`.
            TypeError: `name` is no text.
        """
        if not isinstance(name, str):
            raise TypeError(f"name must be text, not {type(name).__name__}: {shown(name)}")
        canonical = canonical_name(name)
        if canonical in self.denied_tools:
            raise Refusal(Category.TOOLS, name, "the policy denies it", "remove it from denied_tools")
        # A name with an invisible character is no spelling of a listed one, and the message quotes it as such.
        if canonical not in self.allowed_tools or not is_plain_name(name):
            raise Refusal(Category.TOOLS, name, "the policy does not allow it", "add it to allowed_tools")
        return canonical

    def digest(self) -> str:
        """Return the SHA-256, in hexadecimal, of the policy in canonical form.

        Equal policies have equal digests. Devices and inodes are left out, since a restart may renumber them.
        """
        fields = {
            "filesystem_roots": [str(path) for path in self.filesystem_roots],
            "network_hosts": list(self.network_hosts),
            "credential_names": sorted(self.credential_names),
            "allowed_tools": sorted(self.allowed_tools),
            "denied_tools": sorted(self.denied_tools),
        }
        return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def explain(
        self, process_probe: Callable[[], object] | ProbeReport | None = None, *, now: datetime | None = None
    ) -> tuple[PlaneStatus, ...]:
        """Say for each plane what holds, who makes it hold, and what that does not claim.

        Never raises an `Exception`, and never takes a doubtful answer for a proof.

        Parameters:
            process_probe: A report of `sandbox.prove`, or a function that returns one, or that returns `True` itself.
            now: Aware instant at which a report's age is judged; the system's clock when omitted.

        Returns:
            One status for each `Plane`, in its order.
        """
        unbounded = any(root.path == Path("/") for root in self.roots)
        return (
            _process_status(process_probe, now),
            _checked(
                Plane.FILESYSTEM,
                "unbounded: '/' is a root, so every path is inside" if unbounded else _extent(self.roots, "root"),
                "authorize_path alone is advisory; open_path follows no link once resolved (openat2, else an O_NOFOLLOW"
                " walk); neither sees hard links or bind mounts",
            ),
            _checked(
                Plane.NETWORK,
                _extent(self.hosts, "host"),
                "an allowlist for code that asks, not an OS egress firewall; addresses behind a name are not checked",
            ),
            _checked(
                Plane.CREDENTIALS,
                _extent(self.credential_names, "name"),
                "environment() hands on no other variable; code in this process can still read its own environment",
            ),
            _checked(
                Plane.TOOLS,
                _extent(self.allowed_tools - self.denied_tools, "tool"),
                "deny wins; names are compared folded, so look-alikes of another alphabet are other names",
            ),
        )

    def _locate(self, path: str | Path) -> tuple[PinnedRoot, Path]:
        text = _path_text("path", path)
        try:
            target = resolve(text)
        except (OSError, ValueError) as error:
            raise _unusable(text, error) from error
        why = "what it resolves to lies outside every root"
        for root in self.roots:
            if target.is_relative_to(root.path):
                if root.is_in_place():
                    return root, target
                why = "its root was replaced after the policy was made"
        raise Refusal(Category.FILESYSTEM, text, why, "use a path inside a root, or make a policy with another root")


def resolve(path: str) -> Path:
    """Follow every link of a path, in the kernel's order, and return what it names: absolute, without links.

    A name that does not exist yet stays as it is. Unlike `os.path.realpath`, a component that cannot be examined is
    an error, never taken for a plain name, and so is a loop, in every version of Python.

    Raises:
        OSError: A component cannot be examined, or more than 40 links follow each other, as path_resolution(7) has it.
        ValueError: The path is empty, or no text that the file system can hold.
    """
    if not path:
        raise ValueError("it is empty")
    if "\0" in path:
        raise ValueError("it contains a NUL character")
    pending = _pieces(path if path.startswith("/") else f"{os.getcwd()}/{path}")  # noqa: PTH109 - text, not a Path
    resolved = "/"
    links = 0
    while pending:
        name = pending.pop()
        if name == "..":
            resolved = os.path.dirname(resolved)  # noqa: PTH120 - text, not a Path
            continue
        candidate = f"{resolved.rstrip('/')}/{name}"
        try:
            is_link = stat.S_ISLNK(os.lstat(candidate).st_mode)
        except FileNotFoundError:
            is_link = False
        if is_link:
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, "more than 40 links follow each other", path)
            target = os.readlink(candidate)  # noqa: PTH115 - text, not a Path
            resolved = "/" if target.startswith("/") else resolved
            pending.extend(_pieces(target))
        else:
            resolved = candidate
    return Path(resolved)


def parse_host(text: str, *, wildcard: bool = False) -> Host:
    """Parse a host, with or without port, into its normal form; pure.

    Parameters:
        text: `host`, `host:port`, an IPv4 address, or an IPv6 address (in brackets where a port follows).
        wildcard: Accept `*.` in front of a name, as an entry of a policy may have it.

    Raises:
        ValueError: The text is no host; the message is the reason.
    """
    if not text.strip():
        raise ValueError("it is blank")
    for characters, reason in _NOT_A_HOST.items():
        if any(character in text for character in characters):
            raise ValueError(reason)
    if text.startswith("["):
        address, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("its brackets do not hold one address")
        return Host(_ipv6(address), _port(rest[1:]) if rest else None)
    if text.count(":") > 1:
        return Host(_ipv6(text))
    name, colon, port = text.partition(":")
    below = wildcard and name.startswith("*.")
    host = Host(_name(name[2:] if below else name), _port(port) if colon else None, wildcard=below)
    if below and _is_ipv4(host.name):
        raise ValueError("a wildcard covers names, not addresses")
    return host


# --- paths ------------------------------------------------------------------------------------------------------------

_MAX_LINKS = 40
_FILE_MODE = 0o666
_SYS_OPENAT2 = 437  # the same number on every architecture of Linux but Alpha, where the call fails and the walk serves
_RESOLVE = 0x02 | 0x04 | 0x08  # RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH: openat2(2)
_RETRIES = 100


def _pieces(path: str) -> list[str]:
    """Return the components of a path, last first, so that the next one can be popped."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _path_text(name: str, path: object) -> str:
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{name} must be text or a path, not {type(path).__name__}: {shown(path)}")
    return text


def _unusable(path: str | Path, error: OSError | ValueError) -> Refusal:
    if isinstance(error, UnicodeError):
        why = "no file can have such a name"
    else:
        why = (isinstance(error, OSError) and error.strerror) or str(error)
    return Refusal(Category.FILESYSTEM, path, why[:1].lower() + why[1:], "use a usable path inside a root")


def _pin(root: str | Path) -> PinnedRoot:
    text = _path_text("filesystem_roots", root)
    if not text.strip() or "\0" in text:
        raise ValueError(f"filesystem_roots must hold no empty path and no NUL character: {shown(text)}")
    try:
        path = resolve(text)
        status = path.lstat()
    except (OSError, ValueError) as error:
        raise _unusable(text, error) from error
    if not stat.S_ISDIR(status.st_mode):
        raise Refusal(Category.FILESYSTEM, text, "a root must be a directory", "name the directory that holds it")
    return PinnedRoot(path, status.st_dev, status.st_ino)


def _open_beneath(root: PinnedRoot, relative: str, flags: int) -> int:
    """Open a resolved path beneath the directory that was pinned; only a regular file, and never through a link."""
    # A FIFO would block for ever without O_NONBLOCK, which means nothing for a regular file.
    flags |= os.O_NONBLOCK | os.O_NOCTTY
    base = os.open(root.path, _directory_flags())
    try:
        if not root.is_same(os.fstat(base)):
            raise OSError(errno.ESTALE, "its root was replaced after the policy was made")
        descriptor = (_openat2 if _openat2_works() else _walk)(base, relative, flags)
    finally:
        os.close(base)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file")
    return descriptor


def _directory_flags() -> int:
    # O_PATH, where it exists, asks for the right to pass through a directory, not for the right to list it.
    return getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _walk(directory: int, relative: str, flags: int) -> int:
    """Open a path one component at a time, each relative to the one before, none of them a link."""
    *parents, name = relative.split("/")
    here = os.dup(directory)
    try:
        for parent in parents:
            below = os.open(parent, _directory_flags(), dir_fd=here)
            os.close(here)
            here = below
        return os.open(name, flags | os.O_NOFOLLOW, _FILE_MODE, dir_fd=here)
    finally:
        os.close(here)


def _openat2(directory: int, relative: str, flags: int) -> int:
    """Open a path in one system call, which refuses every link and every way out of the directory: openat2(2)."""
    import ctypes

    how = (ctypes.c_uint64 * 3)(flags, _FILE_MODE if flags & os.O_CREAT else 0, _RESOLVE)
    arguments = (
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(directory),
        ctypes.c_char_p(os.fsencode(relative)),
        ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )
    code = errno.EAGAIN
    for _ in range(_RETRIES):  # a signal or a concurrent rename asks for another try
        descriptor = int(_libc().syscall(*arguments))
        if descriptor >= 0:
            return descriptor
        code = ctypes.get_errno()
        if code not in (errno.EINTR, errno.EAGAIN):
            break
    raise OSError(code, os.strerror(code), relative)


@cache
def _libc() -> Any:
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    return library


@cache
def _openat2_works() -> bool:
    """Try once whether the kernel has openat2 and lets this process call it; some containers filter it."""
    if sys.platform != "linux":
        return False
    try:
        base = os.open("/", _directory_flags())
        try:
            os.close(_openat2(base, ".", _directory_flags()))
        finally:
            os.close(base)
    except (ImportError, AttributeError, OSError):
        return False
    return True


# --- hosts ------------------------------------------------------------------------------------------------------------

_NOT_A_HOST = {
    "@": "it carries user information",
    "/\\?#": "it is a URL or a path, not a host",
    "%": "it carries a percent sign; neither an escape nor an IPv6 zone is a host",
}
_MAX_NAME = 253  # characters of a name without its final dot, RFC 1035 section 2.3.4
_MAX_LABEL = 63
_MAX_PORT = 65535
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")  # a last label that some resolver reads as a number, so never as a name
_LETTERS = ("Ll", "Lo", "Lm", "Mn", "Mc", "Nd")
_UNSETTLED = re.compile(
    # What RFC 5892 disallows, or allows in some contexts only, although it is a letter, a mark or a digit.
    "[\u0640\u302e\u302f\u3031-\u3035\u303b"  # section 2.6, disallowed
    "\u0660-\u0669\u06f0-\u06f9"  # section 2.6, context: digits of two systems must not mix
    "\u1100-\u11ff"  # section 2.9, Hangul that did not compose
    "\u17b4\u17b5"  # section 2.3, ignorable
    "\u20d0-\u20ff\U0001d100-\U0001d1ff]"  # section 2.4, ignorable blocks
)


def _port(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text) or int(text) > _MAX_PORT:
        raise ValueError("its port is no number from 1 to 65535")
    return int(text)


def _ipv6(text: str) -> str:
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        raise ValueError("it is no IPv6 address") from None
    return str(address.ipv4_mapped or address)


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _name(text: str) -> str:
    """Return a name, or an IPv4 address, in normal form."""
    if text.startswith("*"):
        raise ValueError("a wildcard is no host, and stands in a policy only as *.name")
    if len(text) > _MAX_NAME + 1:  # before the labels are looked at, so that a very long text costs nothing
        raise ValueError("it is longer than 253 characters")
    labels = [_label(label) for label in text.removesuffix(".").split(".")]
    name = ".".join(labels)
    if len(name) > _MAX_NAME:
        raise ValueError("its xn-- form is longer than 253 characters")
    if _NUMBER.fullmatch(labels[-1]) and not _is_ipv4(name):
        raise ValueError("it ends in a number without being four decimal octets; short and octal forms are ambiguous")
    return name


def _label(text: str) -> str:
    if not 0 < len(text) <= _MAX_LABEL:
        raise ValueError("a part between its dots is empty or longer than 63 characters")
    label = text.lower() if text.isascii() else _a_label(text)
    if not _LABEL.fullmatch(label):
        raise ValueError("it holds something other than letters, digits, inner hyphens and underscores")
    return label


def _a_label(text: str) -> str:
    """Return the xn-- form of a label on which IDNA 2003 (RFC 3490) and IDNA 2008 (RFC 5891) agree.

    Where they differ, one spelling names two hosts, and which one depends on who resolves it.
    """
    from encodings import idna  # IDNA 2003

    label = unicodedata.normalize("NFC", text.lower())
    if label.isascii():
        return label  # the Kelvin sign is a capital k in both
    settled = all(map(_is_settled, label)) and not _UNSETTLED.search(label)
    if settled and label[2:4] != "--" and "-" not in (label[0], label[-1]) and unicodedata.category(label[0])[0] != "M":
        try:
            if idna.ToASCII(text) == (encoded := b"xn--" + label.encode("punycode")):
                return encoded.decode("ascii")
        except UnicodeError:
            pass
    raise ValueError("IDNA 2003 and IDNA 2008 do not agree on it; list and ask for its xn-- form")


def _is_settled(character: str) -> bool:
    # IDNA 2003 knows no character that is younger than Unicode 3.2, so it has no rule for it.
    known = unicodedata.ucd_3_2_0.category(character) != "Cn"
    return character == "-" or (known and unicodedata.category(character) in _LETTERS)


# --- members of a policy ----------------------------------------------------------------------------------------------


def _members(name: str, values: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(values, str | bytes | os.PathLike) or not isinstance(values, Iterable):
        shown = shorten(values, secret=name == "credential_names")
        raise TypeError(f"{name} must be a set or a sequence, not {type(values).__name__}: {shown}")
    return tuple(values)


def _entry(host: object) -> Host:
    if not isinstance(host, str):
        raise TypeError(f"network_hosts must hold text, not {type(host).__name__}: {shown(host)}")
    try:
        return parse_host(host, wildcard=True)
    except ValueError as error:
        raise ValueError(f"network_hosts cannot hold {shorten(host, secret='@' in host)}: {error}") from None


def _variable(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"credential_names must hold text, not {type(name).__name__}")
    if not is_plain_name(name) or "=" in name or " " in name:
        raise ValueError(f"credential_names must hold names of variables: {shorten(name, secret=True)}")
    return name


def _tool(argument: str, name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"{argument} must hold text, not {type(name).__name__}: {shown(name)}")
    if not is_plain_name(name):
        raise ValueError(f"{argument} must hold visible names: {shown(name)}")
    return canonical_name(name)


# --- explaining -------------------------------------------------------------------------------------------------------


def kernel_name() -> str:
    """Return the kernel that runs this process, as `Linux 6.1.0`; a report of another one proves nothing here."""
    system = os.uname()
    return f"{system.sysname} {system.release}"


def _extent(listed: Iterable[object], noun: str) -> str:
    count = len(tuple(listed))
    return f"allow some: {count} {noun}{'s' * (count != 1)}" if count else f"deny all: no {noun}"


def _checked(plane: Plane, extent: str, limit: str) -> PlaneStatus:
    return PlaneStatus(plane, Verdict.ENFORCED, Enforcement.IN_PROCESS, f"{extent}; {limit}")


def _process_status(probe: object, now: datetime | None) -> PlaneStatus:
    """Judge a probe; whatever is not exactly a proof leaves the plane unavailable, with the reason."""
    answer: object = None
    if probe is None:
        why = "no probe was given, so no operating-system sandbox is known"
    elif type(probe) is ProbeReport:
        answer, why = probe, ""
    elif not callable(probe):
        why = f"the probe is neither a report nor callable, but {_kind(probe)}"
    else:
        try:
            answer = probe()
            why = f"the probe returned {_kind(answer)}, which is neither True itself nor a report"
        except (Exception, SystemExit) as error:
            why = f"the probe raised {_kind(error)}{_message(error)}"
    scope = "this speaks of argv run through that sandbox, not of the calling process"
    if answer is True:
        detail = f"the probe returned True, and nothing recorded what it tried; {scope}"
        return PlaneStatus(Plane.PROCESS, Verdict.ENFORCED, Enforcement.CALLERS_WORD, detail)
    if type(answer) is ProbeReport:
        try:
            why = _doubt(answer, now)
            found = f"{answer.sandbox} on {answer.kernel} at {to_text(answer.at)}"
        except Exception as error:  # a report whose fields were forged is no proof, and no crash
            why = f"the report cannot be read: {_kind(error)}{_message(error)}"
        if not why:
            detail = f"{len(Act)} negative experiments were refused under {found}; {scope}"
            return PlaneStatus(Plane.PROCESS, Verdict.ENFORCED, Enforcement.KERNEL, detail)
    return PlaneStatus(Plane.PROCESS, Verdict.UNAVAILABLE, Enforcement.NOBODY, f"{why}; {scope}")


def _doubt(report: ProbeReport, now: datetime | None) -> str:
    """Return why a report proves nothing, or nothing."""
    age = (system_clock() if now is None else as_utc("now", now)) - report.at
    if not report.passed:
        failed = [str(experiment.act) for experiment in report.experiments if not experiment.passed]
        return f"the report did not pass: {', '.join(failed) or 'not every experiment was tried once'}"
    if report.kernel != kernel_name():
        return f"the report is of another kernel: {shorten(report.kernel)}"
    if not timedelta(0) <= age <= timedelta(seconds=PROBE_MAX_AGE_SECONDS):
        return f"the report is of {to_text(report.at)}, not of the last hour"
    return ""


def _kind(value: object) -> str:
    return type(value).__name__


def _message(error: BaseException) -> str:
    """Return an exception's message, shortened; one that cannot be printed must not break an explanation."""
    try:
        return f": {shorten(error)}" if str(error) else ""
    except Exception:
        return ""
