// The tests of C#: KvcTests.exe facade | misuse | shutdown | library | endurance, or layout TABLE, or opening MODEL, or
// scenario MODEL FILE FOLDER.
using System;
using System.Diagnostics;
using System.IO;
using System.Linq;
using System.Threading;
using Kvc;

static class Checks {
  internal const string Story = "Ada lives in Paris. The code of Robin is 386. Ada lives in";
  internal static readonly string Recall = Environment.GetEnvironmentVariable("KVC_RECALL");
  internal static readonly string NoBos = Environment.GetEnvironmentVariable("KVC_NO_BOS");
  private static int passed, failed;

  private static int Main(string[] args) {
    switch (args[0]) {
      case "facade": FacadeTest.Run(); break;
      case "misuse": MisuseTest.Run(); break;
      case "shutdown": ProcessTest.Shutdown(); return 0;
      case "library": ProcessTest.LibraryMessage(); return 0;
      case "endurance": Test("memory stays", ProcessTest.Endurance); break;
      case "opening": ProcessTest.Opening(args[1]); return 0;
      case "layout": LayoutTest.Run(args[1]); break;
      case "scenario": return Scenario.Run(args[1], args[2], args[3]);
    }
    Console.WriteLine(passed + " passed, " + failed + " failed");
    return failed == 0 && passed > 0 ? 0 : 1;
  }

  internal static void Test(string name, Action body) {
    try {
      body();
      ++passed;
    } catch (Exception e) {
      ++failed;
      Console.WriteLine("FAILED " + name + "\n" + e);
    }
  }

  internal static void Check(bool holds, string what) {
    if (!holds) throw new Exception("not so: " + what);
  }

  internal static void Equal<T>(T wanted, T got) {
    if (!Equals(wanted, got)) throw new Exception("wanted <" + wanted + ">, got <" + got + ">");
  }

  internal static T Throwing<T>(Action body) where T : Exception {
    try {
      body();
    } catch (T e) {
      return e;
    }
    throw new Exception("wanted " + typeof(T) + ", and nothing was thrown");
  }

  internal static KvcException Failing(Status status, Action body) {
    KvcException e = Throwing<KvcException>(body);
    Equal(status, e.Status);
    return e;
  }

  internal static Session StoryOf(Model model, Policy policy = null) {
    Session session = model.NewSession(policy);
    session.Prefill(model.Tokenize(Story, TokenizeFlags.AddBos));
    return session;
  }

  internal static string Text(Session session, int maxTokens) { return string.Concat(session.Generate(maxTokens)); }

  internal static int[] LongPrompt(Model model, int tokens) {
    string text = string.Concat(Enumerable.Repeat(" The code of Robin is 386. There was a silence.", tokens / 8));
    return model.Tokenize(text, TokenizeFlags.AddBos).Take(tokens).ToArray();
  }

  internal static void UntilReading(Session session) {
    while (session.Progress >= 1) Thread.Sleep(1);
  }

  /// Runs it on another thread, which hands over what it threw.
  internal static Func<Exception> Start(Action body) {
    Exception end = null;
    Thread thread = new Thread(() => {
      try {
        body();
      } catch (Exception e) {
        end = e;
      }
    });
    thread.Start();
    return () => {
      thread.Join();
      return end;
    };
  }

  /// A line of the process's status.
  internal static long StatusBytes(string name) {
    string line = File.ReadAllLines("/proc/self/status").First(l => l.StartsWith(name + ":"));
    return long.Parse(new string(line.Where(char.IsDigit).ToArray())) * 1024;
  }
}
