"""Jobs without MPI: `plain_job.py HOW FAULT`. HOW is how the four workers are started: tree, spawn or fork."""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

CULPRIT = 2
WORKERS = 4


def work(rank, fault, barrier=None):
    os.environ["RANK"] = str(rank)
    print("worker", rank, "starts", flush=True)
    time.sleep(0.2)
    if rank == CULPRIT:
        misbehave(fault)
    if barrier:
        barrier.wait()
    for step in range(3):
        time.sleep(0.1)
        print("worker", rank, "step", step, flush=True)


def misbehave(fault):
    if fault == "exception":
        raise RuntimeError("tokenizer.json is not what it says")
    if fault == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "sigsegv":
        ctypes.string_at(0)
    if fault == "exit4":
        os._exit(4)
    if fault == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    if fault == "socket":
        import socket

        one, _two = socket.socketpair()
        one.recv(1)
    if fault == "barrier":
        time.sleep(600)
    if fault == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)


def start_tree(fault):
    argv = [sys.executable, __file__, "worker", fault]
    started = [subprocess.Popen(argv, env=dict(os.environ, RANK=str(rank))) for rank in range(WORKERS)]
    return [process.wait() for process in started]


def start_workers(how, fault):
    context = multiprocessing.get_context(how)
    barrier = context.Barrier(WORKERS) if fault == "barrier" else None
    started = [context.Process(target=work, args=(rank, fault, barrier)) for rank in range(WORKERS)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return [process.exitcode for process in started]


if __name__ == "__main__":
    how, fault = sys.argv[1:3]
    if how == "worker":
        work(int(os.environ["RANK"]), fault)
        sys.exit(0)
    statuses = start_tree(fault) if how == "tree" else start_workers(how, fault)
    sys.exit(1 if any(statuses) else 0)
