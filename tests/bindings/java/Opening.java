import dev.kvc.Model;
import java.util.ArrayList;
import java.util.List;

/**
 * Of ../opening_test.py: opens a model once, then eight times more. Prints the anonymous bytes of the eight, and those
 * of the weights.
 */
public final class Opening {
  public static void main(String[] args) throws Exception {
    List<Model> models = new ArrayList<>();
    models.add(Model.open(args[0]));
    long before = Checks.statusBytes("RssAnon");
    for (int i = 0; i < 8; ++i) models.add(Model.open(args[0]));
    long grown = Checks.statusBytes("RssAnon") - before;
    System.out.println(grown + " " + models.get(0).info().weightBytes);
    for (Model model : models) model.close();
  }
}
