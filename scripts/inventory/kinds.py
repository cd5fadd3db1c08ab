"""The files of the inventory: which products they read, and how each is put together."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tomllib

from inventory import other_products, tensorrt_llm, variables
from inventory.eras import fold_releases, write_entries
from inventory.mirrors import Mirror, Tree, list_releases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BY_HAND = Path(__file__).with_name("by_hand.toml")
TENSORRT_LLM = "TensorRT-LLM"


class ProductSource(NamedTuple):
    """Where a product's releases are: the repository, how its tags begin, and the first one that matters."""

    repository: str
    prefix: str
    first: str
    pre: bool = False
    untagged: tuple[tuple[str, str], ...] = ()  # (commit, release) that has no tag


PRODUCTS = {
    TENSORRT_LLM: ProductSource(
        "deepinfra+TensorRT-LLM", "v", "0.5.0", pre=True,
        untagged=(("f4e692d2191fa6385647f4c89a12454b47af7886", "1.3.0rc23"),),
    ),
    "tensorrtllm_backend": ProductSource("triton-inference-server+tensorrtllm_backend", "v", "0.5.0"),
    "Triton": ProductSource("triton-inference-server+server", "v", "2.38.0"),
    "TensorRT": ProductSource("NVIDIA+TensorRT", "v", "8.6.0"),
    "NCCL": ProductSource("NVIDIA+nccl", "v", "2.18.1"),
    "Open MPI": ProductSource("open-mpi+ompi", "v", "4.1.0"),
    "ModelOpt": ProductSource("NVIDIA+TensorRT-Model-Optimizer", "", "0.23.0"),
    "huggingface_hub": ProductSource("huggingface+huggingface_hub", "v", "0.20.0"),
}  # fmt: skip
Products = dict[str, list[Tree]]


def open_products(mirrors: Path) -> Products:
    """Return the releases of each product whose repository is in the folder of mirrors."""
    products = {}
    for name, source in PRODUCTS.items():
        folder = mirrors / source.repository / "repo"
        if folder.is_dir():
            mirror = Mirror(folder)
            trees = list_releases(mirror, source.prefix, source.first, pre=source.pre)
            trees += [Tree(mirror, commit, release) for commit, release in source.untagged if mirror.has_commit(commit)]
            products[name] = trees
    return products


def write_releases(products: Products, path: Path) -> None:
    entries = [{"product": name, "releases": [tree.release for tree in trees]} for name, trees in products.items()]
    hand = tomllib.loads(BY_HAND.read_text("utf-8"))
    entries += [{"product": name, "source": table["source"], "releases": []} for name, table in hand["product"].items()]
    write_entries(path, entries)


def _fold_product(
    trees: Iterable[Tree], collect: Callable[[Tree], Mapping[Any, dict[str, Any]]]
) -> dict[Any, list[dict[str, Any]]]:
    facts = {tree.release: collect(tree) for tree in trees}
    return fold_releases(list(facts), facts)


def write_flags(products: Products, path: Path) -> int:
    entries = []
    for product, trees in products.items():
        collect = tensorrt_llm.collect_flags if product == TENSORRT_LLM else other_products.FLAGS.get(product)
        if collect is None:
            continue
        for key, eras in _fold_product(trees, collect).items():
            entries.append({**_owner(product), **_named(key), "eras": eras})
    entries += _flags_by_hand()
    entries.sort(
        key=lambda entry: (
            entry.get("product", TENSORRT_LLM),
            entry["tool"],
            entry.get("subcommand", ""),
            entry["flag"],
        )
    )
    write_entries(path, entries)
    return len(entries)


def _owner(product: str) -> dict[str, str]:
    return {} if product == TENSORRT_LLM else {"product": product}


def _named(key: Any) -> dict[str, str]:
    names = {"tool": key.tool, "subcommand": key.subcommand, "flag": key.flag}
    return {name: value for name, value in names.items() if value}


def _flags_by_hand() -> list[dict[str, Any]]:
    """Return the flags of programs whose sources cannot be parsed; each program names its documentation."""
    hand = tomllib.loads(BY_HAND.read_text("utf-8"))
    entries = []
    for product, table in hand["product"].items():
        for command, groups in table["flags"].items():
            tool, _, subcommand = command.partition(" ")
            named = {"product": product, "tool": tool} | ({"subcommand": subcommand} if subcommand else {})
            for kind, names in groups.items():
                entries += [{**named, "flag": name, "eras": [{"since": "", "type": kind}]} for name in names]
    return entries


def write_options(products: Products, path: Path) -> int:
    folded = _fold_product(products.get(TENSORRT_LLM, []), tensorrt_llm.collect_llm_options)
    entries = [{"option": name, "eras": eras} for name, eras in sorted(folded.items())]
    write_entries(path, entries)
    return len(entries)


def write_fields(products: Products, path: Path) -> int:
    folded = _fold_product(products.get(TENSORRT_LLM, []), tensorrt_llm.collect_config_fields)
    entries = [{"owner": owner, "field": name, "eras": eras} for (owner, name), eras in sorted(folded.items())]
    write_entries(path, entries)
    return len(entries)


def write_variables(products: Products, path: Path) -> int:
    entries = []
    by_hand = tomllib.loads(BY_HAND.read_text("utf-8"))["variable"]
    for product, trees in products.items():
        collect = tensorrt_llm.collect_variables if product == TENSORRT_LLM else other_products.VARIABLES.get(product)
        if collect is None:
            continue
        readings = {tree.release: collect(tree) for tree in trees}
        places = {
            name: min(facts["places"], key=_is_example)
            for by_name in readings.values()
            for name, facts in by_name.items()
        }
        settled = {
            release: {
                name: variables.settle_readings(facts) | _values_by_hand(by_hand, name)
                for name, facts in by_name.items()
            }
            for release, by_name in readings.items()
        }
        for name, eras in fold_releases(list(settled), settled).items():
            entries.append({"variable": name, **_owner(product), "place": places[name], "eras": eras})
    entries.sort(key=lambda entry: (entry["variable"], entry.get("product", TENSORRT_LLM)))
    write_entries(path, entries)
    return len(entries)


def _values_by_hand(by_hand: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {"values": by_hand[name]["values"]} if name in by_hand else {}


def _is_example(path: str) -> bool:
    return path.startswith(("examples/", "benchmarks/", "scripts/"))


def write_paths(products: Products, path: Path) -> int:
    entries = []
    for product in (TENSORRT_LLM, "tensorrtllm_backend"):
        collect = tensorrt_llm.collect_paths if product == TENSORRT_LLM else other_products.collect_backend_paths
        folded = _fold_product(products.get(product, []), collect)
        entries += [{"path": name, **_owner(product), "eras": eras} for name, eras in sorted(folded.items())]
    write_entries(path, entries)
    return len(entries)


def write_requirements(products: Products, path: Path) -> int:
    folded = _fold_product(products.get(TENSORRT_LLM, []), tensorrt_llm.collect_requirements)
    entries = [{"package": package, "file": file, "eras": eras} for (file, package), eras in sorted(folded.items())]
    write_entries(path, entries)
    return len(entries)


KINDS: dict[str, Callable[[Products, Path], int]] = {
    "flags": write_flags,
    "options": write_options,
    "fields": write_fields,
    "variables": write_variables,
    "paths": write_paths,
    "requirements": write_requirements,
}
