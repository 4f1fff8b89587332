#!/usr/bin/env python3
"""Checks every #include against docs/layers.toml: folders include downward only, third-party headers stay behind their fences."""
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def sources():
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True,
                           capture_output=True, text=True).stdout.split("\n")
    return [n for n in names if n.endswith((".h", ".cc", ".cu", ".cuh")) and (ROOT / n).exists()]


def folder_of(path, folders):
    """Longest entry of the table that holds `path`."""
    parts = pathlib.PurePosixPath(path).parent.parts
    for n in range(len(parts), 0, -1):
        name = "/".join(parts[:n])
        if name in folders:
            return name
    return None


def allowed(folder, target, rules):
    if target == folder:
        return True
    return any(rule == "*" or rule == target or (rule.endswith("/*") and target.startswith(rule[:-1])) for rule in rules)


def main():
    table = tomllib.loads((ROOT / "docs/layers.toml").read_text())
    folders, fences = table["folders"], table["fences"]
    errors = []
    for name in sources():
        folder = folder_of(name, folders)
        if folder is None:
            errors.append(f"{name}: its folder is not in docs/layers.toml")
            continue
        for number, line in enumerate((ROOT / name).read_text(errors="replace").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            header = match.group(2)
            target = folder_of(header, folders) if match.group(1) == '"' else None
            if match.group(1) == '"' and target is None:
                errors.append(f"{name}:{number}: \"{header}\" is not a path from the root of the tree")
            elif target and not allowed(folder, target, folders[folder]):
                errors.append(f"{name}:{number}: {folder} may not include {target}")
            for prefix, places in fences.items():
                if match.group(1) == "<" and header.startswith(prefix):
                    if not any(folder == p or folder.startswith(p + "/") for p in places):
                        errors.append(f"{name}:{number}: <{header}> is fenced to {', '.join(places)}")
    print("\n".join(errors) if errors else f"layers: {len(sources())} files, every include points down")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
