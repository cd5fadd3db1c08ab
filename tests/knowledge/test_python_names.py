"""Names that Python text uses and defines nowhere."""

from __future__ import annotations

import pytest

from trtdx.knowledge.python_names import undefined_names


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("import torch; print(torch.cuda.is_available())", ()),
        ("print(torch.__version__)", ("torch",)),
        ("import json, sys; json.load(open(sys.argv[1]))", ()),
        ("print([x for x in y])", ("y",)),
        ("def f(a):\n    global g\n    g = a\n    return h\nf(g)", ("h",)),
        ("from os import *\nprint(getcwd())", ()),
        ("print(EOS_ID, __name__)", ()),
        ("with open('a') as f: print(f.read(), undefined)", ("undefined",)),
        ("def f():\n    return np.zeros(3)", ("np",)),
        ("x = 1\nlambda: x + z", ("z",)),
    ],
)
def test_names_that_are_defined_nowhere_are_told(code, names):
    assert undefined_names(code) == names


def test_names_that_are_lent_are_known():
    assert undefined_names("engine.run(other)", frozenset({"engine"})) == ("other",)
