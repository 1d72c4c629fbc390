/**
 * Language models on a compressed KV cache: the Java face of libkvc.
 *
 * <p>A {@link dev.kvc.Model} is shared by any number of threads. A {@link dev.kvc.Session} is one conversation, used by
 * one thread at a time: a second call on one that is working throws {@link dev.kvc.KvcException} with
 * {@link dev.kvc.Status#BUSY} and changes nothing. Close in any order, also while another thread is inside: its call is
 * cancelled, and the memory goes when it returns. A closed object throws {@link IllegalStateException}; closing twice
 * does nothing. What is never closed is given back some time after it became garbage.
 *
 * <p>Errors are {@link dev.kvc.KvcException}, which is unchecked, and say why as a {@link dev.kvc.Status}. A null that
 * may not be one is {@link NullPointerException}. Strings with half a surrogate pair in them, and names with a NUL, are
 * {@link dev.kvc.Status#INVALID}.
 */
package dev.kvc;
