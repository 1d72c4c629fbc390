#include "cuda/layer_params.h"

namespace kvc::cuda {

int32_t CacheRecords::Ids(int32_t head) const {
  const int32_t slots = c_.layout->formats[static_cast<size_t>(MainFormat(c_, head))].slots;
  return std::min((c_.len[head] + more_ + slots - 1) / slots, c_.page_stride);
}

int32_t CacheRecords::BookIds(int32_t head, int which) const {
  const int32_t owner = c_.layout->book_owner(head),
                slots = c_.layout->formats[static_cast<size_t>(c_.layout->directions)].slots,
                users = c_.layout->layer_books ? c_.layout->n_kv_heads : 1;
  return std::min((c_.book_len[owner * 2 + which] + users * more_ + slots - 1) / slots, c_.book_stride);
}

int64_t CacheRecords::BytesBeside() const {
  return Packet::Size<Head>(n_) + Packet::Size<Format>(static_cast<int64_t>(c_.layout->formats.size()));
}

int64_t CacheRecords::MostBytes() const {
  const int64_t ids = Packet::Size<int32_t>(c_.page_stride),
                book_ids = has_books() ? 2 * Packet::Size<int32_t>(c_.book_stride) : 0;
  return BytesBeside() + n_ * (ids + book_ids);
}

int64_t CacheRecords::Bytes() const {
  int64_t bytes = BytesBeside();
  for (int32_t h = first_; h < first_ + n_; ++h) {
    bytes += Packet::Size<int32_t>(Ids(h));
    for (int which = 0; has_books() && which < 2; ++which) bytes += Packet::Size<int32_t>(BookIds(h, which));
  }
  return bytes;
}

CacheLayer CacheRecords::Write(Packet* packet, Head** host) const {
  const CacheLayout& layout = *c_.layout;
  CacheLayer out{};
  out.directions = layout.directions, out.first_head = first_, out.layer_books = layout.layer_books ? 1 : 0;
  const size_t n_formats = layout.formats.size();
  Format* formats = packet->Add<Format>(static_cast<int64_t>(n_formats), &out.formats);
  for (size_t i = 0; i < n_formats; ++i) formats[i] = {layout.formats[i], At(c_.bases[i])};
  const Head* on_device = nullptr;
  Head* heads = packet->Add<Head>(n_, &on_device);
  out.heads = const_cast<Head*>(on_device);
  if (host != nullptr) *host = heads;
  for (int32_t i = 0; i < n_; ++i) {
    const int32_t h = first_ + i, owner = layout.book_owner(h);
    const HeadFormat& format = layout.heads[static_cast<size_t>(h)];
    Head& to = heads[i];
    to = {};
    to.len = c_.len[h];
    if (c_.ring != nullptr) {
      to.ring_page = c_.ring[h * kRingFields + kRingPage];
      to.ring_start = c_.ring[h * kRingFields + kRingStart];
      to.ring_len = c_.ring[h * kRingFields + kRingLen];
    }
    to.rotated = c_.rotated[h];
    to.main = MainFormat(c_, h), to.ring = RingFormat(c_, h), to.settle = format.settle;
    to.owner = owner - first_;
    to.ids = packet->Copy(c_.pages + int64_t{h} * c_.page_stride, Ids(h));
    to.theta[0] = format.theta_key, to.theta[1] = format.theta_value;
    to.magnitudes = format.magnitudes ? 1 : 0;
    for (int which = 0; has_books() && which < 2; ++which) {
      to.book_len[which] = c_.book_len[owner * 2 + which];
      to.books[which] =
          packet->Copy(c_.books + (int64_t{owner} * 2 + which) * c_.book_stride, BookIds(h, which));
    }
  }
  return out;
}

CacheLayer CacheRecords::WriteAgain(const CacheLayer& front, Packet* packet, Head** host) const {
  CacheLayer out = front;
  Head* heads = packet->Add<Head>(n_, &out.heads);
  std::copy(*host, *host + n_, heads);
  *host = heads;
  return out;
}

Status CacheRecords::ReadBack(CudaStream* stream, const Head* heads) const {
  constexpr int32_t kAtOnce = 32;
  Head read[kAtOnce];
  for (int32_t at = 0; at < n_; at += kAtOnce) {
    const int32_t n = std::min(kAtOnce, n_ - at);
    KVC_RETURN_IF_ERROR(stream->Fetch(heads + at, read, n * static_cast<int64_t>(sizeof(Head))));
    for (int32_t i = 0; i < n; ++i) Accept(at + i, read[i]);
  }
  return {};
}

void CacheRecords::Accept(int32_t i, const HeadLengths& from) const {
  const int32_t h = first_ + i;
  c_.len[h] = from.len;
  c_.rotated[h] = from.rotated != 0 ? 1 : 0;
  if (c_.ring != nullptr) {
    c_.ring[h * kRingFields + kRingStart] = from.ring_start;
    c_.ring[h * kRingFields + kRingLen] = from.ring_len;
  }
  for (int which = 0; has_books() && c_.layout->book_owner(h) == h && which < 2; ++which)
    c_.book_len[h * 2 + which] = from.book_len[which];
}

}  // namespace kvc::cuda
