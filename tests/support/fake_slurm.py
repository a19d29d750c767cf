"""Commands that look like Slurm's and obey the test: jobs are files in a folder."""

import os
from pathlib import Path

_SBATCH = """#!/bin/sh
{weather}
n=$(( $(ls {jobs} | wc -l) + 1 ))
for word in "$@"; do
  echo "$word" >>{folder}/options.$n
  case "$word" in --comment=*) comment="${{word#--comment=}}";; esac
done
cat >{folder}/script.$n
printf '%s\\n' PENDING Priority 0 0 "$comment" >{jobs}/$n
echo "$n;cluster"
"""
_SQUEUE = """#!/bin/sh
{weather}
for job in {jobs}/*; do
  [ -f "$job" ] || continue
  {{ read -r state; read -r reason; read -r restarts; read -r waited; read -r comment; }} <"$job"
  printf '%-24s%-20s%-80s%-12s%-16s%-700s\\n' "${{job##*/}}" "$state" "$reason" "$restarts" "$waited" "$comment"
done
"""
_SCANCEL = """#!/bin/sh
{weather}
for job in "$@"; do
  [ -f {jobs}/$job ] || {{ echo "scancel: error: job $job: Invalid job id specified" >&2; exit 1; }}
  sed -i '1s/.*/CANCELLED/' {jobs}/$job
done
"""


class FakeSlurm:
    """The commands are in `bin`; `weather` is what each does first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._jobs = folder / "jobs"
        self.bin = folder / "bin"
        self._jobs.mkdir(parents=True, exist_ok=True)
        self.bin.mkdir(exist_ok=True)
        self.set_weather("")

    def set_weather(self, line: str) -> None:
        """A line of shell that every command begins with."""
        for name, text in (("sbatch", _SBATCH), ("squeue", _SQUEUE), ("scancel", _SCANCEL)):
            (self.bin / name).write_text(text.format(weather=line, folder=self._folder, jobs=self._jobs))
            (self.bin / name).chmod(0o755)

    def set_job(self, job: int, state: str, reason: str = "None", restarts: int = 0, waited_s: int = 0) -> None:
        """What Slurm says of a job from now on."""
        comment = (self._jobs / str(job)).read_text().splitlines()[4]
        (self._jobs / str(job)).write_text(f"{state}\n{reason}\n{restarts}\n{waited_s}\n{comment}\n")

    def forget(self, job: int) -> None:
        """Slurm lists jobs that are over for some minutes only."""
        (self._jobs / str(job)).rename(self._folder / f"forgotten.{job}")

    def states(self) -> list[str]:
        """States of all jobs, in the order of submission."""
        return [(self._jobs / name).read_text().split()[0] for name in sorted(os.listdir(self._jobs), key=int)]

    def options(self, job: int) -> list[str]:
        return (self._folder / f"options.{job}").read_text().splitlines()

    def script(self, job: int) -> str:
        return (self._folder / f"script.{job}").read_text()
