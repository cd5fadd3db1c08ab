"""A job of several MPI ranks with one planted fault: `mpi_job.py FAULT [RANK]`. The culprit is rank 2 unless named."""

import ctypes
import os
import resource
import signal
import sys
import threading
import time

import numpy
from mpi4py import MPI

FAULT = sys.argv[1]
CULPRIT = int(sys.argv[2]) if len(sys.argv) > 2 else 2
STEPS = 6
comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
mine = rank == CULPRIT
halves = []


def say(*words):
    print("rank", rank, *words, flush=True)


def reduce_step(values):
    total = numpy.empty_like(values)
    comm.Allreduce(values, total)
    return total


def eat_memory_in_a_group():
    folder = f"/sys/fs/cgroup/memory/trtdx-zoo-{os.getpid()}"
    os.mkdir(folder)
    with open(f"{folder}/memory.limit_in_bytes", "w") as file:
        file.write("120M")
    with open(f"{folder}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(0.8)
    hoard = []
    while True:
        hoard.append(bytearray(os.urandom(1 << 20)) * 8)


def eat_memory_under_limit():
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), used + (200 << 20)))
    hoard = []
    while True:
        hoard.append(bytearray(16 << 20))


def deadlock():
    first, second = threading.Lock(), threading.Lock()

    def other():
        with second:
            time.sleep(0.2)
            with first:
                pass

    thread = threading.Thread(target=other, daemon=True)
    with first:
        thread.start()
        time.sleep(0.4)
        with second:
            pass


def wait_for_fifo():
    path = f"/tmp/trtdx-zoo-{os.getpid()}.fifo"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    reader = os.open(path, os.O_RDONLY)
    try:
        os.read(reader, 10)
    finally:
        os.close(writer)
        os.unlink(path)


def fail_in_thread():
    box = []

    def load():
        raise KeyError("layers.7.weight")

    thread = threading.Thread(target=load, name="loader")
    thread.start()
    thread.join()
    while not box:
        time.sleep(0.05)


def fault_at_once():
    if FAULT == "exception":
        weights = numpy.zeros((4, 8))
        raise ValueError(f"shard 7 of {weights.shape} does not fit")
    if FAULT == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "sigsegv":
        ctypes.string_at(0)
    if FAULT == "sigabrt":
        os.abort()
    if FAULT == "sigbus":
        os.kill(os.getpid(), signal.SIGBUS)
    if FAULT == "sigfpe":
        os.kill(os.getpid(), signal.SIGFPE)
    if FAULT == "exit3":
        say("configuration is wrong, leaving")
        sys.stdout.flush()
        os._exit(3)
    if FAULT == "exit0":
        os._exit(0)
    if FAULT == "exit137":
        say("Hang detected")
        os._exit(137)
    if FAULT == "abort7":
        comm.Abort(7)
    if FAULT == "oom":
        eat_memory_in_a_group()
    if FAULT == "rlimit":
        eat_memory_under_limit()
    if FAULT == "missing-file":
        open("/nowhere/weights.bin")
    if FAULT == "port":
        import socket

        held, second = socket.socket(), socket.socket()
        held.bind(("127.0.0.1", 0))
        held.listen()
        second.bind(held.getsockname())
    if FAULT == "shm":
        raise OSError(28, "No space left on device", "/dev/shm/nccl-x1")


def fault_that_hangs():
    if FAULT == "lock":
        deadlock()
    if FAULT == "fifo":
        wait_for_fifo()
    if FAULT == "sleep":
        time.sleep(600)
    if FAULT == "spin":
        while True:
            pass
    if FAULT == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    if FAULT == "thread":
        fail_in_thread()


def step(number, values):
    if FAULT == "skip" and mine and number == 3:
        comm.Barrier()
        return values
    if FAULT == "shape" and mine and number == 3:
        return reduce_step(numpy.ones(4, numpy.float64))
    if FAULT == "dtype" and mine and number == 3:
        return reduce_step(numpy.ones(16, numpy.float32))
    if FAULT == "root" and number == 3:
        comm.Bcast(values, root=1 if mine else 0)
        return values
    if FAULT == "order" and number == 3:
        if mine:
            comm.Barrier()
            return comm.Bcast(values, root=0) or values
        comm.Bcast(values, root=0)
        comm.Barrier()
        return values
    if FAULT == "subgroup":
        if not halves:
            halves.append(comm.Split(rank // 2, rank))
        if not (mine and number == 4):
            halves[0].allreduce(number)
    if FAULT == "slow" and mine:
        time.sleep(0.35)
    return reduce_step(values)


def main():
    if FAULT == "receive" and mine:
        comm.recv(source=1, tag=77)
    if FAULT == "cycle" and rank in (1, 2):
        comm.Ssend(numpy.ones(4), dest=3 - rank)
    values = numpy.ones(8)
    for number in range(1, STEPS * (2 if FAULT == "slow" else 1)):
        if number == 3 and mine:
            fault_at_once()
            fault_that_hangs()
        if FAULT == "fewer" and mine and number == 4:
            break
        values = step(number, values)
        if FAULT not in ("quiet", "sleep"):
            say("step", number)
    comm.Barrier()
    if FAULT == "split":
        half = comm.Split(rank % 2, rank)
        half.Barrier()
        if mine:
            time.sleep(600)
        half.allreduce(1)
        half.Free()
    say("done", size)


if __name__ == "__main__":
    main()
