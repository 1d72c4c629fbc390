package dev.kvc;

import java.util.function.IntFunction;

/** Arrays that a call fills, and whose length only the library knows. */
final class Filled {
  private Filled() {}

  /** A call that fills an array and says how many there are; it returns not 0 when there are more. */
  interface Call<T> {
    int on(T into, int[] n);
  }

  /**
   * An array of that length: of such a call into guess elements, and again while they are too few, as there may be more
   * the next time; into none of them the library only counts.
   */
  static <T> T array(int guess, IntFunction<T> make, Call<T> call) {
    int[] n = new int[1];
    int room = guess;
    T into = make.apply(room);
    while (call.on(into, n) != Flat.KVC_OK || n[0] > room) {
      room = n[0];
      into = make.apply(room);
    }
    if (n[0] == room) return into;
    T exact = make.apply(n[0]);
    System.arraycopy(into, 0, exact, 0, n[0]);
    return exact;
  }
}
