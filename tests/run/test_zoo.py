"""Real jobs with planted faults: the right rank is blamed for the right cause, and healthy jobs are left in peace."""

from __future__ import annotations

import pytest

from support.run_zoo import JOBS, QUICK, RARE, is_right, missing_for, run_job

pytestmark = pytest.mark.heavy

PICKED = [job for job in JOBS if job.name in QUICK or job.is_quick]
OTHERS = [job for job in JOBS if job not in PICKED and job.name not in RARE]


def check_job(job, job_python, tmp_path):
    if reason := missing_for(job):
        pytest.skip(reason)
    if job.launcher == "torchrun":
        pytest.importorskip("torch")
    result = run_job(job, job_python, tmp_path)
    assert is_right(job, result), result.stderr[-3000:]


@pytest.mark.parametrize("job", PICKED, ids=lambda job: job.name)
def test_the_culprit_and_the_cause_are_named(job, job_python, tmp_path):
    check_job(job, job_python, tmp_path)


@pytest.mark.parametrize("job", OTHERS, ids=lambda job: job.name)
def test_the_culprit_and_the_cause_are_named_in_the_rest_of_the_zoo(job, job_python, tmp_path):
    check_job(job, job_python, tmp_path)
