"""Pinned npm packages that agents need beside their own."""

from __future__ import annotations

from swe_core.bundles import NpmPackage, for_this_machine


def ripgrep(agent: str) -> NpmPackage:
    """Return the program `ripgrep/bin/rg` for an agent."""
    packages = {
        "x86_64": NpmPackage(
            name="@vscode/ripgrep-linux-x64",
            version="1.18.0",
            sha256="8cc06e25e29f9c258ee9a09eecd7707c1ea2e99d9e76151e53dbe39f8d6b4a09",
            tree="f08c35ebd3fd251403a14d03062600eac9852bb773f476d29374b70652c4b08d",
            into="ripgrep",
            keep=("bin/rg",),
            executable=("bin/rg",),
        ),
        "aarch64": NpmPackage(
            name="@vscode/ripgrep-linux-arm64",
            version="1.18.0",
            sha256="2d65504a71ea421d1c457177ebefcbe0d2d3a1f60f9709b6337f1d933553064b",
            tree="f934288cab1ee70243feaf42d5e49ad40ea2b90913309cdd9c87ef218b80a7f9",
            into="ripgrep",
            keep=("bin/rg",),
            executable=("bin/rg",),
        ),
    }
    return for_this_machine(packages, agent)


WS = NpmPackage(
    name="ws",
    version="8.23.0",
    sha256="b8bd105a274ae9ca114f8c6ce4d9dbb0c764fe5118ba633c557e1703e297c587",
    tree="7255f9ebe4f2cb30795dde8503e30367c93987e38d636bc264e0366f463e9dbc",
    into="node_modules/ws",
)
QRCODE = (
    NpmPackage(
        name="qrcode",
        version="1.5.4",
        sha256="0c7274f0c299f39c2fddf54a2e0039b785977b0173c02d0b3f65fad68923e2b0",
        tree="d0ab34664e65e2924b4a8323a12ae66fe621eace1068aabe0982cc6a6cc71026",
        into="node_modules/qrcode",
        keep=("package.json", "lib"),
    ),
    NpmPackage(
        name="dijkstrajs",
        version="1.0.3",
        sha256="07149886ab98299c227b8de61912770b24b8a17b250996a4b5727c9f8bff4c00",
        tree="d2b5b7615df694836817650d9fc458244b7eb228b975072472284ac44e1b8b39",
        into="node_modules/dijkstrajs",
        keep=("package.json", "dijkstra.js"),
    ),
    NpmPackage(
        name="pngjs",
        version="5.0.0",
        sha256="4d960bbbe078022d7a36822e2874f884c7410ead111f3603d69d70fc7af36f20",
        tree="0a7a30fc6aa6d527f00aa80a30024d1280d9982ce92f6068f2dde9876b2b625f",
        into="node_modules/pngjs",
        keep=("package.json", "lib"),
    ),
)
