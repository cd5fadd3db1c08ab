"""The manifest beside the artifacts: an in-toto statement with SLSA provenance, made from the records of all steps."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec

from trtdx.build.plan.execute import describe_record
from trtdx.build.plan.fingerprint import files_below
from trtdx.errors import InputError
from trtdx.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from trtdx.build.plan.fingerprint import FileHasher
    from trtdx.build.plan.nouns import StepRecord
    from trtdx.build.plan.read_plan import BuildPlan
    from trtdx.host import Host

MANIFEST = "manifest.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "https://trtdx.dev/build-plan/v1"
MAX_MANIFEST_BYTES = 256 << 20


def write_manifest(host: Host, plan: BuildPlan, records: list[StepRecord]) -> Path:
    """Write what was built from what; unchanged records give the same bytes."""
    path = plan.output / MANIFEST
    data = msgspec.json.format(msgspec.json.encode(_statement(plan, records)), indent=2) + b"\n"
    if not path.is_file() or path.read_bytes() != data:
        host.write(str(path), data)
    return path


def _statement(plan: BuildPlan, records: list[StepRecord]) -> dict[str, Any]:
    artifacts = {name: digest for record in records for name, digest in record.files.items()}
    materials = {
        name: digest
        for record in records
        for name, digest in record.fingerprint.inputs.items()
        if not name.startswith("@")
    }
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"blake3": digest}} for name, digest in sorted(artifacts.items())],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"plan": plan.name, "file": plan.path.name, "variables": plan.file.variables},
                "internalParameters": {"steps": [describe_record(record) for record in records]},
                "resolvedDependencies": [
                    {"name": name, "digest": {"blake3": digest}} for name, digest in sorted(materials.items())
                ],
            },
            "runDetails": {
                "builder": {"id": BUILD_TYPE, "version": {"trtdx": __version__}},
                "metadata": {
                    "startedOn": _timestamp(min((record.started for record in records), default=0.0)),
                    "finishedOn": _timestamp(max((record.started + record.seconds for record in records), default=0.0)),
                },
            },
        },
    }


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


class ManifestCheck(msgspec.Struct, frozen=True):
    """What a folder is like beside its manifest."""

    manifest: str
    checked: int
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    unknown: tuple[str, ...]  # files that no step made


def verify_manifest(hasher: FileHasher, folder: Path) -> ManifestCheck:
    """Return which files of a folder are not what its manifest says.

    Raises:
        InputError: there is no manifest, or it cannot be read.
    """
    path = find_manifest(folder)
    digests = read_subjects(path)
    base = path.parent
    shown = "" if folder.resolve() == base.resolve() else f"{folder.resolve().relative_to(base.resolve())}/"
    listed = {name: digest for name, digest in digests.items() if name.startswith(shown)}
    missing = tuple(name for name in listed if not (base / name).is_file())
    changed = tuple(name for name in listed if name not in missing and hasher.digest(base / name) != listed[name])
    tops = {name.partition("/")[0] for name in listed}
    present = [file for top in sorted(tops) if (base / top).is_dir() for file in files_below(base / top)]
    names = [str(file.relative_to(base)) for file in present]
    unknown = tuple(name for name in names if name.startswith(shown) and name not in digests)
    return ManifestCheck(str(path), len(listed), missing, changed, unknown)


def find_manifest(folder: Path) -> Path:
    """Return the manifest in a folder or the nearest one above it."""
    start = folder if folder.is_dir() else folder.parent
    for candidate in (start, *list(start.absolute().parents)[:4]):
        if (candidate / MANIFEST).is_file():
            return candidate / MANIFEST
    raise InputError(f"there is no {MANIFEST} in {folder} or above it", fix="trtdx build PLAN   # writes one")


def read_subjects(path: Path) -> dict[str, str]:
    """Return the digest of each artifact that a manifest lists."""
    try:
        document = msgspec.json.decode(path.read_bytes()[:MAX_MANIFEST_BYTES])
        return {subject["name"]: subject["digest"]["blake3"] for subject in document["subject"]}
    except OSError as err:
        raise InputError(f"cannot read {path}: {err.strerror or err}") from err
    except (msgspec.DecodeError, UnicodeDecodeError) as err:
        raise InputError(f"{path} is not JSON: {err}") from err
    except (KeyError, TypeError) as err:
        raise InputError(f"{path} is no manifest of trtdx: it lists no subjects with BLAKE3 digests") from err
