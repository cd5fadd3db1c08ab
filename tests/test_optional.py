"""Optional packages are looked for without side effects."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOOK_FOR_PIP = """
import sys, types, warnings
sys.modules["distutils"] = types.ModuleType("distutils")  # imported before setuptools could put its own in place
warnings.simplefilter("error")
from trtdx.optional import is_installed
print(is_installed("pip"))
"""


def test_looking_for_pip_after_distutils_was_imported_is_no_failure():
    pytest.importorskip("_distutils_hack")
    done = subprocess.run([sys.executable, "-c", LOOK_FOR_PIP], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
