// What concerns the whole process: its end, its native library, its memory.
using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;
using System.Threading;
using Kvc;

static class ProcessTest {
  /// The process ends with everything open: a model, sessions, one that is generating on another thread, and garbage.
  internal static void Shutdown() {
    Model model = Model.Open(Checks.Recall);
    for (int i = 0; i < 20; ++i) model.NewSession().Prefill(new[] { 1, 2, 3 });
    Session open = Checks.StoryOf(model);
    Thread generator = new Thread(() => {
      Session session = model.NewSession(null, new SessionParams { OnFull = OnFull.Slide });
      session.Prefill(new[] { 1, 2, 3 });
      while (true) session.Accept(Math.Max(session.Step(), 0));
    });
    generator.IsBackground = true;
    generator.Start();
    GC.Collect();
    Thread.Sleep(200);
    Checks.Check(generator.IsAlive, "it is generating");
    Console.WriteLine("ending");
    GC.KeepAlive(open);
  }

  /// Says what the first call comes to: the test around it gives it libraries that are missing, foreign or too old.
  internal static void LibraryMessage() {
    for (int i = 0; i < 2; ++i) {
      try {
        Console.WriteLine("version " + Library.Version);
      } catch (DllNotFoundException e) {
        Console.WriteLine(e.Message);
      }
    }
    try {
      new Policy("full").Dispose();
      Model.Open("");
    } catch (Exception e) {
      Console.WriteLine(e.GetType().Name);
    }
  }

  struct MallInfo { public UIntPtr Arena, Ordblks, Smblks, Hblks, Hblkhd, Usmblks, Fsmblks, Uordblks, Fordblks, Keep; }

  [DllImport("libc")]
  static extern MallInfo mallinfo2();

  /// By malloc: libkvc's and the runtime's own, not the heap of objects.
  static long AllocatedBytes() {
    MallInfo info = mallinfo2();
    return (long)info.Uordblks.ToUInt64() + (long)info.Hblkhd.ToUInt64();
  }

  /// 10,000 sessions opened, fed, stepped and closed, and 200 models: over the second half of them the memory of the
  /// process stays where it was, and what malloc gave.
  internal static void Endurance() {
    const int sessions = 10000, models = 200;
    using (Model model = Model.Open(Environment.GetEnvironmentVariable("KVC_STORIES")))
    using (Policy policy = new Policy("snapkv:budget=16,window=4")) {
      int[] tokens = model.Tokenize("Once upon a time there was a little dog", TokenizeFlags.AddBos);
      Action<int> cycle = n => {
        for (int i = 0; i < n; ++i) {
          using (Session session = model.NewSession(policy)) {
            session.Prefill(tokens);
            session.Step();
            session.ReadText();
          }
        }
      };
      Action<int> open = n => {
        for (int i = 0; i < n; ++i) Model.Open(Checks.Recall).Dispose();
      };
      // What the runtime compiles and the allocator keeps has come by then.
      cycle(sessions / 2);
      open(models / 2);
      GC.Collect();
      long resident = Checks.StatusBytes("VmRSS"), allocated = AllocatedBytes();
      cycle(sessions / 2);
      open(models / 2);
      GC.Collect();
      resident = Checks.StatusBytes("VmRSS") - resident;
      allocated = AllocatedBytes() - allocated;
      string grown = "grown by " + (resident >> 10) + " KiB, " + allocated + " bytes of them allocated";
      Console.WriteLine(grown + ", in " + sessions / 2 + " sessions and " + models / 2 + " models");
      // A leak of one byte a session, or of 41 a model, is more than that. What is resident comes and goes with the
      // runtime's heap.
      Checks.Check(resident < 8 << 20 && allocated < 4 << 10, grown);
    }
  }

  /// Of ../opening_test.py: opens a model once, then eight times more. Prints the anonymous bytes of the eight, and
  /// those of the weights.
  internal static void Opening(string path) {
    List<Model> models = new List<Model> { Model.Open(path) };
    long before = Checks.StatusBytes("RssAnon");
    for (int i = 0; i < 8; ++i) models.Add(Model.Open(path));
    long grown = Checks.StatusBytes("RssAnon") - before;
    Console.WriteLine(grown + " " + models[0].Info().WeightBytes);
    foreach (Model model in models) model.Dispose();
  }
}
