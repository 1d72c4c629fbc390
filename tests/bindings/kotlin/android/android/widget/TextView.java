package android.widget;

import android.view.View;

public class TextView extends View {
  public CharSequence getText() {
    return "";
  }

  public final void setText(CharSequence text) {}

  public final void setText(int resource) {}

  public final void append(CharSequence text) {}
}
