"""`distlaunch torchrun` beside torchrun."""

import pytest

pytest.register_assert_rewrite("tests.torchrun.behaviour")
