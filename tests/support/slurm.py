"""A real Slurm of the test's own: three nodes on loopback in namespaces that vanish when the command ends.

`cluster_command(tmp_path, "srun", "-n", "2", "hostname")` is the argv to run. Up and down takes a quarter of a second.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

NODES = ("n1", "n2", "n3")
NEEDED = ("slurmctld", "slurmd", "srun", "munged", "ip", "unshare", "runuser")

# One address on lo that is not 127.0.0.1: without it Slurm's look-up of names fails. NoCtldInAddrAny keeps slurmctld
# on loopback too. TmpFS by node: PMIx of several nodes on one machine. A host name for each slurmd: with one name for
# all, mpirun inside a step takes its own node for a remote one.
_CONF = """\
ClusterName=unit
SlurmctldHost=ctl(127.0.0.1)
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/ctl
SlurmdSpoolDir=/var/lib/slurm/slurmd.%n
TmpFS=/var/lib/slurm/tmpfs.%n
SlurmctldPidFile=/var/lib/slurm/ctl.pid
SlurmdPidFile=/var/lib/slurm/slurmd.%n.pid
SlurmctldLogFile=/var/log/slurm/ctl.log
SlurmdLogFile=/var/log/slurm/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=3
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
NodeName=n[1-3] NodeAddr=127.0.0.1 Port=[6821-6823] CPUs=8 RealMemory=4000 Gres=gpu:4 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""

_SCRIPT = """\
set -e
mount --make-rprivate /
hostname ctl
ip link set lo up
ip addr add 10.99.0.1/32 dev lo
for d in /etc/slurm /var/lib/slurm /var/log/slurm /run/munge /etc/munge /var/log/munge /var/lib/munge; do
  mkdir -p $d; mount -t tmpfs -o size=64m,mode=755 tmpfs $d
done
# Clusters side by side have the same host names and job numbers, and Open MPI names its segments by them.
mount -t tmpfs -o size=2g,mode=1777 tmpfs /dev/shm
mkdir -p /var/lib/slurm/ctl
printf '127.0.0.1 localhost ctl n1 n2 n3\\n' > /var/lib/slurm/hosts
mount --bind /var/lib/slurm/hosts /etc/hosts
dd if=/dev/urandom of=/etc/munge/munge.key bs=1 count=1024 status=none
chown -R munge:munge /etc/munge /run/munge /var/log/munge /var/lib/munge
chmod 700 /etc/munge /var/log/munge /var/lib/munge
chmod 400 /etc/munge/munge.key
cp "$1" /etc/slurm/slurm.conf
echo 'Name=gpu File=/dev/loop[0-3]' > /etc/slurm/gres.conf
shift
runuser -u munge -- /usr/sbin/munged
slurmctld
for n in n1 n2 n3; do
  mkdir -p /var/lib/slurm/slurmd.$n /var/lib/slurm/tmpfs.$n
  unshare -u bash -c "hostname $n; exec slurmd -N $n"
done
for i in $(seq 200); do
  [ "$(timeout 3 sinfo -h -t idle -o %D 2>/dev/null)" = 3 ] && break
  sleep 0.1
done
set +e
"$@"
"""


@cache
def missing_for_slurm() -> str:
    """Return why there can be no Slurm here, or an empty text."""
    absent = [name for name in NEEDED if shutil.which(name) is None and not Path(f"/usr/sbin/{name}").exists()]
    if absent:
        return f"not installed: {', '.join(absent)} (slurm-wlm, slurmd, slurmctld, munge, iproute2)"
    if os.geteuid() != 0:
        return "namespaces of its own need root"
    tried = subprocess.run(
        ["unshare", "-n", "-m", "-u", "-p", "-f", "true"], capture_output=True, text=True, check=False, timeout=30
    )
    return f"unshare: {tried.stderr.strip()}" if tried.returncode else ""


def cluster_command(folder: Path, *argv: str, timeout_s: float = 120, extra_conf: str = "") -> list[str]:
    """Return the command that starts a cluster, runs `argv` inside it, and takes everything down again."""
    script, conf = folder / "cluster.sh", folder / "slurm.conf"
    script.write_text(_SCRIPT)
    conf.write_text(_CONF + extra_conf)
    # unshare does not die of SIGTERM, so timeout kills it; --kill-child takes all processes of the namespace along.
    namespaces = ["unshare", "-n", "-m", "-u", "-p", "-f", "--kill-child", "--mount-proc"]
    return ["timeout", "-k", "2", str(timeout_s), *namespaces, "bash", str(script), str(conf), *argv]
