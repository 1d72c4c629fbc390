import dev.kvc.KvcException;
import dev.kvc.Model;
import dev.kvc.Policy;
import dev.kvc.Session;
import dev.kvc.SessionParams;
import dev.kvc.Status;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.stream.Stream;
import sun.misc.Signal;

/**
 * A conversation that may go on for ever: Chat MODEL.kvc [POLICY [TOKENS]], one turn a line. Ctrl-C stops the answer.
 *
 * <p>java -cp kvc.jar Chat.java model.kvc snapkv:budget=512
 */
public final class Chat {
  public static void main(String[] args) throws IOException {
    if (args.length < 1) {
      System.err.println("usage: Chat MODEL.kvc [POLICY [TOKENS]]");
      System.exit(2);
    }
    String spec = args.length > 1 ? args[1] : "full";
    int maxTokens = args.length > 2 ? Integer.parseInt(args[2]) : 512;
    PrintStream out = new PrintStream(System.out, true, "UTF-8");
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    // Past the trained context old entries leave, and what the policy keeps of every turn stays within its budget.
    SessionParams endless = new SessionParams().onFull(SessionParams.OnFull.SLIDE);
    try (Model model = Model.open(args[0]);
         Policy policy = Policy.of(spec);
         Session session = model.newSession(policy, endless)) {
      Signal.handle(new Signal("INT"), signal -> session.cancel());
      for (String line; (line = in.readLine()) != null;) {
        session.clearCancel(); // of a Ctrl-C between two answers
        try (Stream<String> answer = ask(session, line, maxTokens)) {
          answer.forEach(piece -> {
            out.print(piece);
            out.flush();
          });
        } catch (KvcException e) {
          if (e.status() != Status.CANCELLED) throw e;
        }
        out.println();
      }
    } catch (KvcException e) {
      System.err.println("Chat: " + e.getMessage());
      System.exit(1);
    }
  }

  /** A model that was not trained on conversations has no marks for turns: it goes on with what the user writes. */
  private static Stream<String> ask(Session session, String line, int maxTokens) {
    try {
      return session.ask(line, maxTokens);
    } catch (KvcException e) {
      if (e.status() != Status.UNSUPPORTED) throw e;
      session.setTurnMarks(Session.Role.USER, "", "");
      return session.ask(line, maxTokens);
    }
  }
}
