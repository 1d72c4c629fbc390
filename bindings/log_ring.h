/* The log for languages that poll: no call goes from C into a collector's world. A callback of kvc_set_log
 * keeps the newest lines; the facade fetches them when it likes. One ring a process and binding: kvc_set_log
 * has one listener. */
#ifndef KVC_BINDINGS_LOG_RING_H
#define KVC_BINDINGS_LOG_RING_H
#include "kvc/kvc.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Keeps lines of min_level (KVC_LOG_*) and above from now on, at most 256 of at most 511 bytes each; when
 * full the oldest goes, and a line says how many went.  [any] */
void kvc_log_start(int32_t min_level);
/* Moves out the oldest line; *out_level is its level, or -1 when there is none.  [any] */
kvc_status kvc_log_poll(int32_t* out_level, char* text, int32_t cap_text, int32_t* n_out);
/* Silent again. Lines that were kept can still be polled.  [any] */
void kvc_log_stop(void);
#ifdef __cplusplus
}
#endif
#endif
