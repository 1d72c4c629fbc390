# ./dev test --arch, --windows and --macos read this file: the suite built for other systems by the toolchains beside
# it, and run where something runs it.

# The suite for 64-bit Arm, by Debian's cross compiler, under emulation: hours. Left out are checks of sources and
# documents, and what compiles programs of others. The emulator keeps what it knows of every page that ever was
# reserved, so that tests that open many sessions took 20 GB of it; now all lie in 32 GiB of addresses.
test_aarch64() {
  need build arm package
  python3 packaging/third_party.py build-third-party || fail "the sources of third parties cannot be had"
  if [[ ! -f build-arm-test/build.ninja ]]; then
    say "configuring build-arm-test/"
    cmake --preset test -B build-arm-test -DCMAKE_TOOLCHAIN_FILE="$root/toolchains/linux-aarch64.cmake" \
      -DKVC_THIRD_PARTY="$root/build-third-party" >/dev/null || fail "could not configure build-arm-test/"
  fi
  build_for build-arm-test "${1:-}"
  export QEMU_RESERVED_VA=0x800000000
  only=(-R "${1:-.}" -E '^(package_|check_|docs_site)' --timeout 36000)
  run_suite build-arm-test
}

# configure_zig FOLDER TOOLCHAIN: the tests for another system, by Zig's compiler.
configure_zig() {
  need_package_tools
  hold "$1"
  [[ ! -f $1/build.ninja ]] || return 0
  say "configuring $1/"
  cmake --preset test -B "$1" -DCMAKE_TOOLCHAIN_FILE="$root/toolchains/$2.cmake" -DKVC_TOOLS=OFF -DKVC_BINDINGS=OFF \
    >/dev/null || fail "could not configure $1/"
}

# The library for Windows and the tests of it that need no POSIX. A program that waits keeps Wine's services alive:
# started by a test they would hold its output open, and ctest would wait for them.
test_windows() {
  local wine status=0
  need wine
  configure_zig build-windows-test windows-x86_64
  build_for build-windows-test "${1:-}"
  wine=$(sed -n 's/^KVC_WINE:[A-Z]*=//p' build-windows-test/CMakeCache.txt)
  [[ -x $wine ]] || fail "no wine64 (.ci/packages.txt); remove build-windows-test/ once it is installed"
  export WINEPREFIX=$root/build-windows-test/wine WINEDEBUG=-all DISPLAY=
  "$wine" wineboot -i </dev/null >/dev/null 2>&1 || fail "Wine does not start"
  coproc keeper { "$wine" cmd >/dev/null 2>&1; }  # ends when its input does
  only=(-R "${1:-.}")
  run_suite build-windows-test || status=$?
  eval "exec ${keeper[1]}>&-"
  return "$status"
}

# For macOS there is nothing to run programs with: that they link is the test, and what the library exports.
test_macos() {
  configure_zig build-macos-test macos-arm64
  say "building build-macos-test/"
  ninja -C build-macos-test -j "$jobs" --quiet kvc kvc_archive run_with_kvc run_with_kvc_archive ||
    fail "the build failed"
  only=(-R '^library_exports$')
  run_suite build-macos-test
}
