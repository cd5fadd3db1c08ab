"""What is rebuilt after a change by `trtdx build`, make, ninja and rm -rf; and how long a status of 200 GB takes.

Each tool builds the same small pipeline of compiled objects. "too many" are steps that ran and could not change the
result, "too few" are results that are not what the sources say. Run it with the tests' Python; it needs make, ninja,
g++ and 300 MB of disk (the 200 GB are sparse).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAMES = ("one", "two", "three")
TRTDX = [sys.executable, "-m", "trtdx", "build"]


def write_project(folder: Path) -> None:
    for name in NAMES:
        (folder / f"{name}.cpp").write_text(f"int {name}() {{ return FLAVOUR; }}\n")
    (folder / "main.cpp").write_text(
        "".join(f"int {name}();\n" for name in NAMES)
        + '#include <cstdio>\nint main() { std::printf("%d\\n", '
        + " + ".join(f"{name}()" for name in NAMES)
        + "); }\n"
    )
    (folder / "flags").write_text("-DFLAVOUR=1")


def write_make(folder: Path) -> None:
    objects = " ".join(f"{name}.o" for name in (*NAMES, "main"))
    (folder / "Makefile").write_text(
        f"app: {objects}\n\tg++ -o $@ $^ && echo link >> runs\n"
        "%.o: %.cpp\n\tg++ $$(cat flags) -c $< -o $@ && echo $@ >> runs\n"
    )


def write_ninja(folder: Path) -> None:
    edges = "".join(f"build {name}.o: cc {name}.cpp\n" for name in (*NAMES, "main"))
    objects = " ".join(f"{name}.o" for name in (*NAMES, "main"))
    (folder / "build.ninja").write_text(
        "rule cc\n  command = g++ $$(cat flags) -c $in -o $out && echo $out >> runs\n"
        f"rule link\n  command = g++ -o $out $in && echo link >> runs\n{edges}build app: link {objects}\n"
    )


def write_plan(folder: Path) -> None:
    steps = "".join(
        f"  {name}:\n    inputs: [{name}.cpp, flags]\n    outputs: [{name}.o]\n    tools: [cxx]\n"
        f"    command: g++ $(cat flags) -c {{{{ input }}}} -o {{{{ output }}}} && echo {name}.o >> runs\n"
        for name in (*NAMES, "main")
    )
    inputs = ", ".join(f'"@{name}"' for name in (*NAMES, "main"))
    link = f"  app:\n    inputs: [{inputs}]\n    outputs: [app]\n    command: g++ -o {{{{ output }}}} {{{{ inputs }}}} && echo link >> runs\n"
    (folder / "plan.yaml").write_text(f"output: .\nsteps:\n{steps}{link}")


def clear_and_make(folder: Path) -> None:
    for path in (*folder.glob("*.o"), folder / "app"):
        path.unlink(missing_ok=True)
    run(["make", "-s"], folder)


def run(command: list[str], folder: Path) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


TOOLS = {
    "trtdx build": (write_plan, lambda folder: run([*TRTDX, "plan.yaml"], folder)),
    "make": (write_make, lambda folder: run(["make", "-s"], folder)),
    "ninja": (write_ninja, lambda folder: run(["ninja"], folder)),
    "rm -rf and make": (write_make, clear_and_make),
}


def keep_time(path: Path, text: str) -> None:
    status = path.stat()
    path.write_text(text)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# change: what it does, which steps must run, what the program must print
CHANGES = {
    "nothing": (lambda folder: None, 0, "3"),
    "touch one.cpp": (lambda folder: os.utime(folder / "one.cpp"), 0, "3"),
    "a comment in notes.txt": (lambda folder: (folder / "notes.txt").write_text("x"), 0, "3"),
    "one.cpp gives 5": (lambda folder: (folder / "one.cpp").write_text("int one() { return 5; }\n"), 2, "7"),
    "a space in one.cpp": (lambda folder: (folder / "one.cpp").write_text("int one()  { return FLAVOUR; }\n"), 1, "3"),
    "one.cpp replaced, old time": (lambda folder: keep_time(folder / "one.cpp", "int one() { return 5; }\n"), 2, "7"),
    "flags": (lambda folder: (folder / "flags").write_text("-DFLAVOUR=2"), 5, "6"),
    "two.o replaced by hand": (lambda folder: (folder / "one.o").replace(folder / "two.o"), 2, "3"),
}


def compare_tools(folder: Path) -> None:
    print(f"{'change':28}{'tool':18}{'ran':>5}{'too many':>10}{'result':>9}")
    for change, (apply, needed, expected) in CHANGES.items():
        for tool, (write, build) in TOOLS.items():
            project = Path(tempfile.mkdtemp(dir=folder))
            write_project(project)
            write(project)
            build(project)
            (project / "runs").unlink()
            time.sleep(0.02)
            apply(project)
            try:
                build(project)
                result = "right" if run(["./app"], project).strip() == expected else "WRONG"
            except subprocess.CalledProcessError:
                result = "FAILS"
            ran = len((project / "runs").read_text().split()) if (project / "runs").exists() else 0
            print(f"{change:28}{tool:18}{ran:5}{max(0, ran - needed):10}{result:>9}")


def time_status(folder: Path, gigabytes: int) -> None:
    data = folder / "weights"
    data.mkdir()
    for number in range(40):
        with (data / f"{number:02}.bin").open("wb") as file:
            file.truncate(gigabytes * 1_000_000_000 // 40)
    (folder / "plan.yaml").write_text(
        "steps: {count: {inputs: [weights], outputs: [n], command: 'ls {{ input }} | wc -l > {{ output }}'}}"
    )
    began = time.monotonic()
    run([*TRTDX, "plan.yaml"], folder)
    first = time.monotonic() - began
    times = []
    for _ in range(5):
        began = time.monotonic()
        run([*TRTDX, "status", "plan.yaml"], folder)
        times.append(time.monotonic() - began)
    print(
        f"{gigabytes} GB of inputs: first build {first:.0f} s, status when nothing changed {min(times):.2f} s (of 5: {max(times):.2f} s at most)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare_tools(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        time_status(Path(folder), options.gigabytes)


if __name__ == "__main__":
    main()
