"""What a script's text shows at a glance agrees with what its parsed text shows, and imports no `ast`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from launcher.agent.forkserver import early, glance
from launcher.agent.forkserver.guess import SURELY
from launcher.agent.forkserver.imports import lead_to_torch

if TYPE_CHECKING:
    from pathlib import Path

MINE = "import os\nos.environ['OMP_NUM_THREADS'] = '3'\n"
SIMPLE = {
    "plain": "import torch\nprint(1)\n",
    "several": "import os, sys as system, torch.nn as nn\nfrom torch import nn\n",
    "comment": "# import mine\nimport torch  # import mine\n",
    "parts": "from torch.nn import (\n    Linear,\n    ReLU,\n)\n",
    "later": "def f():\n    import torch\n",
}
NOT_SIMPLE = {
    "sets": MINE,
    "mine": "import mine\nimport torch\n",
    "in_list": "import torch, mine\n",
    "from_mine": "from mine import x\nimport torch\n",
    "one_line": "import torch; import mine\n",
    "condition": "if True: import mine\n",
    "two_lines": "import torch, \\\n    mine\n",
    "relative": "from . import mine\n",
    "called": "__import__('mine')\n",
    "old_lines": "import torch\rimport mine\r",
    "words": "import torch,\n",
    "not_ascii": "import möglich\n",
}
"""Each name with a text; `mine` is a module of the user's own that sets a variable."""


@pytest.mark.parametrize("text", SIMPLE.values(), ids=SIMPLE)
def test_a_simple_script_is_not_parsed(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    path = tmp_path / "train.py"
    path.write_text(text)

    assert glance.sets_no_variables(text.encode(), [str(tmp_path), *sys.path])
    assert early.variables([str(path)], [str(tmp_path), *sys.path]) == []


@pytest.mark.parametrize("text", NOT_SIMPLE.values(), ids=NOT_SIMPLE)
def test_any_other_is_parsed(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)

    assert not glance.sets_no_variables(text.encode(), [str(tmp_path), *sys.path])


@pytest.mark.parametrize(
    ("text", "surely"),
    [
        ("import torch", False),
        ("import torch\n", True),
        ("x = 1\nfrom torch import nn\n", True),
        ("import torch.nn as nn\n", True),
        ("import torch, os\n", True),
        ("import torchvision\n", False),
        ("try:\n    import torch\nexcept ImportError:\n    pass\n", False),
        ("print('import torch')\n", False),
    ],
)
def test_only_a_line_that_begins_with_its_import_says_that_a_script_wants_torch(
    text: str, surely: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)

    assert glance.surely_imports_torch(text.encode()) == surely
    assert not surely or lead_to_torch([str(path)], [str(tmp_path), *sys.path]) == SURELY
