"""What an environment's scripts name once it is in its place on a node."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.shipping import environments


def test_scripts_start_where_their_python_is_too_far_down_for_a_first_line(tmp_path: Path) -> None:
    """Before Linux 5.1 it may have 127 bytes."""
    source, store = environments.venv(tmp_path / "source"), tmp_path / ("deep" * 25)
    (source / "bin/shows").write_text(
        f"#!{source}/bin/python -I\nimport sys\nprint(sys.flags.isolated, sys.argv[1:])\n"
    )
    (source / "bin/shows").chmod(0o755)

    python = environments.start(tmp_path, source, [0], 1, dirs={0: store})[0].result()["python"]
    scripts = {name: Path(python).with_name(name) for name in ("tool", "shows")}
    said = {
        name: subprocess.run([path, "a b", "c"], check=True, capture_output=True, text=True).stdout
        for name, path in scripts.items()
    }

    assert Path(said["tool"].strip()).is_relative_to(store)
    assert said["shows"] == "1 ['a b', 'c']\n"
    assert [len(path.read_bytes().partition(b"\n")[0]) <= 127 for path in scripts.values()] == [True, True]


def test_the_place_where_an_environment_was_made_is_not_replaced_within_another_path(tmp_path: Path) -> None:
    """As that of /env within `/usr/bin/env`, if an image has its environment there."""
    source = environments.venv(tmp_path / "source")
    (source / "bin/activate").write_text("VIRTUAL_ENV=/env\n")
    script = "#!/usr/bin/env sh\nexec {0}/bin/python '/data/env /env.old' $PATH:{0}\n"
    script += "cc -I{0}/include '-L{0}/lib' ${{X:-{0}}} x-I/env\n"
    (source / "bin/starts").write_text(script.format("/env"))

    python = Path(environments.start(tmp_path, source, [0], 1)[0].result()["python"])

    assert python.with_name("starts").read_text() == script.format(python.parents[1])
