"""The pinned npm packages of agents that come as one program for each architecture.

`python -m swe_core.bundles pin npm:NAME@VERSION` prints the pins.
"""

from __future__ import annotations

from swe_core.bundles import NpmPackage

_TRIPLES = {"x86_64": "x86_64-unknown-linux-musl", "aarch64": "aarch64-unknown-linux-musl"}


def _codex(machine: str, tag: str, sha256: str, tree: str) -> NpmPackage:
    """Return a package without the programs that `codex exec` does not start, a quarter of it."""
    vendor = f"vendor/{_TRIPLES[machine]}"
    return NpmPackage(
        name="@openai/codex",
        version=f"0.169.0-{tag}",
        sha256=sha256,
        tree=tree,
        into="codex",
        keep=("package.json", f"{vendor}/codex-package.json", f"{vendor}/bin/codex", f"{vendor}/codex-path"),
        executable=(f"{vendor}/bin/codex", f"{vendor}/codex-path/rg"),
    )


def _claude_code(tag: str, sha256: str, tree: str) -> NpmPackage:
    return NpmPackage(
        name=f"@anthropic-ai/claude-code-{tag}",
        version="2.1.331",
        sha256=sha256,
        tree=tree,
        into="claude-code",
        executable=("claude",),
    )


CODEX = {
    "x86_64": _codex(
        "x86_64",
        "linux-x64",
        "89801b4b97faba562eb80fe0a833159ac79399be674022f4b1a0ccab1d153faa",
        "064efa03c115580b5842a1df648f7189ff340886ff44df8b5226d99449442863",
    ),
    "aarch64": _codex(
        "aarch64",
        "linux-arm64",
        "c1555c8ad3913e703d736584ff15e98eaeda685bf6eaedc83ae15943badbc1ff",
        "e94182c0b5ab0fe6a4d02556925f76292cbc2459d6a23de6bb068b404424411e",
    ),
}
"""Static: it runs in any Linux image."""
CLAUDE_CODE = {
    "x86_64": _claude_code(
        "linux-x64",
        "29aadf516e6d2779ee18e728d88499e89863c82aa12ab0372e472a22e6da2a26",
        "c3a5cbcc98040bb453c9df7933d94c8de496f52b826601398e3ce0f23445510b",
    ),
    "aarch64": _claude_code(
        "linux-arm64",
        "9e8036c849972477264dc46409143f5c0746be59716221fc1a58314af0e02f4b",
        "1d324866582169793c210dd9f20731023d6271e8c27bf2b20b70d47dfa306116",
    ),
}
"""It needs an image with glibc."""
OPENCODE = {
    "x86_64": NpmPackage(
        name="opencode-linux-x64",
        version="1.18.33",
        sha256="149a676b59224b196626abda2fdbd34c8329ac326b57c4891ba3de446f3ca3c1",
        tree="91c0f59a6d147e27f773dd59c8c05646c600789a821caf29a25a9eec3efc7ab6",
        into="opencode",
        executable=("bin/opencode",),
    ),
}
"""It needs an image with glibc."""
