package dev.kvc;

import java.util.Objects;

/** A compression method and its options. Any number of sessions can be made with one; each has a copy. */
public final class Policy implements AutoCloseable {
  final Ref ref;

  private Policy(long handle) {
    ref = new Ref(this, "policy", handle, Flat::kvc_policy_close, null, null);
  }

  /**
   * Makes a policy.
   *
   * @param spec a method and its options, such as "cokv:budget=128,window=8"; "full" keeps everything
   * @return the policy, to be closed
   * @throws KvcException {@link Status#NOT_FOUND} for a method, {@link Status#INVALID} for an option that cannot be
   */
  public static Policy of(String spec) {
    Objects.requireNonNull(spec, "spec");
    NativeLibrary.load();
    long[] handle = new long[1];
    Flat.kvc_policy_create(Utf8.name(spec, "spec"), handle);
    return new Policy(handle[0]);
  }

  /**
   * The spec with all defaults written out.
   *
   * @return a spec of the same policy
   */
  public String describe() {
    return ref.get(this, h -> Utf8.read((text, n) -> Flat.kvc_policy_describe(h, text, n)));
  }

  /**
   * Head scores other than those in the model file.
   *
   * @param scores [layers, KV heads] in layer order, higher is more important; for headkv [layers, heads]
   */
  public void setHeadScores(float[] scores) {
    Objects.requireNonNull(scores, "scores");
    ref.run(this, h -> Flat.kvc_policy_set_head_scores(h, scores));
  }

  /**
   * Slots of every head, for the method "table".
   *
   * @param slots [layers, KV heads] in layer order, window included
   */
  public void setTable(int[] slots) {
    Objects.requireNonNull(slots, "slots");
    ref.run(this, h -> Flat.kvc_policy_set_table(h, slots));
  }

  @Override
  public void close() {
    ref.close();
  }
}
