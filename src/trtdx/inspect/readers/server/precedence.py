"""Which of two words for an option is in force: the command line's or the file's, as a release decides it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trtdx.inspect.facts.options import are_sections_merged, winning_side

if TYPE_CHECKING:
    from trtdx.formats.documents import Document
    from trtdx.inspect.facts.artifact import FactCollector
    from trtdx.inspect.readers.server.llm_options import OptionSetting

DROPPED_WORDS = "is dropped"  # so that the default is in force, which is no other answer
DEFAULT_MEMORY_FRACTION = 0.9  # of free memory, where neither says so
DEFAULTED_LIMITS = ("max_batch_size", "max_num_tokens", "max_beam_width")


class OptionPrecedence:
    """Merges the options of a command line and its file, and puts what they contradict each other in."""

    def __init__(self, facts: FactCollector, version: str) -> None:
        self._facts, self._version = facts, version

    def merge_settings(
        self, flags: dict[str, OptionSetting], written: dict[str, OptionSetting], document: Document | None
    ) -> list[OptionSetting]:
        """Return the settings in force; one that two places set differently is told, and kept if it is clear."""
        merged = {**flags, **written}
        for key, flag in flags.items():
            if key in written and written[key].value != flag.value:
                self._settle_conflict(key, flag, written[key], merged)
            elif key not in written and key.startswith("kv_cache_config.") and document is not None:
                self._drop_replaced_flag(key, flag, document, merged)
        for key in DEFAULTED_LIMITS:
            if key in written and key not in flags and self._defaults_win():
                self._add_conflict(
                    f"{key}: {written[key].value} in the file is overridden by the command line's default in "
                    f"{self._version}",
                    written[key],
                )
                merged.pop(key)
        return list(merged.values())

    def _settle_conflict(
        self, key: str, flag: OptionSetting, written: OptionSetting, merged: dict[str, OptionSetting]
    ) -> None:
        wins = winning_side(key, self._version)
        both = f"{key}: {flag.value} on the command line, {written.value} in the file; "
        if not wins:
            self._add_conflict(
                both + "the file wins up to 1.2.1, the command line in 1.3.0 (since rc19)", flag, written
            )
            merged.pop(key)
            return
        merged[key] = flag if wins == "flag" else written
        side = "the command line" if wins == "flag" else "the file"
        self._add_conflict(f"{both}{side} wins in {self._version}", flag, written)

    def _drop_replaced_flag(
        self, key: str, flag: OptionSetting, document: Document, merged: dict[str, OptionSetting]
    ) -> None:
        if not document.has_value("kv_cache_config") or are_sections_merged(self._version) is not False:
            return
        merged.pop(key)
        if (key, flag.value) != ("kv_cache_config.free_gpu_memory_fraction", DEFAULT_MEMORY_FRACTION):
            self._add_conflict(
                f"{key}: {flag.value} on the command line {DROPPED_WORDS} in {self._version}, because "
                "kv_cache_config in the file replaces the whole section",
                flag,
            )

    def _defaults_win(self) -> bool:
        """Return whether the limits come from the command line's defaults: PyTorch in 0.21 and 1.0."""
        return (
            winning_side("max_batch_size", self._version) == "flag" and winning_side("dtype", self._version) == "yaml"
        )

    def _add_conflict(self, words: str, *settings: OptionSetting) -> None:
        places = "; ".join(setting.where for setting in settings)
        self._facts.add("runtime.conflicts", words, places)
        self._facts.add("runtime.conflict_places", places, places)
