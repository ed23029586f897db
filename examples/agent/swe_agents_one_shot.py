"""Agent: one LLM call that must answer with a diff. A baseline without tools.

swe-core run -p examples/agent/swe_agents_one_shot.py --engine-url URL --model NAME
"""

from __future__ import annotations

from swe_core import AgentContext, AgentSpec, Component, hookimpl

# Runs inside the sandbox, in the repository.
PROGRAM = """
import json, os, re, subprocess, sys, urllib.request

URL, KEY, MODEL = (os.environ.pop("ONE_SHOT_" + name) for name in ("URL", "KEY", "MODEL"))
files = subprocess.check_output(["git", "ls-files", "*.py"], text=True).split()
source = "".join(f"=== {name}\\n" + open(name).read() for name in files)
ask = "Answer with one fenced block: a unified diff for `git apply` that solves this.\\n\\n"
body = {"model": MODEL, "messages": [{"role": "user", "content": ask + sys.stdin.read() + "\\n\\n" + source}]}
headers = {"Authorization": "Bearer " + KEY, "Content-Type": "application/json"}
request = urllib.request.Request(URL + "/chat/completions", json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as reply:
    text = json.load(reply)["choices"][0]["message"]["content"] or ""
print(text)
block = re.search(r"```(?:diff)?\\n(.*?)```", text, re.S)
if block:
    subprocess.run(["git", "apply", "--recount", "-"], input=block[1], text=True)
"""


class OneShot(AgentSpec):
    name = "one_shot"

    def files(self, ctx: AgentContext) -> dict[str, bytes]:
        return {f"{ctx.home}/one_shot.py": PROGRAM.encode()}

    def command(self, ctx: AgentContext) -> list[str]:
        return ["python3", "-I", f"{ctx.home}/one_shot.py"]

    def env(self, ctx: AgentContext) -> dict[str, str]:
        return {"ONE_SHOT_URL": ctx.base_url, "ONE_SHOT_KEY": ctx.api_key, "ONE_SHOT_MODEL": ctx.model}

    def stdin(self, ctx: AgentContext) -> bytes:
        return ctx.task.problem_statement.encode()


@hookimpl
def swe_agents() -> list[Component[AgentSpec]]:
    return [Component("one_shot", lambda config: OneShot(), summary="one call, one diff")]
