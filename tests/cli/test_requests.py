"""Wrong requests are refused with exit code 2 and a message that helps."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.command import Cli

HEAVY = ("torch", "submitit", "ansible", "kubernetes", "jinja2", "rich", "yaml", "pydantic", "numpy")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["local", "--nodes", "0", "x.py"], "nodes 0 is out of range"),
        (["local", "--nodes", "-1", "x.py"], "nodes -1 is out of range"),
        (["local", "--nodes=-1", "x.py"], "nodes -1 is out of range"),
        (["local", "--nodes", "x", "x.py"], "nodes 'x' is not a number"),
        (["local", "--nodes", "3:2", "x.py"], "nodes 3:2 is out of range"),
        (["local", "--nproc-per-node", "0", "x.py"], "nproc-per-node 0 is below 1"),
        (["local", "--nproc-per-node", "gpu", "x.py"], "nproc-per-node 'gpu' is not a number"),
        (["local", "--max-restarts", "x", "x.py"], "'x' is not a whole number"),
        (["local", "--master-port", "99999", "x.py"], "master-port 99999 is not a port"),
        (["local", "--time", "30", "x.py"], "time '30' is not a duration"),
        (["local", "--log-limit", "30", "x.py"], "log-limit '30' is not a size"),
        (["local", "--log-limit", "500KB", "x.py"], "log-limit '500KB' is below 1MB"),
        (["local", "--start-method", "thread", "x.py"], "known: fork, spawn, forkserver"),
        (["local", "--env", "1A=2", "x.py"], "is not a variable name"),
        (["local", "--log-ranks", "a", "x.py"], "log-ranks 'a' is not a list of ranks"),
        (["local", "--render-to", "", "x.py"], "--render-to '' names no directory"),
        (["local", "--python", "", "x.py"], "--python '' is empty"),
        (["local", "--cluster", "", "x.py"], "--on '' is empty"),
        (["local", "-m", ""], "SCRIPT '' is empty"),
        (["run", "--on", "", "x.py"], "--on '' is empty"),
        (["doctor", "local", "--render-to", ""], "--render-to '' names no directory"),
        (["doctor", "--on", ""], "--on '' is empty"),
        (["ansible", "-i", "", "x.py"], "--inventory '' is empty"),
        (["ansible", "--inventory", "a,b,", "-i", "", "x.py"], "--inventory '' is empty"),
        (["ansible", "-i", "a,", "--remote-dir", "", "x.py"], "--remote-dir '' names no directory"),
        (["slurm", "--template", "", "x.py"], "--template '' is empty"),
        (["k8s", "--image", "a", "--workdir", "", "x.py"], "--workdir '' is empty"),
        (["k8s", "--image", "a", "--kubeconfig", "", "x.py"], "--kubeconfig '' is empty"),
        (["ls", "--on", ""], "--on '' is empty"),
        (["local", "--output", "xml", "x.py"], "output 'xml' is not known"),
        (["local", "--nodez", "2", "x.py"], "--nodes"),
        (["local", "-m", "--no-python", "x"], "exclude each other"),
        (["local"], "missing argument 'SCRIPT'"),
        (["local", "none.py"], "script 'none.py' does not exist"),
        (["local", "--cluster", "none", "x.py"], "unknown cluster 'none'"),
        (["run", "x.py"], "missing option '--on'"),
        (["locl", "x.py"], "did you mean local?"),
        (["x.py"], "distlaunch local x.py"),
        (["statsu", "x"], "did you mean status?"),
        (["--nonsense"], "no such option: --nonsense"),
        (["status"], "missing argument 'RUN'"),
        (["status", "x"], "there are no runs"),
        (["logs", "x"], "there are no runs"),
        (["cancel", "x"], "there are no runs"),
        (["ls", "a", "extra"], "unexpected extra argument"),
        (["ls", "-n", "x"], "'x' is not a whole number"),
    ],
)
def test_a_bad_request_is_explained(distlaunch: Cli, args: list[str], says: str) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch(*args)

    assert done.exit_code == 2, done.stderr
    assert says in done.stderr
    assert done.stderr.startswith("error[")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not distlaunch.runs.exists()


@pytest.mark.parametrize("args", [["--nodes", "x", "x.py"], ["--nodez", "x.py"], []])
def test_a_bad_request_is_json_when_json_was_asked_for(distlaunch: Cli, args: list[str]) -> None:
    distlaunch.write("x.py", "")

    for done in (
        distlaunch("local", "--output", "json", *args),
        distlaunch("local", *args, env={"DISTLAUNCH_OUTPUT": "json"}),
    ):
        assert done.exit_code == 2
        assert done.json["version"] == 1
        assert done.json["command"] == "local"
        assert done.json["ok"] is False
        assert set(done.json["error"]) == {"code", "message", "hint"}


def test_the_scripts_own_output_option_is_not_ours(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch("local", "--nodes", "x", "x.py", "--output", "json")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "nodes 'x' is not a number" in done.stderr


@pytest.mark.parametrize(
    "args", [("x.py", "--output", "id"), ("--", "x.py", "--output", "json"), ("-m", "x", "y", "--output", "id")]
)
def test_the_scripts_own_output_option_does_not_change_ours(distlaunch: Cli, args: tuple[str, ...]) -> None:
    distlaunch.write("x.py", "import sys\nprint(sys.argv[1:])\n")
    own = [*args[args.index("--output") - (args[0] == "-m") :]]

    done = distlaunch("local", *args)

    assert (done.exit_code, done.stdout) == (0, f"{own}\n"), done.stderr


def test_an_error_before_the_script_is_not_printed_as_the_script_was_asked_to(distlaunch: Cli) -> None:
    for args in (("run", "--on", "nope", "x.py"), ("run", "x.py"), ("local", "x.py")):
        done = distlaunch(*args, "--output", "json", env={"DISTLAUNCH_NODES": "x"})

        assert (done.exit_code, done.stdout) == (2, "")


def test_an_unknown_cluster_backend_or_command_lists_the_known_ones(distlaunch: Cli) -> None:
    done = distlaunch("zzz")

    assert done.exit_code == 2
    assert "local" in done.stderr
    assert "logs, ls" in done.stderr


def test_any_working_directory_works(distlaunch: Cli) -> None:
    directory = 'a b/it\'s/say "x"/new\nline/$HOME/ünï/-dash/%s{}'
    distlaunch.write(f"{directory}/x.py", "import os, sys\nprint(ascii([os.getcwd(), sys.path[0], __file__]))\n")
    here = str(distlaunch.directory / directory)

    done = distlaunch("local", "x.py", cwd=here)

    assert (done.exit_code, done.stdout) == (0, ascii([here, here, f"{here}/x.py"]) + "\n"), done.stderr


def test_a_working_directory_that_was_removed_is_an_error_for_a_launch_only(distlaunch: Cli) -> None:
    (distlaunch.directory / "gone").mkdir()
    script = 'cd gone && rmdir ../gone && exec "$0" -m launcher "$@"'

    codes = []
    for args in (["ls"], ["local", "x.py"]):
        (distlaunch.directory / "gone").mkdir(exist_ok=True)
        argv = ["/bin/sh", "-c", script, sys.executable, *args]
        done = subprocess.run(
            argv, cwd=distlaunch.directory, env=distlaunch.env(), capture_output=True, check=False, timeout=60
        )
        codes.append(done.returncode)
        assert b"Traceback" not in done.stderr

    assert codes == [0, 2]


def test_a_dry_run_writes_nothing_and_shows_the_plan(distlaunch: Cli) -> None:
    distlaunch.write("x.py", "")

    done = distlaunch("local", "--nodes", "2", "--nproc-per-node", "3", "--dry-run", "x.py")

    assert done.exit_code == 0
    assert [line.split()[1:3] for line in done.stderr.splitlines()] == [["NODE", "RANKS"], ["0", "0-2"], ["1", "3-5"]]
    assert '"workers": 3' in done.stdout
    assert sorted(path.name for path in distlaunch.directory.iterdir()) == ["x.py"]


LOOKING = ("ls", "--help", "status x", "local --dry-run x.py", "config", "local --help")


def test_commands_that_only_look_import_nothing_heavy_and_ls_no_backend(distlaunch: Cli) -> None:
    """One process for all: what none has imported at the end, each has not."""
    distlaunch.write("x.py", "")
    code = f"""
import sys
from launcher.cli import main
for args in {LOOKING!r}:
    main(args.split())
    found = [name for name in {HEAVY!r} if name in sys.modules]
    found += [name for name in sys.modules if args == "ls" and name.startswith("launcher.backends.")]
    print("::", args, *found)
"""

    done = distlaunch(python=("-c", code))

    assert [line for line in done.stdout.splitlines() if line.startswith("::")] == [f":: {args}" for args in LOOKING], (
        done.stderr
    )


def test_colour_is_for_terminals_only(distlaunch: Cli) -> None:
    assert "\033" not in distlaunch("local", "none.py").stderr
    for no_color, coloured in ((None, True), ("1", False)):
        leader, follower = os.openpty()
        distlaunch("local", "none.py", stderr=follower, env={"NO_COLOR": no_color, "TERM": "xterm"})
        os.close(follower)
        assert (b"\033[31m" in os.read(leader, 10_000)) is coloured
        os.close(leader)


def test_run_ids_and_commands_are_completed(distlaunch: Cli) -> None:
    for name in ("train-20250101-000000-abcd", "train-20250102-000000-abce", "eval-20250101-120000-qqqq"):
        (distlaunch.runs / name).mkdir(parents=True)

    def complete(words: str, index: int) -> list[str]:
        env = {"_DISTLAUNCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(index)}
        return distlaunch(env=dict(env)).stdout.split()

    assert complete("distlaunch status tr", 2) == ["train-20250102-000000-abce", "train-20250101-000000-abcd"]
    assert complete("distlaunch l", 1) == ["local", "login", "logs", "ls"]


def test_doctor_of_a_backend_alone_examines_it(distlaunch: Cli) -> None:
    """`distlaunch doctor local && train` must not continue if nothing was examined."""
    broken = distlaunch.write("python", "#!/bin/sh\necho 'module load python first' >&2\nexit 3\n")
    broken.chmod(0o755)

    done = distlaunch("doctor", "local", env={"DISTLAUNCH_PYTHON": str(broken)})

    assert (done.exit_code, done.stdout) == (3, "")
    assert f"no torch here: looked in {broken}" in done.stderr
    for words in ((), ("--help",), ("local", "--help")):
        told = distlaunch("doctor", *words)
        assert (told.exit_code, told.stdout[:6]) == (0, "Usage:"), words


@pytest.mark.parametrize("before", ["", "sleep 0.5\n"])
def test_an_interpreter_that_exits_at_once_is_one_error(distlaunch: Cli, before: str) -> None:
    """Also if it exits only after the message to begin was sent to it."""
    broken = distlaunch.write(
        "python", f"#!/bin/sh\necho 'not found:' >&2\n{before}echo 'module load python first' >&2\nexit 3\n"
    )
    broken.chmod(0o755)
    distlaunch.write("x.py", "")

    for more in ((), ("--detach",), ("--nodes", "2")):
        done = distlaunch("local", "--python", str(broken), *more, "x.py")

        said = f"{broken} ended with exit code 3 right after it was started: not found:; module load python first"
        assert (done.exit_code, done.stdout) == (4, "")
        assert done.stderr.startswith(f"error[command_failed]: {said}\n  hint: see {distlaunch.runs}")
        assert len(done.stderr.splitlines()) == 2
        assert distlaunch("status", "last", "--output", "json").json["result"]["cause"]["message"] == said
        shutil.rmtree(distlaunch.runs)
