# ./dev gpu reads this file: tests and speed of the CUDA backend on a GPU, and the archive that takes what was built
# to one.

# gpu pack [--arch N,...] [OUT]: what ./dev gpu needs, built here for GPUs elsewhere. One library holds what all tests
# share (KVC_TESTS_SHARED); the compiler's own libraries go along, for a machine without.
gpu_pack() {
  local arch=90 out=build-gpu/gpu.tar.xz folder=build-gpu-pack staged tests name
  while [[ $# -gt 0 ]]; do
    case $1 in
      --arch) arch=${2:-}; shift 2 || fail "--arch N,...: compute capabilities, as 80,90" ;;
      -*) fail "no option '$1': ./dev gpu pack [--arch N,...] [OUT]" ;;
      *) out=$1; shift ;;
    esac
  done
  [[ $arch =~ ^[0-9]+[a-z]?(,[0-9]+[a-z]?)*$ ]] || fail "no architectures '$arch': numbers, as 80,90"
  need build gpu
  source tests/emu/nvcc.bash
  need_nvcc
  configure_for gpu-pack "${arch//,/;}"
  list_gpu_tests "$folder"
  mapfile -t tests < <(sed -n 's/^ *"program": "tests\/\(.*\)",$/\1/p' "$folder/tests.json")
  say "building $folder/"
  ninja -C "$folder" -j "$jobs" --quiet kvc_tool device_bench shape_model "${tests[@]}" || fail "the build failed"
  staged=$(mktemp -d) && generated+=("$staged")
  mkdir -p "$staged"/{bin,lib,tests,compiler} "$(dirname "$out")"
  cp "$folder"/bin/{kvc,device_bench,shape_model} "$staged/bin/"
  cp "$folder"/lib/libkvc_tests_shared.so "$staged/lib/"
  for name in "${tests[@]}"; do cp "$folder/tests/$name" "$staged/tests/"; done
  strip "$staged"/*/*
  for name in libstdc++.so.6 libgcc_s.so.1; do
    cp -L "$("${CXX:-c++}" -print-file-name="$name")" "$staged/compiler/"
  done
  cp "$folder/tests.json" "$staged/"
  built_from >"$staged/commit"
  needed_driver >"$staged/driver"
  say "packing $out"
  tar --create --directory "$staged" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner . |
    xz --threads=1 --x86 --lzma2=preset=6e,dict=64MiB >"$out" || fail "could not write $out"
  say "$out: ${#tests[@]} tests, $(($(stat -c %s "$out") / 1024)) KiB; on the machine with the GPU, with python3 and" \
    "NVIDIA's driver ($(<"$staged/driver") or later): ./dev gpu --from $out"
  tell_sizes "$out"
}

mebibytes() { printf '%d.%d' $(($1 >> 20)) $((($1 % 1048576) * 10 >> 20)); }

# tell_sizes ARCHIVE: of what goes to the machine with the GPU.
tell_sizes() {
  local sources archive
  sources=$(($(git ls-files -z | xargs -0 -r stat -c %s 2>/dev/null | tr '\n' '+')0))
  archive=$(stat -c %s "$1")
  say "tracked files: $(mebibytes "$sources") MiB, the archive: $(mebibytes "$archive") MiB," \
    "together $(mebibytes $((sources + archive))) MiB"
  [[ $archive -le $((64 << 20)) ]] || say "the archive is larger than 64 MiB, which is to be the most beside the sources"
}

# The oldest driver that takes what this nvcc makes: by its CUDA's major version, as cuda/memory.cc asks for it.
needed_driver() {
  local cuda
  cuda=$(nvcc --version | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  case $cuda in
    12) say 525 ;;
    13) say 580 ;;
    *) say "that of CUDA $cuda" ;;
  esac
}

# tell_old_driver: where nvidia-smi calls the driver older than the archive needs. No more than that: kvc finds out
# whether it runs there, and with a newer libcuda beside an older driver it may.
tell_old_driver() {
  local needed='' driver=''
  read -r needed 2>/dev/null <build-gpu/driver || return 0  # archives of before have none
  read -r driver < <(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null) || return 0
  [[ $needed =~ ^[0-9]+$ && $driver =~ ^([0-9]+)\. ]] || return 0
  [[ ${BASH_REMATCH[1]} -ge $needed ]] ||
    say "this machine's driver is $driver, and what was packed is made for $needed or later: it may not start"
}

# Whether what was unpacked does, with the C++ runtime that the loader finds: tests may ask for more of it than kvc.
starts() {
  local tests=(build-gpu/tests/*)
  build-gpu/bin/kvc --version >/dev/null 2>&1 && "${tests[0]}" --gtest_list_tests >/dev/null 2>&1
}

remove_unpacked() { rm -rf build-gpu/{bin,lib,tests,compiler,tests.json,commit,driver}; }

# The commit, with a + where files differ from it.
built_from() {
  local commit
  commit=$(git rev-parse HEAD 2>/dev/null) || { say unknown; return; }
  say "$commit$([[ -z $(git status --porcelain --untracked-files=no) ]] || say +)"
}

# list_gpu_tests FOLDER: the tests of a build that go to the GPU, into its tests.json.
list_gpu_tests() {
  python3 bench/gpu_tests.py list "$1" --match "$device_tests" --leave-out "^($not_device_tests)" ||
    fail "$1/ has no tests"
}

# gpu_unpack ARCHIVE: into build-gpu/, in place of one that was unpacked before.
gpu_unpack() {
  [[ -f $1 ]] || fail "no archive '$1': ./dev gpu pack makes one, on a machine with nvcc"
  [[ ! -f build-gpu/CMakeCache.txt ]] || fail "build-gpu/ holds a build of this machine: remove it, or leave out --from"
  say "unpacking $1"
  mkdir -p build-gpu
  remove_unpacked
  tar -xf "$1" -C build-gpu 2>/dev/null ||  # it has no xz, perhaps; python3 brings one
    python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall("build-gpu")' "$1" ||
    fail "could not unpack $1"
  [[ -x build-gpu/bin/kvc && -f build-gpu/tests.json ]] || fail "$1 is no archive of ./dev gpu pack"
  tell_old_driver
  # Those of this machine if it has them: the packed ones ask for the C library that they came with.
  starts || cp build-gpu/compiler/* build-gpu/lib/
}

# gpu_build: the same from the sources, on the machine with the GPU.
gpu_build() {
  source tests/emu/nvcc.bash
  need_nvcc
  command -v nvidia-smi >/dev/null || fail "there is no NVIDIA driver (nvidia-smi)"
  [[ -f build-gpu/CMakeCache.txt ]] || remove_unpacked
  build_preset gpu all device_bench shape_model
  list_gpu_tests build-gpu
}

# gpu_ready ARCHIVE: build-gpu/ has programs that start and find a GPU, those of an archive or built here.
gpu_ready() {
  local found
  if [[ -n $1 ]]; then gpu_unpack "$1"; else gpu_build; fi
  found=$(build-gpu/bin/kvc devices --json --no-measure) || fail "build-gpu/bin/kvc does not start here"
  python3 -c 'import json, sys
sys.exit(next((d.get("reason") for d in json.loads(sys.argv[1]) if d["name"] == "cuda"), "a build without CUDA"))
' "$found" || fail "there is no GPU to run on"
  find_cublaslt
}

# find_cublaslt: in Python's packages too, where the environment names none.
find_cublaslt() {
  [[ -z ${KVC_CUBLASLT:-} ]] || return 0
  unset KVC_CUBLASLT
  local found
  found=$(python3 bench/gpu_blas.py)
  [[ -n $found ]] || return 0
  say "cuBLASLt: the first that starts of $found"
  export KVC_CUBLASLT=$found
}

# gpu_tune [--from ARCHIVE] [option of bench/gpu_tune.py]... [MODEL.kvc]
gpu_tune() {
  local archive='' options=()
  while [[ $# -gt 0 ]]; do
    case $1 in
      -h | --help) python3 bench/gpu_tune.py --help; return ;;
      --from) archive=${2:-}; [[ -n $archive ]] || fail "--from ARCHIVE"; shift 2 ;;
      *) options+=("$1"); shift ;;
    esac
  done
  python3 bench/gpu_tune.py --check ${options[@]+"${options[@]}"} || return  # before minutes of a build
  gpu_ready "$archive"
  python3 bench/gpu_tune.py --kvc build-gpu/bin/kvc ${options[@]+"${options[@]}"}
}

# seconds_of_tests SECONDS: what tests may take of them. What they leave undone is said.
seconds_of_tests() {
  local short=$(($1 < 300 ? $1 : 300))
  say $((short / 5 + 2 * ($1 - short) / 5))
}

# gpu [--from ARCHIVE] [--minutes M] [--out FOLDER] [MODEL.kvc]...: takes no network, what it needs is there or named.
# A test that fails is no reason to measure nothing.
gpu() {
  local archive='' seconds='' models=() options=() status=0 began=$SECONDS left=() copies=()
  case ${1:-} in
    tune) gpu_tune "${@:2}"; return ;;
    pack) gpu_pack "${@:2}"; return ;;
  esac
  while [[ $# -gt 0 ]]; do
    case $1 in
      --from) archive=${2:-}; [[ -n $archive ]] || fail "--from ARCHIVE"; shift 2 ;;
      --minutes)
        [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || fail "--minutes M: a whole number"
        seconds=$((60 * $2)); shift 2 ;;
      --shapes | --scratch) [[ -n ${2:-} ]] || fail "$1 needs a value"; options+=("$1" "$2"); shift 2 ;;
      --out) [[ -n ${2:-} ]] || fail "--out FOLDER"; copies=(--copies "$2"); shift 2 ;;
      -*) fail "no option '$1': --from ARCHIVE, --minutes M, --out FOLDER, --shapes SHAPE:TYPE,..., --scratch FOLDER" ;;
      *) [[ -f $1 ]] || fail "no model file '$1': ./dev gpu MODEL.kvc..."; models+=("$1"); shift ;;
    esac
  done
  [[ -n $seconds || -z $archive ]] || seconds=540
  gpu_ready "$archive"
  [[ -n $archive ]] || began=$SECONDS  # a build takes as long as it takes
  say "tests on the GPU"
  [[ -z $seconds ]] || left=(--seconds "$(seconds_of_tests "$seconds")")
  KVC_TEST_DEVICE=cuda python3 bench/gpu_tests.py run build-gpu ${left[@]+"${left[@]}"} ${copies[@]+"${copies[@]}"} ||
    status=1
  if [[ -n $seconds ]]; then
    seconds=$((seconds - SECONDS + began - 5))
    [[ $seconds -gt 0 ]] || seconds=0
    options+=(--minutes "$(printf '%d.%02d' $((seconds / 60)) $((seconds % 60 * 100 / 60)))")
  fi
  say "speed"
  python3 bench/gpu.py --kvc build-gpu/bin/kvc ${options[@]+"${options[@]}"} ${copies[@]+"${copies[@]}"} \
    ${models[@]+"${models[@]}"} || status=1
  return "$status"
}
