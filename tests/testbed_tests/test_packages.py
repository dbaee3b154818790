"""Where a testbed cannot be started, the reason is reported."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from testbed import NotAvailableError, packages, wait_until
from testbed.packages import POLICY, require
from testbed.processes import start_ticks
from tests.plugins.summary import is_unexpected
from tests.testbed_tests.test_leftovers import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_without_root_the_reason_is_an_expected_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(NotAvailableError, match="needs root") as error:
        require({"ip": "iproute2"})

    assert os.getuid() == 0 or not is_unexpected(str(error.value))


@pytest.mark.skipif(
    os.geteuid() != 0, reason="the testbed needs root: no packages can be installed, no hosts can be made here"
)
def test_a_package_that_cannot_be_installed_is_tried_once_and_named_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    had_policy = POLICY.exists()
    none = {"distlaunch-no-such-program": "distlaunch-no-such-package"}

    with pytest.raises(NotAvailableError, match="the testbed needs distlaunch-no-such-package: ") as error:
        require(none)

    assert POLICY.exists() == had_policy
    monkeypatch.setattr(packages, "install", None)
    with pytest.raises(NotAvailableError, match=re.escape(str(error.value))):  # without another try
        require(none)


APT_GET = """\
#!/bin/sh
echo "$*" >> {told}
case "$*" in
install*--download-only) ;;
install*) echo $$ > {told}.pid; (sleep 1; ls {policy} >> {told}; echo installed >> {told}) & wait ;;
esac
"""


@pytest.fixture
def apt_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Make a program the apt-get of this machine, with a policy of its own."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(packages, "POLICY", tmp_path / "policy-rc.d")

    def make(text: str) -> None:
        (tmp_path / "apt-get").write_text(text.format(told=tmp_path / "told", policy=packages.POLICY))
        (tmp_path / "apt-get").chmod(0o755)

    yield make
    (tmp_path / "told.go").touch()


def test_an_installation_is_not_ended_in_the_middle(tmp_path: Path, apt_get: Callable[[str], None]) -> None:
    apt_get(APT_GET)

    packages.install(("x",), 0.5)

    lines = (tmp_path / "told").read_text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["update", "install", "install"]
    assert lines[3:] == [str(packages.POLICY), "installed"], "no service was started until all was installed"
    assert not packages.POLICY.exists()


def installing(tmp_path: Path) -> int:
    """The pid of a process whose apt-get installs."""
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            packages.install(("x",), 60)
        except KeyboardInterrupt:
            os._exit(130)
        finally:
            os._exit(1)
    wait_until("apt-get", (tmp_path / "told.pid").exists)
    return pid


def test_ctrl_c_does_not_end_an_installation_in_the_middle(tmp_path: Path, apt_get: Callable[[str], None]) -> None:
    apt_get(APT_GET)
    pid = installing(tmp_path)

    os.kill(pid, signal.SIGINT)

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert (tmp_path / "told").read_text().splitlines()[3:] == [str(packages.POLICY), "installed"]
    assert not packages.POLICY.exists()


def test_an_installation_whose_process_is_killed_keeps_its_policy(
    tmp_path: Path, apt_get: Callable[[str], None]
) -> None:
    apt_get(APT_GET.replace("sleep 1", "while [ ! -e {told}.go ]; do sleep 0.01; done"))
    pid = installing(tmp_path)
    wait_until("its name in the policy", lambda: packages.POLICY.read_text().count(packages.OURS) == 2, limit_s=30)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)

    assert not packages.forget_policy(), "apt-get lives"
    with packages.no_services():
        (tmp_path / "told.go").touch()
        wait_until("its end", lambda: (tmp_path / "told").read_text().endswith("installed\n"))
        wait_until("that of apt-get", lambda: not Path(f"/proc/{(tmp_path / 'told.pid').read_text().strip()}").exists())

    assert not packages.POLICY.exists()


def test_a_download_that_takes_too_long_is_ended(tmp_path: Path, apt_get: Callable[[str], None]) -> None:
    apt_get("#!/bin/sh\nsleep 600 &\necho $! > {told}\nwait\n")

    with pytest.raises(NotAvailableError, match=r"needs x: apt-get update did not end within 1 s"):
        packages.install(("x",), 1)

    sleeps = int((tmp_path / "told").read_text())
    wait_until("the end of what it has started", lambda: start_ticks(sleeps) is None, limit_s=30)


def test_the_policy_of_an_installation_that_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy-rc.d"
    monkeypatch.setattr(packages, "POLICY", policy)
    if (pid := os.fork()) == 0:
        with packages.no_services():
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    assert policy.exists()
    assert packages.forget_policy()
    assert not policy.exists()

    with packages.no_services():
        assert not packages.forget_policy(), "its process lives"
        assert "exit 101" in policy.read_text()
    assert not policy.exists()
    policy.write_text("#!/bin/sh\nexit 101\n")
    with packages.no_services():
        assert not packages.forget_policy()
    assert policy.exists(), "the machine's own"


UP = """
from testbed import NotAvailableError, Testbed
from tests.plugins import host
try:
    Testbed().up(1)
except NotAvailableError as error:
    print(error)
print(*host.complaints(), sep="\\n")
"""


@pytest.mark.skipif(bool(packages.why_no_hosts()), reason=packages.why_no_hosts() or "hosts can be made here")
def test_root_without_the_rights_that_a_container_lacks_is_told_so_before_anything_is_made() -> None:
    without = ("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", sys.executable, "-c", UP)
    done = subprocess.run(without, cwd=ROOT, capture_output=True, text=True, check=True)

    reason = "the testbed needs CAP_SYS_ADMIN, as in a privileged container: no hosts can be made here"
    lines = done.stdout.splitlines()
    assert lines[0] == reason
    assert f"{reason}; tests that bring hosts up skip" in lines
