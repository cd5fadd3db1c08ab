"""Write src/trtdx/data/inventory/*.json: flags, options, variables, paths and requirements of each release.

    TRTDX_MIRRORS=/work/.mirror python scripts/make_inventory.py [--only KIND ...] [--to FOLDER]

`TRTDX_MIRRORS` holds bare git repositories as OWNER+NAME/repo. Facts are read from the sources at each tag by
parsing them; nothing of them is imported, executed or copied. Running it again gives the same bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from inventory.kinds import KINDS, open_products, write_releases

TARGET = Path(__file__).resolve().parents[1] / "src" / "trtdx" / "data" / "inventory"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--only", nargs="+", choices=sorted(KINDS), default=sorted(KINDS))
    parser.add_argument("--to", type=Path, default=TARGET)
    options = parser.parse_args(arguments)
    mirrors = os.environ.get("TRTDX_MIRRORS")
    if not mirrors:
        parser.error("set TRTDX_MIRRORS to the folder of the bare repositories")
    options.to.mkdir(parents=True, exist_ok=True)
    products = open_products(Path(mirrors))
    write_releases(products, options.to / "releases.json")
    for kind in options.only:
        count = KINDS[kind](products, options.to / f"{kind}.json")
        print(f"{kind}: {count} entries, {(options.to / f'{kind}.json').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
