"""Which of two words for an option is in force: the command line's or the file's, as a release decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.facts.options import sections_are_merged, winner

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import Facts
    from trtdx.inspect.readers.server.llm_options import Setting

DROPPED = "is dropped"  # so that the default is in force, which is no other answer
DEFAULT_SHARE = 0.9  # of free memory, where neither says so
DEFAULTED = ("max_batch_size", "max_num_tokens", "max_beam_width")


class Precedence:
    """Merges the options of a command line and its file, and puts what they contradict each other in."""

    def __init__(self, facts: Facts, version: str) -> None:
        self._facts, self._version = facts, version

    def merged(
        self, flags: dict[str, Setting], written: dict[str, Setting], document: Document | None
    ) -> list[Setting]:
        """Return the settings in force; one that two places set differently is told, and kept if it is clear."""
        merged = {**flags, **written}
        for key, flag in flags.items():
            if key in written and written[key].value != flag.value:
                self._settle(key, flag, written[key], merged)
            elif key not in written and key.startswith("kv_cache_config.") and document is not None:
                self._replaced_section(key, flag, document, merged)
        for key in DEFAULTED:
            if key in written and key not in flags and self._defaults_win():
                self._conflict(
                    f"{key}: {written[key].value} in the file is overridden by the command line's default in "
                    f"{self._version}",
                    written[key],
                )
                merged.pop(key)
        return list(merged.values())

    def _settle(self, key: str, flag: Setting, written: Setting, merged: dict[str, Setting]) -> None:
        wins = winner(key, self._version)
        both = f"{key}: {flag.value} on the command line, {written.value} in the file; "
        if not wins:
            self._conflict(
                both + "the file wins up to 1.2.1, the command line in 1.3.0 (since rc19)", flag, written
            )
            merged.pop(key)
            return
        merged[key] = flag if wins == "flag" else written
        side = "the command line" if wins == "flag" else "the file"
        self._conflict(f"{both}{side} wins in {self._version}", flag, written)

    def _replaced_section(
        self, key: str, flag: Setting, document: Document, merged: dict[str, Setting]
    ) -> None:
        if not document.has("kv_cache_config") or sections_are_merged(self._version) is not False:
            return
        merged.pop(key)
        if (key, flag.value) != ("kv_cache_config.free_gpu_memory_fraction", DEFAULT_SHARE):
            self._conflict(
                f"{key}: {flag.value} on the command line {DROPPED} in {self._version}, because "
                "kv_cache_config in the file replaces the whole section",
                flag,
            )

    def _defaults_win(self) -> bool:
        """Return whether the limits come from the command line's defaults: PyTorch in 0.21 and 1.0."""
        return winner("max_batch_size", self._version) == "flag" and winner("dtype", self._version) == "yaml"

    def _conflict(self, words: str, *settings: Setting) -> None:
        places = "; ".join(setting.where for setting in settings)
        self._facts.add("runtime.conflicts", words, places)
        self._facts.add("runtime.conflict_places", places, places)
