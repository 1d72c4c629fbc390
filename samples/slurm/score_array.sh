#!/usr/bin/env bash
# Head scores on a Slurm cluster without MPI: every task of an array does one part of the same measurement.
#   sbatch --array=1-16 samples/slurm/score_array.sh model.kvc tasks.jsonl scores
# and, when all are done, joins them:
#   kvc score-merge scores/part.json.*.log --variant regression --out scores/scores.json
# A part that was killed goes on where it was when the same line is submitted again.
#SBATCH --job-name=kvc-score
#SBATCH --cpus-per-task=16
#SBATCH --mem=64G
#SBATCH --time=24:00:00
set -euo pipefail
if [[ $# -ne 3 || -z ${SLURM_ARRAY_TASK_ID:-} ]]; then
  echo "usage: sbatch --array=1-N $0 MODEL.kvc TASKS.jsonl FOLDER" >&2
  exit 2
fi
model=$1 tasks=$2 folder=$3
mkdir -p "$folder"
exec kvc score "$model" --data "$tasks" --utility nll --balanced --samples "${SAMPLES:-250}" \
  --shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" --out "$folder/part.json" --resume \
  --threads "${SLURM_CPUS_PER_TASK:-1}"
