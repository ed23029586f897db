"""What Harbor reads in an export: for a Python that has Harbor. Takes the folder, prints JSON."""

import json
import sys
from pathlib import Path

from fastapi.testclient import TestClient
from harbor.utils.trajectory_validator import TrajectoryValidator
from harbor.viewer.server import create_app

folder = Path(sys.argv[1])
invalid = {}
for file in folder.glob("*/*/agent/trajectory.json"):
    validator = TrajectoryValidator()
    if not validator.validate(file):
        invalid[file.parts[-3]] = validator.get_errors()

with TestClient(create_app(folder)) as viewer:

    def page(path):
        answer = viewer.get(f"/api/jobs{path}")
        answer.raise_for_status()
        return answer.json()

    jobs = page("")["items"]
    (job,) = (one["name"] for one in jobs)
    trials = {one["name"]: one for one in page(f"/{job}/trials")["items"]}
    for name, trial in trials.items():
        trial |= {
            "result": page(f"/{job}/trials/{name}"),
            "trajectory": page(f"/{job}/trials/{name}/trajectory"),
            "output": page(f"/{job}/trials/{name}/verifier-output")["stdout"],
            "artifacts": [file["path"] for file in page(f"/{job}/trials/{name}/artifacts")["files"]],
        }
    found = {"job": page(f"/{job}"), "tasks": page(f"/{job}/tasks")["items"], "trials": trials}

json.dump({"jobs": jobs, "invalid": invalid, **found}, sys.stdout)
