// Tests under QEMU's user mode, which is thirty to a hundred times slower than the processor it runs on.
#pragma once
namespace kvc::test {

// Resident memory is also what the emulator translated and noted, and a limit on addresses is none.
constexpr bool kUnderQemu =
#if defined(KVC_UNDER_QEMU)
    true;
#else
    false;
#endif

// Of many cases of one kind the emulator gets every n-th: the kernels that differ there are in each of them.
// A prime avoids the periods of what is counted.
constexpr int EveryNth(int n) { return kUnderQemu ? n : 1; }
// So many where time is short: a prompt of 900 tokens takes the model recall a fifth of a second, and
// emulated a minute.
template <typename T>
constexpr T Fewer(T emulated, T otherwise) {
  return kUnderQemu ? emulated : otherwise;
}

}  // namespace kvc::test
