# Completion of kvc for bash, written by kvc completion bash.
_kvc() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command= options= words= i
  COMPREPLY=()
  # --name=value comes as three words.
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${COMP_WORDS[COMP_CWORD - 2]}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [[ ${COMP_WORDS[i]} != -* ]]; then
      command=${COMP_WORDS[i]}
      break
    fi
  done
  case $command in
    '') options='--version -h --help -v --verbose' words='convert inspect verify tokenize run chat kept plan devices licenses methods score score-merge score-plot eval tune report bench demo completion help' ;;
    convert) options='-h --help --dry-run --check-against --tolerance --weights --group --context --rope --pack --head-scores --lora --name --json -v --verbose' ;;
    inspect) options='-h --help --threads --device --memory-limit --trusted --json -v --verbose' ;;
    verify) options='-h --help --threads --device --memory-limit --trusted --json -v --verbose' ;;
    tokenize) options='-h --help --threads --device --memory-limit --trusted --text --file --bos --continue --special --pieces --json -v --verbose' ;;
    run) options='-h --help --threads --device --memory-limit --trusted --prompt --prompt-file --tokens --policy --head-scores --table --max-tokens --draft --draft-policy --ask --save --load --special --chat --system --temperature --top-p --top-k --min-p --repeat-penalty --seed --context --on-full --compare --stats --json -v --verbose' ;;
    chat) options='-h --help --threads --device --memory-limit --trusted --policy --head-scores --table --system --load --max-tokens --temperature --top-p --top-k --min-p --repeat-penalty --seed --context --on-full --json -v --verbose' ;;
    kept) options='-h --help --threads --device --memory-limit --trusted --prompt --prompt-file --tokens --special --policy --head-scores --table --context --on-full --max-tokens --json -v --verbose' ;;
    plan) options='-h --help --threads --device --memory-limit --trusted --policy --head-scores --table --context --max-tokens --json -v --verbose' ;;
    devices) options='-h --help --json --no-measure -v --verbose' ;;
    licenses) options='-h --help -v --verbose' ;;
    methods) options='-h --help --json -v --verbose' ;;
    score) options='-h --help --threads --device --memory-limit --trusted --method --out --name --data --special --chat --protocol --split --validation --limit --max-prompt --utility --max-answer --first-line --samples --max-samples --epsilon --delta --min-spearman --sizes --runs --window --variant --draw-examples --balanced --standardise --with-offset --seed --shard --log --resume --batch --cache-limit --choose-alpha --alphas --mask-experiment --scores --json -v --verbose' ;;
    score-merge) options='-h --help --out --log --name --variant --standardise --with-offset --average --json -v --verbose' ;;
    score-plot) options='-h --help --out --model --threads --device --memory-limit --trusted --budget --context -v --verbose' ;;
    eval) options='-h --help --threads --device --memory-limit --trusted --data --text --special --chat --policy --head-scores --table --protocol --text-protocol --window --windows --limit --suite --tasks --items --length --lengths --essay --questions --suite-seed --explain --picture --top-share --json --csv -v --verbose' ;;
    tune) options='-h --help --threads --device --memory-limit --trusted --data --special --chat --policy --head-scores --table --max-loss --metric --max-kl --confidence --budget-key --budgets --protocol --held-out --seed --limit --out --json -v --verbose' ;;
    report) options='-h --help --threads --device --memory-limit --trusted --data --special --chat --policy --head-scores --table --budgets --focus --limit -o --out -v --verbose' ;;
    bench) options='-h --help --threads --device --memory-limit --trusted --policy --head-scores --table --prompt --gen --depth --repeat --batch --arrive --draft --tokens --json -v --verbose' ;;
    demo) options='-h --help --model --threads --device --memory-limit --trusted --tasks --stories --budget --limit --json -v --verbose' ;;
    completion) options='-h --help -v --verbose' ;;
  esac
  case $command in
    help) words='convert inspect verify tokenize run chat kept plan devices licenses methods score score-merge score-plot eval tune report bench demo completion' ;;
    methods) words='full quest streaming streaming-baseline h2o tova scissorhands cam ahakv weightedkv snapkv snapkv-w8 nacl knorm keydiff lagkv expected-attention reconstruct pyramidkv pyramidinfer spindlekv ada-snapkv ada-paper ada-pyramid headkv-r2 cokv cokv-document cokv-mixed duo-attention kvzip table' ;;
    completion) words='bash zsh fish man' ;;
  esac
  case $prev in
    --policy|--draft-policy)
      words='full quest streaming streaming-baseline h2o tova scissorhands cam ahakv weightedkv snapkv snapkv-w8 nacl knorm keydiff lagkv expected-attention reconstruct pyramidkv pyramidinfer spindlekv ada-snapkv ada-paper ada-pyramid headkv-r2 cokv cokv-document cokv-mixed duo-attention kvzip table'
      compopt -o nospace 2>/dev/null # options may follow
      ;;
    *) if [[ $cur == -* ]]; then words=$options; fi ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
complete -o bashdefault -o default -F _kvc kvc # files where nothing else is known
