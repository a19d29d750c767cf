#!/bin/bash
# A shell script is a job too: walras submit configs/jobs/hello.sh
#WALRAS resources.accelerators=any:1
#WALRAS limits.max_runtime=1m
echo "attempt $WALRAS_ATTEMPT of job $WALRAS_JOB_ID on $(hostname)"
