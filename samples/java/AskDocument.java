import dev.kvc.KvcException;
import dev.kvc.Model;
import dev.kvc.Policy;
import dev.kvc.Session;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Iterator;
import java.util.stream.Stream;

/**
 * Reads a document once, keeps a compressed cache of it, and answers any number of questions from that: AskDocument
 * MODEL.kvc POLICY DOCUMENT QUESTION...
 *
 * <p>java -cp kvc.jar AskDocument.java recall.kvc cokv-document:budget=24 text.txt "The code of Zachary is"
 */
public final class AskDocument {
  public static void main(String[] args) throws IOException {
    if (args.length < 4) {
      System.err.println("usage: AskDocument MODEL.kvc POLICY DOCUMENT QUESTION...");
      System.exit(2);
    }
    PrintStream out = new PrintStream(System.out, true, "UTF-8");
    String text = new String(Files.readAllBytes(Paths.get(args[2])), StandardCharsets.UTF_8);
    try (Model model = Model.open(args[0]);
         Policy policy = Policy.of(args[1]);
         Session document = model.newSession(policy)) {
      document.prefill(model.prompt(text));
      out.printf("%d tokens in %d KiB instead of %d\n", document.stats().nPrompt, document.stats().cacheBytes >> 10,
          document.stats().cacheBytesFull >> 10);
      for (int i = 3; i < args.length; ++i) {
        // A fork shares the cache of the document, and what is asked of one the others do not see.
        try (Session question = document.fork()) {
          question.append(model.tokenize(" " + args[i], Model.CONTINUE));
          out.print(args[i]);
          try (Stream<String> answer = question.generate(6)) {
            for (Iterator<String> pieces = answer.iterator(); pieces.hasNext();) {
              String piece = pieces.next();
              if (piece.contains(".")) break;
              out.print(piece);
            }
          }
          out.println();
        }
      }
    } catch (KvcException e) {
      System.err.println("AskDocument: " + e.getMessage());
      System.exit(1);
    }
  }
}
