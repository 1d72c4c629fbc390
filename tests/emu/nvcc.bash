# ./dev test --cuda, --ptx and ./dev gpu read this file: NVIDIA's compiler, and what it makes of the CUDA backend.

# nvcc is on the path, or where NVIDIA's packages put it, or comes from PyPI; continuous integration does without it
# where it cannot be had.
need_nvcc() {
  local from=build-tools/cuda/nvidia/cu13 packages
  command -v nvcc >/dev/null || PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  command -v nvcc >/dev/null && return
  if [[ ! -e $from/lib64 ]]; then
    need cuda
    mapfile -t packages < <(grep -E '^nvidia-(cuda-(nvcc|crt|runtime|cccl|cuobjdump)|nvvm)==' packaging/requirements.txt)
    say "installing nvcc (${packages[*]})"
    if ! python3 -m pip install --quiet --no-deps --target build-tools/cuda "${packages[@]}"; then
      [[ ${CI:-} != true ]] || { say "skipped: there is no nvcc, and pip could not install it"; exit 0; }
      fail "there is no nvcc and pip could not install it: install NVIDIA's CUDA toolkit (12.2 or later), or set CUDA_HOME"
    fi
    # The names that CMake looks for.
    ln -sfn libcudart.so.13 "$from/lib/libcudart.so" && ln -sfn lib "$from/lib64"
    installed=yes
  fi
  PATH=$PATH:$PWD/$from/bin
}

# configure_for PRESET ARCHITECTURES: as CMake names them, apart by semicolons. What is built then is built by ninja, not
# by its preset, which would choose the architectures again.
configure_for() {
  local folder
  folder=$(folder_of "$1")
  configure_preset "$1"
  cmake -B "$folder" -DCMAKE_CUDA_ARCHITECTURES="$2" >>"$folder/configure.log" 2>&1 ||
    { cat "$folder/configure.log" >&2; fail "could not configure $folder/ for $2"; }
}

# test_cuda [ARCH,...]: for these compute capabilities alone, instead of all that are released.
test_cuda() {
  local arch=${1:-}
  [[ -z $arch || $arch =~ ^[0-9]+(,[0-9]+)*$ ]] || fail "no architectures '$arch': numbers, as 80,90"
  need build
  need_nvcc
  # Toolkits that were put together from parts may lack what reads their results.
  [[ -x $(dirname "$(command -v nvcc)")/cuobjdump ]] ||
    need_pypi nvidia-cuda-cuobjdump build-tools/nvidia/cu13/bin/cuobjdump
  [[ -z $arch ]] || arch="${arch//,/-real;}-real"
  configure_for cuda "${arch:-80-real;87-real;90-real;90-virtual}"
  say "building build-cuda/"
  ninja -C build-cuda -j "$jobs" --quiet kvc || fail "the build failed"
  python3 tests/emu/cuda_build_test.py build-cuda ${1:+"$1"}
}

# What runs every kernel, without tests that have kernels of their own; and of those what is about kernels themselves.
kernels_ptx='ptx|digits|half_layer|attend_(prompt|step)|(device|experts|line)_parity|rounding|row_halves'
all_ptx="$kernels_ptx|blas|half_residual|device_(open|memory)|method_parity|gpu_rounding|tuning|api_batch|golden_micro"
all_ptx+='|side_stream|cache_(attend|codebook|fork|kv_cache|read_pages)'
all_ptx+='|engine_(experts|mask_heads|observe|once|positions|query_head_sets|reobserve|reread|rest)'

# run_ptx ARCH PATTERN: what nvcc made for this compute capability, executed by the emulator of PTX.
run_ptx() {
  say "tests on the kernels' PTX for compute capability ${1%?}.${1#?}"
  only=(-R "$2")
  KVC_TEST_DEVICE=emu KVC_EMU_CAPABILITY=$1 KVC_EMU_PTX_RAN=$root/build-emu/ptx_ran \
    KVC_EMU_PTX=$root/build-cuda/cuda/CMakeFiles/kvc_ptx_$1.dir run_suite build-emu
}

# test_ptx [PATTERN [ARCH]]: tests of the emulated device whose kernels are what nvcc made of them; for this compute
# capability alone, 80 or 90, instead of both.
test_ptx() {
  local status=0 arch tests archs=(80 90)
  if [[ -n ${2:-} ]]; then
    [[ $2 == 80 || $2 == 90 ]] || fail "no compute capability '$2': 80 or 90"
    archs=("$2")
  fi
  need build test emu
  need_nvcc
  configure_preset cuda
  say "compiling the kernels in build-cuda/"
  ninja -C build-cuda -j "$jobs" --quiet "${archs[@]/#/kvc_ptx_}" || fail "the build failed"
  configure_preset emu
  build_for build-emu "${1:-^($all_ptx)}"
  rm -rf build-emu/ptx_ran && mkdir build-emu/ptx_ran
  for arch in "${archs[@]}"; do
    tests=$all_ptx
    [[ $arch == 90 || ${#archs[@]} == 1 ]] || tests=$kernels_ptx
    run_ptx "$arch" "${1:-^($tests)}" || status=1
  done
  python3 tests/emu/ptx_ran.py build-emu/ptx_ran
  return "$status"
}
