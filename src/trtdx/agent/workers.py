"""Processes that multiprocessing starts: their exceptions are printed by it and reach no hook."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from .process import SupervisedProcess


def watch_workers(process: SupervisedProcess) -> None:
    process.imports.when_imported("multiprocessing.process", lambda module: _watch_bootstrap(process, module))
    process.imports.when_imported("multiprocessing.synchronize", lambda module: _watch_barrier(process, module))
    process.imports.when_imported("torch.multiprocessing.spawn", lambda module: _watch_torch_spawn(process, module))


def _watch_bootstrap(process: SupervisedProcess, module: ModuleType) -> None:
    base = module.BaseProcess
    bootstrap = base._bootstrap

    @functools.wraps(bootstrap)
    def run_worker(self: Any, *args: Any, **options: Any) -> Any:
        try:
            process.journal.add_event("worker", name=self.name)
            process.keep_rank_output()
            run = self.run

            def run_watched() -> None:
                try:
                    run()
                except BaseException as err:
                    process.exceptions.record("main", err)
                    raise

            self.run = run_watched
        except Exception as err:
            process.note_failure("worker", err)
        status = bootstrap(self, *args, **options)
        process.flush_output()
        return status

    base._bootstrap = run_worker


def _watch_barrier(process: SupervisedProcess, module: ModuleType) -> None:
    """A barrier of multiprocessing is a collective of the workers that share it: its lock is the same in all."""
    wait = module.Barrier.wait

    @functools.wraps(wait)
    def wait_watched(self: Any, *args: Any, **options: Any) -> Any:
        try:
            lock = self._cond._lock._semlock
            group = f"multiprocessing {lock.name or hex(lock.handle)}"
        except Exception as err:
            process.note_failure("barrier", err)
            return wait(self, *args, **options)
        return process.collectives.call_collective("Barrier.wait", group, "", wait, (self, *args), options)

    module.Barrier.wait = wait_watched


def _watch_torch_spawn(process: SupervisedProcess, module: ModuleType) -> None:
    """torch.multiprocessing.spawn catches a worker's exception and hands it to the parent."""
    wrap = module._wrap

    @functools.wraps(wrap)
    def wrap_watched(fn: Any, *args: Any, **options: Any) -> Any:
        @functools.wraps(fn)
        def call(*values: Any) -> Any:
            try:
                return fn(*values)
            except BaseException as err:
                process.exceptions.record("main", err)
                raise

        return wrap(call, *args, **options)

    module._wrap = wrap_watched  # type: ignore[attr-defined]
