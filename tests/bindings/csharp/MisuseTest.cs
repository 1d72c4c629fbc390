// What no program should do: each has to end in an exception that says so, never in a crash.
using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Reflection;
using System.Threading;
using Kvc;

static class MisuseTest {
  private static Model model;

  internal static void Run() {
    model = Model.Open(Checks.Recall);
    Checks.Test("null", Nulls);
    Checks.Test("text that is none", BadText);
    Checks.Test("arrays of no length", NoLength);
    Checks.Test("numbers out of range", BadNumbers);
    Checks.Test("disposed", Disposed);
    Checks.Test("disposed in any order", DisposedInAnyOrder);
    Checks.Test("disposed while reading", DisposedWhileReading);
    Checks.Test("disposed while generating", DisposedWhileGenerating);
    Checks.Test("disposed at once", DisposedAtOnce);
    Checks.Test("disposed while another clears cancels", DisposedWhileClearing);
    Checks.Test("a disposed policy holds no model", DisposedPolicy);
    Checks.Test("busy", Busy);
    Checks.Test("an array that grows between two calls", Growing);
    Checks.Test("cancelled from another thread", Cancelled);
    Checks.Test("cancelled behind a failure", CancelledBehindAFailure);
    Checks.Test("exception while streaming", ExceptionWhileStreaming);
    Checks.Test("errors belong to their threads", ErrorsOfThreads);
    Checks.Test("four threads on one model", FourThreads);
    Checks.Test("never disposed", NeverDisposed);
    model.Dispose();
  }

  private static void AllThrow<T>(params Action[] bodies) where T : Exception {
    foreach (Action body in bodies) Checks.Throwing<T>(body);
  }

  private static void Nulls() {
    using (Session session = Checks.StoryOf(model))
    using (Policy policy = new Policy("snapkv:budget=64"))
    using (Loader loader = new Loader()) {
      AllThrow<ArgumentNullException>(() => Model.Open(null), () => new Policy(null),
          () => model.Tokenize((string)null), () => model.Tokenize((byte[])null), () => model.Detokenize(null),
          () => model.DetokenizeBytes(null),
          () => model.Restore((string)null),
          () => model.Restore((byte[])null), () => policy.SetHeadScores(null), () => policy.SetTable(null),
          () => loader.Open(null), () => session.Prefill(null), () => session.Append(null), () => session.Enqueue(null),
          () => session.Say(Role.User, null), () => session.Save(null), () => session.SetLogitBias(null, new float[0]),
          () => session.SetLogitBias(new int[0], null), () => session.Logits(null), () => Batch.Step(null),
          () => Batch.Logits(new[] { session }, null));
      AllThrow<NullReferenceException>(() => Batch.Step(new[] { session, null }));
      Checks.Failing(Status.Invalid, () => Model.Open(IntPtr.Zero, 100));
      Checks.Check(session.Step() >= 0, "nothing of it touched the session");
    }
  }

  private static void BadText() {
    using (Session session = Checks.StoryOf(model)) {
      foreach (string half in new[] { "a\ud83d", "\ude00b", "\ude00\ud83d" }) {
        Checks.Failing(Status.Invalid, () => Model.Open(half));
        Checks.Failing(Status.Invalid, () => new Policy(half));
        Checks.Failing(Status.Invalid, () => model.Tokenize(half));
        Checks.Failing(Status.Invalid, () => session.Say(Role.User, half));
        Checks.Failing(Status.Invalid, () => session.Save(half));
      }
      Checks.Failing(Status.Invalid, () => Model.Open(Checks.Recall + "\0"));
      Checks.Failing(Status.Invalid, () => new Policy("snapkv\0:budget=3"));
      Checks.Failing(Status.Invalid, () => session.SetTurnMarks(Role.User, "\0", ""));
      string back = model.Detokenize(model.Tokenize(new byte[] { 0xff, 0xc3, 0 }));
      Checks.Check(back.StartsWith("\ufffd"), "bytes come back as U+FFFD");
    }
  }

  private static void NoLength() {
    using (Session session = Checks.StoryOf(model)) {
      Checks.Failing(Status.Invalid, () => session.Prefill(new int[0]));
      Checks.Failing(Status.Invalid, () => session.Append(new int[0]));
      Checks.Failing(Status.Invalid, () => session.Enqueue(new int[0]));
      Checks.Failing(Status.BadModel, () => model.Restore(new byte[0]));
      Checks.Failing(Status.Invalid, () => new Policy(""));
      Checks.Failing(Status.BufferTooSmall, () => session.Logits(new float[7]));
      Checks.Failing(Status.BufferTooSmall, () => session.Logits(new float[0]));
      Checks.Failing(Status.Io, () => Model.Open(""));
      session.SetTokenMask(new int[0]);
      session.SetLogitBias(new int[0], new float[0]);
      Checks.Check(session.Step() >= 0, "and it goes on");
    }
  }

  private static void BadNumbers() {
    using (Session session = Checks.StoryOf(model))
    using (Policy table = new Policy("table")) {
      Checks.Failing(Status.Invalid, () => session.Prefill(new[] { -1 }));
      Checks.Failing(Status.Invalid, () => session.Prefill(new[] { int.MaxValue }));
      Checks.Failing(Status.Invalid, () => session.Accept(2048));
      Checks.Failing(Status.Invalid, () => model.Detokenize(2048));
      Checks.Failing(Status.Invalid, () => session.Kept(6, 0));
      Checks.Failing(Status.Invalid, () => session.Kept(-1, 0));
      Checks.Failing(Status.Invalid, () => session.Say((Role)7, ""));
      Checks.Failing(Status.Invalid, () => session.SetSampling(new Sampling { Temperature = float.NaN }));
      Checks.Failing(Status.Invalid, () => model.NewSession(null, new SessionParams { MaxTokens = -1 }));
      Checks.Failing(Status.Invalid,
          () => model.NewSession(null, new SessionParams { Sampling = new Sampling { MinP = 2 } }));
      Checks.Failing(Status.Invalid, () => session.SetTokenMask(new int[1]));
      Checks.Failing(Status.Invalid, () => session.SetLogitBias(new int[1], new float[2]));
      Checks.Failing(Status.Invalid, () => model.Plan(null, null, 0));
      Checks.Throwing<KvcException>(() => model.HeadScores(1000));
      table.SetTable(new[] { 3 });
      Checks.Failing(Status.Invalid, () => model.NewSession(table));
    }
  }

  private static void Disposed() {
    Session session = Checks.StoryOf(model);
    IEnumerable<string> late = session.Generate(3);
    session.Dispose();
    session.Dispose();
    AllThrow<ObjectDisposedException>(() => session.Prefill(new[] { 1 }), () => session.Append(new[] { 1 }),
        session.Compress, () => session.Enqueue(new[] { 1 }), () => session.Say(Role.User, ""), () => session.Trim(8),
        () => session.Step(), () => session.Accept(1), () => session.SetSampling(null),
        () => session.SetTokenMask(null), () => session.ReadText(), () => session.Logits(), () => session.Stats(),
        () => session.Progress.ToString(),
        () => session.Kept(0, 0), session.Reset, session.Cancel, session.ClearCancel, () => session.Fork(),
        () => session.Rewind(1), () => session.Save("x"), () => session.Save(), () => Batch.Step(new[] { session }),
        () => late.Count());
    Model other = Model.Open(Checks.Recall);
    other.Dispose();
    other.Dispose();
    AllThrow<ObjectDisposedException>(() => other.Info(), () => other.Describe(), () => other.Tokenize(""),
        () => other.Detokenize(1), () => other.NewSession(), () => other.Plan(null, null, 1), () => other.Restore("x"),
        () => other.HeadScores(0));
    Policy policy = new Policy("snapkv:budget=64");
    policy.Dispose();
    policy.Dispose();
    AllThrow<ObjectDisposedException>(() => policy.Describe(), () => model.NewSession(policy),
        () => policy.SetTable(new int[1]));
    Loader loader = new Loader();
    loader.Dispose();
    loader.Dispose();
    AllThrow<ObjectDisposedException>(loader.Cancel, loader.ClearCancel, () => loader.Progress.ToString(),
        () => loader.Open("x"));
    // What stands beside a disposed one in a batch stays usable.
    using (Session open = Checks.StoryOf(model)) {
      AllThrow<ObjectDisposedException>(() => Batch.Step(new[] { open, session }));
      Checks.Check(open.Step() >= 0, "usable");
    }
  }

  private static void DisposedInAnyOrder() {
    Model other = Model.Open(Checks.Recall);
    Policy policy = new Policy("cokv:budget=64,window=8");
    Session session = other.NewSession(policy);
    policy.Dispose();
    other.Dispose();
    session.Prefill(model.Tokenize(Checks.Story, TokenizeFlags.AddBos));
    Session fork = session.Fork();
    session.Dispose();
    Checks.Check(Checks.Text(fork, 4).Length > 0, "text");
    fork.Dispose();
  }

  /// A session is disposed while it reads; then comes what is asked of it, while the call that Dispose cancels ends.
  private static void WhileReading(Action<Session> then) {
    for (int i = 0; i < 4; ++i) {
      Session session = model.NewSession();
      int[] prompt = Checks.LongPrompt(model, 1000);
      Func<Exception> end = Checks.Start(() => session.Prefill(prompt));
      Checks.UntilReading(session);
      session.Dispose();
      then(session);
      Checks.Equal(Status.Cancelled, ((KvcException)end()).Status);
    }
  }

  private static void DisposedWhileReading() { WhileReading(session => {}); }

  private static void DisposedWhileGenerating() {
    for (int i = 0; i < 20; ++i) {
      Session session = model.NewSession(null, new SessionParams { OnFull = OnFull.Slide });
      session.Prefill(model.Tokenize(Checks.Story, TokenizeFlags.AddBos));
      Func<Exception> end = Checks.Start(() => {
        while (true) session.Accept(session.Step());
      });
      Thread.Sleep(i % 5);
      session.Dispose();
      // Between two calls it finds the session disposed, inside of one it is cancelled.
      Exception e = end();
      Checks.Check(e is ObjectDisposedException || (e as KvcException)?.Status == Status.Cancelled, "" + e);
    }
  }

  // Nobody gets at the session or loader, or takes back the cancel.
  private static void DisposedAtOnce() {
    WhileReading(session => AllThrow<ObjectDisposedException>(session.ClearCancel, session.Cancel,
        () => session.Progress.ToString(), () => session.Step(), () => session.Stats(),
        () => Batch.Step(new[] { session })));
    for (int i = 0; i < 4; ++i) {
      Loader loader = new Loader();
      Func<Exception> end = Checks.Start(() => {
        while (true) loader.Open(Checks.Recall).Dispose();
      });
      while (loader.Progress >= 1) {
      }
      loader.Dispose();
      AllThrow<ObjectDisposedException>(loader.ClearCancel, loader.Cancel, () => loader.Progress.ToString());
      Exception e = end();
      Checks.Check(e is ObjectDisposedException || (e as KvcException)?.Status == Status.Cancelled, "" + e);
    }
  }

  // Nobody takes back the cancel of Dispose, whenever they ask.
  private static void DisposedWhileClearing() {
    int[] prompt = Checks.LongPrompt(model, 1000);
    for (int i = 0; i < 30; ++i) {
      Session session = model.NewSession();
      Func<Exception> end = Checks.Start(() => session.Prefill(prompt));
      Func<Exception> cleared = Checks.Start(() => {
        while (true) session.ClearCancel();
      });
      Checks.UntilReading(session);
      session.Dispose();
      Checks.Check(cleared() is ObjectDisposedException, "disposed");
      Checks.Check(end() != null, "the Dispose of round " + i + " ended nothing");
    }
  }

  private static void DisposedPolicy() {
    string copy = Path.Combine(Path.GetTempPath(), Guid.NewGuid() + ".kvc");
    File.Copy(Checks.Recall, copy);
    Model other = Model.Open(copy);
    Policy gone = new Policy("snapkv:budget=64");
    gone.Dispose();
    Func<bool> mapped = () => File.ReadAllText("/proc/self/maps").Contains(copy);
    Checks.Check(mapped(), "a model is mapped");
    AllThrow<ObjectDisposedException>(() => other.NewSession(gone), () => other.Plan(gone, null, 10));
    other.Dispose();
    AllThrow<ObjectDisposedException>(() => other.Info());
    Checks.Check(!mapped(), "and not when it is disposed");
    File.Delete(copy);
  }

  private static void Busy() {
    using (Session session = model.NewSession()) {
      Func<Exception> end = Checks.Start(() => session.Prefill(Checks.LongPrompt(model, 1000)));
      Checks.UntilReading(session);
      Checks.Failing(Status.Busy, () => session.Step());
      Checks.Failing(Status.Busy, () => session.Generate(3).Count());
      Checks.Equal(null, end());
      Checks.Check(session.Step() >= 0, "nothing of it touched the session");
    }
  }

  // Another thread reads on between the call that counts and the one that fills: an array is whole, or Status.Busy.
  private static void Growing() {
    using (Session session = model.NewSession()) {
      session.Prefill(Checks.LongPrompt(model, 600));
      int left = 300;
      Func<Exception> end = Checks.Start(() => {
        for (; left > 0; Thread.Sleep(1)) UnlessBusy(() => {
          session.Prefill(new[] { 1 });
          --left;
        });
      });
      while (Volatile.Read(ref left) > 0) {
        UnlessBusy(() => Checks.Check(session.Save()[0] != 0, "it begins with the name of its format"));
      }
      Checks.Equal(null, end());
    }
  }

  private static void UnlessBusy(Action body) {
    try {
      body();
    } catch (KvcException e) {
      Checks.Equal(Status.Busy, e.Status);
    }
  }

  private static void Cancelled() {
    using (Session session = model.NewSession()) {
      CancellationTokenSource source = new CancellationTokenSource();
      Func<Exception> end = Checks.Start(() => session.Prefill(Checks.LongPrompt(model, 1000), source.Token));
      Checks.UntilReading(session);
      source.Cancel();
      Checks.Check(end() is OperationCanceledException, "cancelled");
      Checks.Equal(0, session.Stats().Prompt);
      session.Prefill(new[] { 1, 2, 3 });
      Checks.Throwing<OperationCanceledException>(() => session.Prefill(new[] { 1 }, source.Token));
      end = Checks.Start(() => session.Append(Checks.LongPrompt(model, 1000)));
      Checks.UntilReading(session);
      session.Cancel();
      Checks.Equal(Status.Cancelled, ((KvcException)end()).Status);
    }
  }

  // A token that is cancelled when its call has failed already, before the facade stops listening to it: the next
  // call is not meant. Nothing public stands between the two, hence the private method.
  private static void CancelledBehindAFailure() {
    MethodInfo with = typeof(Session).GetMethod("With", BindingFlags.Instance | BindingFlags.NonPublic);
    using (Session session = Checks.StoryOf(model)) {
      CancellationTokenSource source = new CancellationTokenSource();
      Action call = () => {
        try {
          Model.Open("/no/such/file");
        } finally {
          source.Cancel();
        }
      };
      TargetInvocationException e =
          Checks.Throwing<TargetInvocationException>(() => with.Invoke(session, new object[] { source.Token, call }));
      Checks.Equal(Status.Io, ((KvcException)e.InnerException).Status);
      Checks.Check(session.Step() >= 0, "usable");
    }
  }

  private static void ExceptionWhileStreaming() {
    using (Session session = Checks.StoryOf(model)) {
      Checks.Throwing<ArithmeticException>(() => {
        foreach (string piece in session.Generate(8)) throw new ArithmeticException();
      });
      Checks.Equal(1, session.Stats().Answer);
      session.Cancel();
      Checks.Failing(Status.Cancelled, () => session.Generate(8).Count());
      Checks.Check(session.Generate(8).Count() > 0, "and it goes on");
    }
  }

  private static void Together(Action<int> body) {
    foreach (Func<Exception> end in Enumerable.Range(0, 4).Select(t => Checks.Start(() => body(t))).ToList()) {
      Exception e = end();
      if (e != null) throw new Exception("in a thread", e);
    }
  }

  private static void ErrorsOfThreads() {
    Together(t => {
      string path = "/nowhere/" + t + "/\ud83d\ude00";
      for (int i = 0; i < 300; ++i) {
        string text = Checks.Failing(Status.Io, () => Model.Open(path)).Message;
        Checks.Check(text.Contains(path), text);
      }
    });
  }

  private static void FourThreads() {
    string wanted;
    using (Session session = Checks.StoryOf(model)) wanted = Checks.Text(session, 16);
    Together(t => {
      for (int i = 0; i < 5; ++i) {
        using (Session session = Checks.StoryOf(model)) Checks.Equal(wanted, Checks.Text(session, 16));
      }
    });
  }

  /// 300 sessions of some 4 MB: more than a gigabyte, if nobody gave them back.
  private static void NeverDisposed() {
    byte[] saved;
    using (Session session = model.NewSession()) {
      session.Prefill(Checks.LongPrompt(model, 600));
      saved = session.Save();
    }
    Checks.Check(saved.Length > 3 << 20, "a session of some size");
    long before = Checks.StatusBytes("VmRSS");
    for (int i = 0; i < 300; ++i) {
      Leave(saved);
      if (i % 20 == 19) {
        GC.Collect();
        GC.WaitForPendingFinalizers();
      }
    }
    long grown = Checks.StatusBytes("VmRSS") - before;
    Checks.Check(grown < 300L << 20, "grown by " + (grown >> 20) + " MiB");
  }

  private static void Leave(byte[] saved) { model.Restore(saved); }
}
