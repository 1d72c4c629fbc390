package dev.kvc.sample;

import dev.kvc.KvcException;
import dev.kvc.Model;
import dev.kvc.Policy;
import dev.kvc.Session;
import dev.kvc.SessionParams;
import dev.kvc.SessionStats;
import dev.kvc.Status;
import java.util.function.Consumer;
import java.util.stream.Stream;

/** What the app has of libkvc, without Android: a conversation that may go on for ever in a cache of fixed size. */
public final class Chat implements AutoCloseable {
  private final Session session;

  /** Takes long: not on the main thread. */
  public Chat(String path) {
    try (Model model = Model.open(path);
         Policy policy = Policy.of("snapkv:budget=512")) {
      session = model.newSession(policy, new SessionParams().onFull(SessionParams.OnFull.SLIDE));
    }
  }

  /** Hands the answer over in pieces, on the thread of the caller; stop() ends it from another one. */
  public void ask(String text, int maxTokens, Consumer<String> piece) {
    session.clearCancel();
    try (Stream<String> answer = session.ask(text, maxTokens)) {
      answer.forEach(piece);
    } catch (KvcException e) {
      if (e.status() != Status.CANCELLED) throw e;
    }
  }

  public void stop() {
    session.cancel();
  }

  public String memory() {
    SessionStats stats = session.stats();
    return (stats.cacheBytes >> 10) + " KiB of cache instead of " + (stats.cacheBytesFull >> 10);
  }

  @Override
  public void close() {
    session.close();
  }
}
