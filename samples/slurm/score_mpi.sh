#!/usr/bin/env bash
# Head scores on a Slurm cluster over MPI: one process hands out the work and keeps the record, the others measure.
#   sbatch --nodes=4 --ntasks-per-node=8 samples/slurm/score_mpi.sh model.kvc tasks.jsonl scores.json
# When a node dies the job ends; submitted again it goes on where it was.
#SBATCH --job-name=kvc-score
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
set -euo pipefail
if [[ $# -ne 3 || -z ${SLURM_JOB_ID:-} ]]; then
  echo "usage: sbatch --nodes=N --ntasks-per-node=M $0 MODEL.kvc TASKS.jsonl SCORES.json" >&2
  exit 2
fi
exec srun --mpi=pmix kvc score "$1" --data "$2" --utility nll --balanced --variant regression --min-spearman 0.9 \
  --out "$3" --resume --threads "${SLURM_CPUS_PER_TASK:-1}"
