package dev.kvc;

import java.lang.ref.PhantomReference;
import java.lang.ref.ReferenceQueue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.LongConsumer;

/**
 * A handle of C and who is using it. It is given back when it is closed, or when the object that owns it is garbage; in
 * both cases not before the last call on it has returned. This is what java.lang.ref.Cleaner does, which Android has
 * from version 13 on only.
 */
final class Ref extends PhantomReference<Object> {
  private static final ReferenceQueue<Object> GARBAGE = new ReferenceQueue<>();
  private static final Set<Ref> ALL = ConcurrentHashMap.newKeySet();

  static {
    Thread thread = new Thread(Ref::collect, "libkvc collector");
    thread.setDaemon(true);
    thread.setContextClassLoader(null);
    thread.start();
  }

  private final String what;
  private final LongConsumer closer;
  private final LongConsumer canceller;
  /** Memory that the library reads until this handle is given back, or null. Only for calls that use the handle. */
  private Object memory;

  private long handle;
  private int users;
  /** What this is the handle of, while anyone uses it, else null. */
  private Object held;
  private boolean closed;

  /** canceller, of what takes long, or null: called by a close while the handle is in use. */
  Ref(Object owner, String what, long handle, LongConsumer closer, LongConsumer canceller, Object memory) {
    super(owner, GARBAGE);
    this.what = what;
    this.handle = handle;
    this.closer = closer;
    this.canceller = canceller;
    this.memory = memory;
    ALL.add(this);
  }

  /**
   * The handle, which stays valid until leave(). owner, whose method calls this, reads nothing of itself any more: for
   * the collector it could be garbage before it is inside, and be closed under its own call. That it is stored keeps
   * it: Reference.reachabilityFence is not in Java 8, and a lock on it might be held by those whose object it is.
   */
  synchronized long enter(Object owner) {
    if (closed) throw new IllegalStateException("this " + what + " is closed");
    ++users;
    held = owner;
    return handle;
  }

  /** For a handle that a call on this one makes, and that reads the same. */
  Object memory() {
    return memory;
  }

  synchronized boolean isClosed() {
    return closed;
  }

  void leave() {
    long last;
    synchronized (this) {
      if (--users == 0) held = null;
      last = takeLast();
    }
    giveBack(last);
  }

  /** By whoever owns it, where a call that runs is cancelled; or behind the last call on what is garbage. */
  void close() {
    long last;
    synchronized (this) {
      if (!closed && users > 0 && canceller != null) canceller.accept(handle);
      closed = true;
      last = takeLast();
    }
    giveBack(last);
  }

  interface Call<T> {
    T on(long handle);
  }

  /** A call with the handle in use. */
  <T> T get(Object owner, Call<T> call) {
    long used = enter(owner);
    try {
      return call.on(used);
    } finally {
      leave();
    }
  }

  void run(Object owner, LongConsumer call) {
    long used = enter(owner);
    try {
      call.accept(used);
    } finally {
      leave();
    }
  }

  /** A call that does not wait, which close comes before or behind: what takes back a cancel, but not that of close. */
  synchronized void runApart(Object owner, LongConsumer call) {
    run(owner, call);
  }

  private long takeLast() {
    if (!closed || users > 0) return 0;
    long last = handle;
    handle = 0;
    return last;
  }

  private void giveBack(long last) {
    if (last == 0) return;
    closer.accept(last);
    memory = null;
    ALL.remove(this);
    clear();
  }

  private static void collect() {
    while (true) {
      try {
        ((Ref) GARBAGE.remove()).close();
      } catch (InterruptedException e) {
        // Someone interrupts every thread there is; this one has to stay.
      }
    }
  }
}
