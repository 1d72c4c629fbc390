/* What libkvc asks of utf8proc, for everything that can be asked: the decomposition, class and neighbours of
 * every code point, and what comes of every pair of code points that may compose. */
#include <stdio.h>
#include <stdlib.h>

#include <utf8proc.h>

enum { kEnd = 0x110000 };

/* comb_index tells a code point that begins a pair (below 0x8000) from one that ends it. */
static int collect(int last, utf8proc_int32_t* out) {
  int n = 0;
  for (utf8proc_int32_t c = 0; c < kEnd; ++c) {
    const unsigned index = utf8proc_get_property(c)->comb_index;
    if (index != 0xFFFF && (index >= 0x8000) == last) out[n++] = c;
  }
  return n;
}

static void each(utf8proc_int32_t c) {
  /* One of each class of grapheme borders that the others are held against. */
  static const utf8proc_int32_t neighbours[] = {'a',    '\r',    '\n',    1,      0x300,
                                                0x200D, 0x1F1E6, 0x1F600, 0x1100, 0x1160,
                                                0x11A8, 0xAC00,  0xAC01,  0x903,  0x600};
  utf8proc_int32_t parts[32];
  const utf8proc_ssize_t n = utf8proc_decompose_char(c, parts, 32, UTF8PROC_DECOMPOSE, NULL);
  printf("%x %d:", (unsigned)c, (int)utf8proc_get_property(c)->combining_class);
  for (utf8proc_ssize_t i = 0; i < n; ++i) printf(" %x", (unsigned)parts[i]);
  putchar(' ');
  for (unsigned i = 0; i < sizeof neighbours / sizeof *neighbours; ++i) {
    putchar(utf8proc_grapheme_break(c, neighbours[i]) ? '|' : '-');
    putchar(utf8proc_grapheme_break(neighbours[i], c) ? '|' : '-');
  }
  putchar('\n');
}

int main(void) {
  utf8proc_int32_t* firsts = malloc(kEnd * sizeof *firsts);
  utf8proc_int32_t* lasts = malloc(kEnd * sizeof *lasts);
  if (!firsts || !lasts) return 1;
  for (utf8proc_int32_t c = 0; c < kEnd; ++c) each(c);
  const int n_firsts = collect(0, firsts), n_lasts = collect(1, lasts);
  for (int i = 0; i < n_firsts; ++i) {
    for (int j = 0; j < n_lasts; ++j) {
      utf8proc_int32_t pair[2] = {firsts[i], lasts[j]};
      const utf8proc_ssize_t n =
          utf8proc_normalize_utf32(pair, 2, (utf8proc_option_t)(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
      printf("%x+%x=%x%s\n", (unsigned)firsts[i], (unsigned)lasts[j], (unsigned)pair[0],
             n == 2 ? " and" : "");
    }
  }
  free(firsts);
  free(lasts);
  return 0;
}
