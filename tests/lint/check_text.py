#!/usr/bin/env python3
"""Checks lengths of files and functions' files, loose ends, words and paths that no user has, and tests that CMake does not list."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
HARD_LINES = {".cc": 800, ".cu": 800, ".cuh": 600, ".h": 600, ".py": 800}
# Assembled from pieces, so that this file does not trip over itself.
LOOSE = re.compile(r"TODO\(" + r"now\)|TODO(?!\((perf|cleanup|test|later)\))|DISABLED" + r"_|GTEST_SKIP\(\)" + r";")
PLACES = re.compile(r"(?<![\w.])/(home|root|work)/\w|https?://[^ )\"']*(deb\.debian|pyp" + r"i\.org|pythonhosted)")


def listed():
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout.split("\n")
    return [n for n in out if n and (ROOT / n).is_file()]


def long_file_exceptions():
    path = ROOT / "tests/lint/long_files.txt"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line.split()[0] for line in lines if line.strip() and not line.startswith("#")}


def main():
    errors = []
    names = listed()
    exceptions = long_file_exceptions()
    cmake = "\n".join((ROOT / n).read_text() for n in names if n.endswith("CMakeLists.txt") or n.endswith(".cmake"))
    for name in names:
        suffix = pathlib.PurePosixPath(name).suffix
        if suffix not in {".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".md", ".toml", ".cmake", ".txt", ".capnp"}:
            continue
        if name.startswith(("apps/examples/data/", "tests/data/")):
            continue
        text = (ROOT / name).read_text(errors="replace")
        lines = text.splitlines()
        limit = HARD_LINES.get(suffix)
        if limit and len(lines) > limit and name not in exceptions:
            errors.append(f"{name}: {len(lines)} lines, the limit is {limit}; cut along a seam, or list it in tests/lint/long_files.txt with a reason")
        for number, line in enumerate(lines, 1):
            if LOOSE.search(line) and not name.startswith("tests/lint/") and suffix != ".md":
                errors.append(f"{name}:{number}: loose end: {line.strip()[:80]}")
            if PLACES.search(line) and not name.startswith("tests/lint/"):
                errors.append(f"{name}:{number}: a path or host that no user has: {line.strip()[:80]}")
            if suffix in {".cc", ".h"} and line.rstrip() != line:
                errors.append(f"{name}:{number}: trailing blanks")
        base = pathlib.PurePosixPath(name).name
        if name.startswith("tests/") and base.endswith(("_test.cc", "_fuzz.cc")) and base not in cmake:
            errors.append(f"{name}: no CMakeLists.txt lists it")
    print("\n".join(errors) if errors else f"text: {len(names)} files")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
