// The records of one layer of a cache as kernels read them: lengths, page ids, formats. The host packs them
// into a packet that goes to the device in front of the kernels it is for (staging.h).
#pragma once
#include <cstdint>

#include "lib/ops/cache_ops.h"

namespace kvc::cuda {

struct Format {
  PageFormat f;
  uint8_t* base;  // of its arena
};

// Of one KV head, what operations change: a kernel may write it, for the host to read back.
struct HeadLengths {
  int32_t len;  // entries in main
  int32_t ring_start, ring_len;
  int32_t book_len[2];  // of the owner of its books; kept in the owner's record only
  int32_t rotated;
};

// One KV head.
struct Head : HeadLengths {
  int32_t ring_page;
  int32_t main, ring;  // formats; ring -1: none
  int32_t settle;
  int32_t owner;            // index in the layer of the head that holds its codebooks
  const int32_t* ids;       // pages of main
  const int32_t* books[2];  // pages of directions of the owner; null: none
  float theta[2];
  int32_t magnitudes;
};

struct CacheLayer {
  int32_t directions;  // format, -1: none
  int32_t first_head;  // of the layer in the whole cache: layer * G
  int32_t layer_books;
  Head* heads;  // [G]
  const Format* formats;
};

}  // namespace kvc::cuda
