"""What a dynamic program needs to run anywhere: its loader and its shared libraries, from this host."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

_PT_INTERP = 3
_LIBRARY = re.compile(r"^\s*(\S+) => (/.+) \(0x[0-9a-f]+\)$", re.M)
_MISSING = re.compile(r"^\s*(\S+) => not found", re.M)


class Missing(ValueError):
    """A shared library is missing on this host."""


def loader_of(program: Path) -> Path:
    """Return the loader that a 64-bit ELF program names.

    Raises:
        ValueError: It names none: it is static, or no program of this kind.
        OSError: It cannot be read.
    """
    with program.open("rb") as file:
        head = file.read(64)
        if head[:6] == b"\x7fELF\x02\x01":
            table, size, count = struct.unpack_from("<Q14xHH", head, 32)
            for index in range(count):
                file.seek(table + index * size)
                kind, offset, length = struct.unpack("<I4xQ16xQ", file.read(40))
                if kind == _PT_INTERP:
                    file.seek(offset)
                    return Path(file.read(length).rstrip(b"\0").decode())
    raise ValueError(f"{str(program)!r} is no dynamic program for a 64-bit Linux")


def libraries_of(loader: Path, program: Path, *options: str) -> Mapping[str, Path]:
    """Return the shared libraries that a program or library needs, by the names that it asks for.

    Args:
        loader: Its loader.
        program: A dynamic program or a library.
        options: Options for the loader.

    Raises:
        Missing: This host lacks one.
        ValueError: The loader does not list them.
    """
    try:
        done = subprocess.run(
            [loader, *options, "--list", program],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        raise ValueError(f"{str(loader)!r} does not list the libraries of {str(program)!r}") from None
    if (missing := _MISSING.search(done.stdout)) is not None:
        raise Missing(f"{str(program)!r} needs the library {missing[1]!r}, which this host lacks")
    return {name: Path(path).resolve() for name, path in _LIBRARY.findall(done.stdout)}


def launcher(program: str, loader: str, *arguments: str, argv0: bool = False) -> bytes:
    """Return a script for `bin/` that runs a program with the loader and the libraries beside it.

    Neither the program nor its children find anything of this in their environment.

    Args:
        program: Path of the program, seen from the bundle.
        loader: Name of the loader, which lies beside the program.
        arguments: Its first arguments; `$runtime` is the program's folder.
        argv0: Whether the program sees the script as its own name.
    """
    folder, _, name = program.rpartition("/")
    name0 = '--argv0 "$self" ' if argv0 else ""
    first = "".join(f' "{argument}"' for argument in arguments)
    return (
        "#!/bin/sh\n"
        "# Runs with the bundle's own loader and libraries, so that the image needs none.\n"
        "self=$0\n"
        '[ -L "$self" ] && self=$(readlink -f "$self")\n'
        "case $self in /*) ;; *) self=$PWD/$self ;; esac\n"
        f"runtime=${{self%/*}}/../{folder}\n"
        f'exec "$runtime/{loader}" --library-path "$runtime" {name0}"$runtime/{name}"{first} "$@"\n'
    ).encode()
